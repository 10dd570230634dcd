"""Build description of the relay's C core: setup.py runs it through cffi.

cffi in API mode with the limited API: the C code never touches CPython, one binary serves every Python from
3.11 on, and the same sources compile without Python for the sanitized tests.

core/abi.h is the single statement of what Python sees. cffi parses C without a preprocessor, so the lines it
cannot read (guards and includes) are dropped here.
"""

import re
from pathlib import Path

from cffi import FFI

CORE = Path(__file__).parent / "core"
SOURCES = (
    "link.c",
    "measure.c",
    "random.c",
    "chain.c",
    "jitter.c",
    "codel.c",
    "order.c",
    "histogram.c",
    "store.c",
    "provider.c",
    "stamps.c",
    "headers.c",
    "fate.c",
    "fatelog.c",
    "offload.c",
    "schedule.c",
    "carry.c",
    "pump.c",
    "shared.c",
    "relay.c",
)
WARNINGS = ("-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wno-sign-conversion")


def declarations(header: str) -> str:
    """Return the header text that cffi can parse: constants, structs and prototypes."""
    number = re.compile(r"#define \w+ \d+u?$")
    return "\n".join(line for line in header.splitlines() if line[:1] != "#" or number.match(line))


ffi = FFI()
ffi.cdef(declarations((CORE / "abi.h").read_text()))
ffi.set_source(
    "netlab.links._relay",
    '#include "abi.h"',
    sources=[f"netlab/links/core/{name}" for name in SOURCES],
    include_dirs=["netlab/links/core"],
    depends=[f"netlab/links/core/{path.name}" for path in sorted(CORE.glob("*.h"))],
    extra_compile_args=["-std=gnu11", "-O2", "-pthread", *WARNINGS],
    extra_link_args=["-pthread", "-lm"],
    py_limited_api=True,
)

if __name__ == "__main__":
    ffi.compile(verbose=True)
