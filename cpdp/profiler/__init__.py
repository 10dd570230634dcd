"""The profiler: where every millisecond of a step went, for any training script.

    cpdp profile -- torchrun --nproc-per-node 2 train.py        any script, unmodified

    from cpdp.profiler import Profile                           or your own loop
    with Profile("runs/mine") as profile:
        for batch in loader:
            ...
            optimizer.step()

Flow: `launch` starts the command with `site/sitecustomize.py` on its path; that calls `install` once torch is there;
hooks feed a `tracer.Tracer`, which writes one line per step to rank-R.events.jsonl. Afterwards `columns` reads the
lines of all ranks, `split` says what exposed time was made of, `analysis` puts both into tables, and `show`, `page`,
`perfetto`, `hta` and `watch` show them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cpdp.profiler.library import Profile as Profile

__all__ = ["Profile"]


def __getattr__(name: str) -> Any:
    if name == "Profile":
        from cpdp.profiler.library import Profile

        return Profile
    raise AttributeError(f"module 'cpdp.profiler' has no attribute {name!r}")
