"""The notebook in examples/ runs from its first cell to its last."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT

NOTEBOOK = ROOT / "examples" / "first_steps.ipynb"


def cells() -> list[str]:
    found: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]


def run(source: str, names: dict[str, Any]) -> Any:
    """Run a cell; the value of its last line, as a notebook shows it."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(NOTEBOOK), "exec"), names)
    return eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names) if isinstance(last, ast.Expr) else None


@pytest.mark.parametrize("folder", [ROOT, ROOT / "examples"], ids=["from the root", "from its folder"])
def test_every_cell_runs(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    shown = [run(source, names) for source in cells()]
    assert names["result"].verified
    pages = [each._repr_html_() for each in shown if hasattr(each, "_repr_html_")]
    assert len(pages) == 2
    printed = capsys.readouterr().out
    assert "True" in printed
    assert "overlap" in printed


def test_it_is_kept_without_outputs() -> None:
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert not [cell for cell in found if cell.get("outputs") or cell.get("execution_count")]
