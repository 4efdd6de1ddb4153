"""Problems that are written as CSV are read as they were."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stowplan.errors import UsageError
from stowplan.models.packing.csv_files import read_problem
from stowplan.models.packing.problem import Buffer, Overlap, Penalty, Problem
from tests.models.packing import cases, overlaps


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_buffers_are_the_same(start: int, tmp_path: Path) -> None:
    for seed in range(start, start + 50):
        for problem in (cases.random_problem(seed), overlaps.random_overlaps(seed), overlaps.random_graph(seed, 12, 5)):
            problem.save(tmp_path / "one.csv")
            assert read_problem(tmp_path / "one.csv").digest == problem.digest
            hinted = tuple(msgspec.structs.replace(buffer, hint=seed) for buffer in problem.buffers)
            msgspec.structs.replace(problem, buffers=hinted).save(tmp_path / "one.csv")
            assert [buffer.hint for buffer in read_problem(tmp_path / "one.csv").buffers] == [seed] * len(hinted)
            problem.save(tmp_path / "one.json")
            assert Problem.load(tmp_path / "one.json") == problem


def test_ids_with_spaces_cannot_be_operands_in_csv(tmp_path: Path) -> None:
    operand = Buffer(id="a b", lower=0, upper=2, size=4)
    result = Buffer(id="c", lower=1, upper=2, size=4, overlaps=(Overlap(operand="a b", distance=0),))
    with pytest.raises(UsageError, match="the id 'a b' has spaces"):
        Problem(buffers=(operand, result)).save(tmp_path / "one.csv")
    assert not (tmp_path / "one.csv").exists()


def test_reuse_penalties_cannot_be_written_as_csv(tmp_path: Path) -> None:
    buffers = tuple(Buffer(id=name, lower=at, upper=at + 1, size=4) for at, name in enumerate("ab"))
    problem = Problem(buffers=buffers, capacity=8, penalties=(Penalty(first="a", second="b", cost=1),))
    with pytest.raises(UsageError, match="reuse penalties cannot be written as CSV"):
        problem.save(tmp_path / "one.csv")
    assert not (tmp_path / "one.csv").exists()
