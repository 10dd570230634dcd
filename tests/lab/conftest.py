"""Labs for tests: real namespaces, TUN devices and processes."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from netlab import Lab, parse_profile
from tests.conftest import PLAIN


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A running lab on the plain profile, shared by a module's tests."""
    with Lab.start(parse_profile(PLAIN, "plain.yaml")) as running:
        yield running


@pytest.fixture
def mark() -> tuple[dict[str, str], Callable[[], list[int]]]:
    """An environment that marks every process started with it, and a way to find those that are alive."""
    name, value = "NETLAB_TEST_MARK", uuid.uuid4().hex

    def alive() -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if f"{name}={value}".encode() in environment.split(b"\0"):
                found.append(int(entry.name))
        return found

    return {name: value}, alive
