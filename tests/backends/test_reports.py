"""What came of a back end is a document: written to a file and read again, whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from stowplan.backends.executorch.banks import BankReport
from stowplan.backends.executorch.planning import ArenaReport
from stowplan.backends.search import OrderReport
from stowplan.backends.tflm.planning import Summary
from stowplan.backends.torch.planning import GraphReport
from stowplan.document import Document
from stowplan.errors import InputError

REPORTS: list[Document] = [
    OrderReport(operators=3, given=20, peak=16, bound=16, moved=True, seconds=0.5),
    ArenaReport(mem_id=1, buffers=4, greedy=64, size=48, load_bound=48, bound=48, source="search", seconds=0.1),
    BankReport(
        buffers=2, stock=None, cost=9, bound=9, stock_traffic=None, traffic={"sram": 9}, source="milp", seconds=0.2
    ),
    GraphReport(
        operators=5, limit=100, stock_peak=None, peak=90, added_flops=7, added_runs=1, added_cost=7, added_share=0.1,
        bound=7, saved=40, source="stages", seconds=1.5,
    ),
    Summary(
        model="net", subgraphs=1, operators=2, tensors=3, head=64, bound=64, any_order=True, kept=0, kernels="none", shared=0,
        unmodelled=0, greedy=80, moved=1, scratch={"1": (16,)}, scratch_from="measured", offsets=(0, -1, 32),
        orders={0: (1, 0)}, seconds=0.3,
    ),
]  # fmt: skip


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: type(report).__name__)
def test_reports_are_written_and_read(report: Document, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    report.save(path)
    assert type(report).load(path) == report
    other = REPORTS[0] if report is not REPORTS[0] else REPORTS[1]
    with pytest.raises(InputError, match=r"report\.json.*format"):
        type(other).load(path)
