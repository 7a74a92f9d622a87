"""docs/python.ipynb runs from its first cell to its last in a kernel, where an event loop runs already."""

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from agentrl.cli.main import main

pytestmark = pytest.mark.integration

NOTEBOOK = Path(__file__).parents[2] / "docs/python.ipynb"


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        assert not cell.get("outputs"), "docs/python.ipynb is kept without outputs"
    prepare(next(cell.source for cell in notebook.cells if "!agentrl" in cell.source), tmp_path, monkeypatch)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert "LlamaForCausalLM" in notebook.cells[-1].outputs[-1]["data"]["text/plain"]
    assert (tmp_path / "runs/run/checkpoints/global_step_3").is_dir()


def prepare(cell: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the model in this process, where PyTorch is loaded: the command in the notebook finds it there."""
    code, _, command = cell.partition("!agentrl ")
    monkeypatch.chdir(folder)
    exec(code, {})
    assert main(command.split()) == 0
