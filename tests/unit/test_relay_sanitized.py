"""The relay's C code, compiled with every warning an error and driven under sanitizers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from netlab.links.relay_build import CORE, SOURCES

STRICT = ["-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wconversion", "-Wno-sign-conversion"]


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_the_core_and_the_pump_hold_under_the_sanitizer(sanitizer: str, tmp_path: Path):
    programs = [str(Path(__file__).with_name(name)) for name in ("relay_driver.c", "relay_fuzz.c")]
    binary = tmp_path / "driver"
    sources = [str(CORE / name) for name in SOURCES]
    options = [*STRICT, f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-pthread", f"-I{CORE}"]
    subprocess.run(["gcc", *options, "-o", str(binary), *programs, *sources, "-lm"], check=True)
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    done = subprocess.run([str(binary)], capture_output=True, text=True, timeout=100, env=environment)
    assert (done.returncode, done.stdout) == (0, "all hold\n"), done.stderr
