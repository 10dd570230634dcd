"""Data flows one way, and the arrows are the only import directions; what is documented exists."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import netlab
from tests.conftest import ROOT

NETLAB = sorted((ROOT / "netlab").rglob("*.py"))
CPDP = sorted((ROOT / "cpdp").rglob("*.py"))
EFFECTS = {"os", "time", "socket", "subprocess", "random", "shutil", "tempfile", "pyroute2", "psutil", "datetime"}
PURE = [
    ROOT / "netlab" / name
    for name in ("units.py", "document.py", "fields.py", "impairment.py", "network.py", "topology.py", "plan.py")
] + [ROOT / "cpdp" / name for name in ("schedule.py", "exposure.py", "summary.py", "explain.py")]


def imports(path: Path) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """(module, names, line) of every import, also within functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, (), node.lineno
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", tuple(alias.name for alias in node.names), node.lineno


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", NETLAB, ids=shown)
def test_netlab_knows_nothing_of_cpdp_or_torch(path: Path) -> None:
    wrong = [
        (module, line) for module, _, line in imports(path) if module.split(".")[0] in ("cpdp", "torch", "torchvision")
    ]
    assert not wrong


@pytest.mark.parametrize("path", CPDP, ids=shown)
def test_cpdp_uses_of_netlab_only_what_it_exports(path: Path) -> None:
    for module, names, line in imports(path):
        if module.split(".")[0] == "netlab":
            assert module == "netlab", f"{shown(path)}:{line} imports {module}"
            assert set(names) <= set(netlab.__all__), f"{shown(path)}:{line} imports {names}"


@pytest.mark.parametrize("path", PURE, ids=shown)
def test_pure_modules_import_nothing_with_effects(path: Path) -> None:
    wrong = [(module, line) for module, _, line in imports(path) if module.split(".")[0] in EFFECTS]
    assert not wrong


COLLECTIVES = {"all_reduce", "broadcast", "all_gather", "reduce_scatter", "reduce", "gather", "scatter", "barrier"}


def calls_a_collective(path: Path) -> bool:
    nodes = ast.walk(ast.parse(path.read_text()))
    found = [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)]
    return any(node.value.id == "dist" and node.attr in COLLECTIVES for node in found)  # type: ignore[attr-defined]


def test_only_one_module_calls_collectives() -> None:
    assert {shown(path) for path in CPDP if calls_a_collective(path)} == {"cpdp/collectives.py"}


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.splitlines()]


def test_links_in_documents_lead_to_files() -> None:
    dead = []
    for path in tracked():
        if path.suffix != ".md":
            continue
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text()):
            if "://" not in target and not (path.parent / target).exists():
                dead.append(f"{shown(path)}: {target}")
    assert not dead


def test_make_targets_named_in_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    named = set(re.findall(r"\bmake ([a-z]+)\b", (ROOT / "README.md").read_text()))
    assert named
    assert named <= targets
