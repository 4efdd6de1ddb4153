"""The game's reward of compiled results, beside the compiler's cycles."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest

import stowplan
from stowplan.backends.xla import tune_workload
from stowplan.backends.xla.score import CompiledRewards
from stowplan.errors import InputError
from stowplan.models.memory_mapping.problem import Piece, Problem
from tests.backends.xla.conftest import WORKLOAD, Fake

pytestmark = pytest.mark.usefixtures("quick_plans")


def with_costly_uses(problem: Problem) -> Problem:
    """The same program, where each use takes 100 ps in slow memory and none in fast."""
    steps = []
    for step in problem.steps:
        count = len(step.uses)
        steps.append(msgspec.structs.replace(step, pieces=(Piece(0, (100,) * count, (0,) * count),)))
    return msgspec.structs.replace(problem, steps=tuple(steps))


def test_rewards_and_cycles_of_every_result(fake: Fake, tmp_path: Path) -> None:
    tuning = tune_workload(WORKLOAD, folder=tmp_path)
    (program,) = tmp_path.glob("*/program.hlo.txt.gz")
    problem = with_costly_uses(stowplan.read(program, target="tpu-v4"))
    found = CompiledRewards(tmp_path)(problem)
    assert sorted(cycles for _, cycles in found) == sorted(trial.total for trial in tuning.trials)
    # Nothing in fast memory saves nothing; of XLA's own assignment nine uses are fast.
    assert (0, 5000) in found
    assert (900, 4500) in found

    # Another sequence of steps is another program.
    text = gzip.decompress(program.read_bytes()).decode().replace("%c", "%see")
    other = tmp_path / "other.hlo"
    other.write_text(text)
    assert CompiledRewards(tmp_path)(stowplan.read(other, target="tpu-v4")) == []


def test_what_is_there_and_is_no_result(fake: Fake, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found no compiled result"):
        CompiledRewards(tmp_path)
    with pytest.raises(InputError, match="found no folder"):
        CompiledRewards(tmp_path / "none")
    tune_workload(WORKLOAD, folder=tmp_path, compiles=3)
    (program,) = tmp_path.glob("*/program.hlo.txt.gz")
    problem = stowplan.read(program, target="tpu-v4")
    count = len(CompiledRewards(tmp_path)(problem))
    first, *_ = sorted(tmp_path.glob("*/*/compiled.hlo.txt.gz"))
    first.with_name("record.json").write_text("{")
    assert len(CompiledRewards(tmp_path)(problem)) == count - 1
