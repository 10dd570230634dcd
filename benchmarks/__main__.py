"""``make bench``: every benchmark, one after the other, each a ratio or a bound within one run.

    python -m benchmarks [NAME ...]     NAME: a module here without its bench_ (default: all)

Each module has ``run() -> Result``. A table is printed as results arrive; benchmarks/results/NAME.json keeps them with
the machine they were taken on.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from benchmarks.result import Result


def names() -> list[str]:
    """Every benchmark, in the order of the alphabet."""
    return sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def main(arguments: list[str]) -> int:
    """Run the benchmarks asked for; exit status 1 when one missed its bounds."""
    unknown = sorted(set(arguments) - set(names()))
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are: {', '.join(names())}", file=sys.stderr)
        return 2
    missed = False
    for name in arguments or names():
        print(f"== {name}", flush=True)
        result: Result = importlib.import_module(f"benchmarks.bench_{name}").run()
        result.write(name)
        result.show()
        missed = missed or not result.ok
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
