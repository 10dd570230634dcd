"""The rings and the thread that bring packets' fates to a file, under three sanitizers."""

from __future__ import annotations

import errno
import subprocess
from pathlib import Path

import numpy as np
import pytest

from netlab.links.relay_build import CORE
from netlab.packets import RECORD

HEADER_BYTES = 96  # as in fates_driver.c
DIRECTIONS = 3


@pytest.fixture(scope="module", params=["address,undefined", "thread"])
def driver(request, tmp_path_factory):
    program = tmp_path_factory.mktemp("fates") / "driver"
    sources = [str(Path(__file__).with_name("fates_driver.c"))]
    sources += [str(CORE / name) for name in ("fate.c", "fatelog.c", "shared.c")]
    flags = [f"-fsanitize={request.param}", "-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]
    subprocess.run(["cc", *flags, f"-I{CORE}", *sources, "-o", str(program)], check=True, timeout=60)
    return program


def run(driver: Path, file: Path, packets: int, limit: int) -> tuple[tuple[int, ...], np.ndarray]:
    # Where addresses are laid out at random, the thread sanitizer of older compilers cannot find its own.
    argv = ["setarch", "-R", str(driver), str(file), str(packets), str(limit)]
    done = subprocess.run(argv, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    counters = tuple(int(word) for word in done.stdout.split())
    return counters, np.fromfile(file, dtype=RECORD, offset=HEADER_BYTES)


def test_every_record_of_every_direction_arrives_in_order(driver, tmp_path):
    (records, left_out, error), found = run(driver, tmp_path / "log", 20_000, 10**9)
    assert (records, left_out, error) == (DIRECTIONS * 20_000, 0, 0)
    for direction in range(DIRECTIONS):
        mine = found[found["direction"] == direction]
        assert (mine["number"] == np.arange(1, 20_001)).all()
        assert (mine["written_ns"] == mine["arrival_ns"] + 7).all()
        assert (mine["release_ns"] == np.where(mine["fate"] == 0, mine["arrival_ns"] + 5, 0)).all()
        assert (mine["flags"] == mine["number"] % 2).all()


def test_at_the_limit_the_file_stops_growing_and_the_rest_is_counted(driver, tmp_path):
    (records, left_out, _), found = run(driver, tmp_path / "log", 5000, 1234)
    assert (records, left_out) == (1234, DIRECTIONS * 5000 - 1234)
    assert len(found) == 1234


def test_a_disk_that_is_full_is_told_and_what_it_did_not_take_is_counted(driver, tmp_path):
    script = 'trap "" XFSZ; ulimit -f 64; exec setarch -R "$@"'  # 64 blocks of 512 or 1024 bytes
    argv = ["sh", "-c", script, "sh", str(driver), str(tmp_path / "log"), "5000", "1000000"]
    done = subprocess.run(argv, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    records, left_out, error = (int(word) for word in done.stdout.split())
    assert error == errno.EFBIG
    assert records + left_out == DIRECTIONS * 5000
    assert records <= 65536 / 48
