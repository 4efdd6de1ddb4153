"""The table of memory as instructions and over the asynchronous fabric."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.modulo_scheduling import linked_flows


def test_a_row_for_each_way(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linked_flows, "DELAYS", ("0",))
    graph = {
        "nodes": [{"id": "x", "op": "load"}, {"id": "y", "op": "add"}, {"id": "z", "op": "store"}],
        "edges": [{"src": "x", "dst": "y"}, {"src": "y", "dst": "z"}],
    }
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(graph), encoding="utf-8")
    assert linked_flows.main([str(path), "--time-limit", "20"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[2] == "| tiny | instructions | 3 in 1, MII 1 | 1, 11 |"
    assert rows[3] == "| tiny | asynchronous | 3 in 2, MII 1 | 1, 110 |"
    path.write_text("{}", encoding="utf-8")
    assert linked_flows.main([str(path)]) == 2
