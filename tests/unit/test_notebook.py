"""The notebook runs in a real kernel on a run's tables, and defines no logic of its own."""

import ast
from pathlib import Path

import pytest

from cpdp import analysis, tables
from tests.unit.fake_run import CPDP4, DDP, FakeRun

nbformat = pytest.importorskip("nbformat", reason="needs nbclient and ipykernel: pip install -e .[dev]")
nbclient = pytest.importorskip("nbclient", reason="needs nbclient and ipykernel: pip install -e .[dev]")

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "exposure.ipynb"
LOGIC = (ast.FunctionDef, ast.ClassDef, ast.Lambda, ast.For, ast.While, ast.If, ast.Try, ast.comprehension)


@pytest.fixture
def notebook():
    return nbformat.read(NOTEBOOK, as_version=4)


def test_the_notebook_is_valid_and_was_saved_without_output(notebook):
    nbformat.validate(notebook)
    assert all(not cell.get("outputs") for cell in notebook.cells)


def test_the_notebook_defines_no_logic(notebook):
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    found = [node for source in code for node in ast.walk(ast.parse(source)) if isinstance(node, LOGIC)]
    # One list of labels is the only comprehension: it names what is drawn.
    assert [type(node) for node in found] == [ast.comprehension]


@pytest.mark.filterwarnings("ignore::DeprecationWarning:zmq", "ignore::DeprecationWarning:jupyter_client")
def test_the_notebook_runs_on_a_run(notebook, tmp_path, monkeypatch):
    run = FakeRun(tmp_path / "run", strategies=(DDP, CPDP4), repeats=2).write()
    tables.store(analysis.open_run(run).tables, run.tables)
    monkeypatch.setenv("CPDP_RUN", str(run.path))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    nbclient.NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = "\n".join(
        str(output.get("text") or output.get("data")) for cell in notebook.cells for output in cell.get("outputs", [])
    )
    assert "53% of DDP's exposed time here, 51% published" in shown
    assert shown.count("image/svg+xml") == 2
