"""Compiles are grouped by what they have in common, and scores compared within a group."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.lib.compiles import read_texts
from benchmarks.lib.xla_ranks import ScoredPlan, disagreement, rank
from stowplan import files
from stowplan.backends.xla.store import Record
from stowplan.errors import InputError
from stowplan.hardware.targets import load_target


def add(folder: Path, text: str, plan: str, topology: str = "v5e:2x2", **options: str) -> None:
    record = Record(options=options, versions={}, topology=topology, workload="w", processor_seconds=1, seconds=1)
    place = folder / "toy-0123456789abcdef" / record.key
    place.mkdir(parents=True)
    files.write_atomic(place / "record.json", files.encode(record))
    for name, content in (("program", text), ("assigned", plan), ("compiled", plan)):
        (place / f"{name}.hlo.txt.gz").write_bytes(content.encode())


def test_a_group_is_a_text_on_a_chip_with_a_scoped_limit(tmp_path: Path) -> None:
    add(tmp_path, "one", "a", order="1")
    add(tmp_path, "one", "b")
    add(tmp_path, "one", "b", idle="1", more="2")
    add(tmp_path, "one", "b", topology="v6e:2x2")
    add(tmp_path, "one", "b", xla_tpu_scoped_vmem_limit_kib="8192")
    add(tmp_path, "two", "c", flag="1")
    found = read_texts(tmp_path, load_target("tpu-v5e"))
    assert {each.name for each in found} == {"toy", "toy, text 2", "toy, text 3"}
    assert [dict(each.record.options) for each in found[0].results] == [{}, {"order": "1"}]
    assert sorted(each.scoped for each in found) == ["", "", "8192"]
    with pytest.raises(InputError, match="no compile for tpu7x"):
        read_texts(tmp_path, load_target("tpu-7x"))


def test_ranks_and_disagreements() -> None:
    plans = [ScoredPlan({"a": a, "b": b}, {}, None, True) for a, b in ((100, 50), (90, 48), (110, 60))]
    assert rank(plans, "a", "b") == pytest.approx(1)
    assert disagreement(plans, "a", "b") == pytest.approx(10)
