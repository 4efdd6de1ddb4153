"""Cycles of plans by compiles of their program."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest

import stowplan
from stowplan.backends.xla import tune_workload
from stowplan.backends.xla.score import CompiledCycles, Scorer, scored_program
from stowplan.backends.xla.store import read_result
from stowplan.errors import InputError
from stowplan.frontends.hlo import read_module
from stowplan.hardware.targets import load_target
from tests.backends.xla.conftest import WORKLOAD, Fake

pytestmark = pytest.mark.usefixtures("quick_plans")


def test_plans_have_the_cycles_of_compiles(fake: Fake, tmp_path: Path) -> None:
    tune_workload(WORKLOAD, folder=tmp_path)
    (program,) = tmp_path.glob("*/program.hlo.txt.gz")
    problem = stowplan.read(program, target="tpu-v4")
    cycles = CompiledCycles(tmp_path)(problem)
    assert cycles is not None
    scorer, own = Scorer(scored_program(read_module(program)), load_target("tpu-v4")), []
    for record in tmp_path.glob("*/*/record.json"):
        result = read_result(record.parent)
        if result.module_path.exists() and scorer.read(result).has_fast_memory:
            own.append((scorer.plan(result).plan, scorer.score(scorer.read(result))))
    # XLA's own plans have the cycles that XLA says, and nothing in fast memory has those of the compile without any.
    assert own
    assert [cycles(plan) for plan, _ in own] == [score.total - score.stall_cycles for _, score in own]
    assert cycles(msgspec.structs.replace(own[0][0], residencies=(), fast_uses=())) == 5000

    # Another sequence of steps is another program.
    text = gzip.decompress(program.read_bytes()).decode().replace("%c", "%see")
    other = tmp_path / "other.hlo"
    other.write_text(text)
    assert CompiledCycles(tmp_path)(stowplan.read(other, target="tpu-v4")) is None


def test_what_is_there_and_is_no_result(fake: Fake, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found no compiled result"):
        CompiledCycles(tmp_path)
    with pytest.raises(InputError, match="found no folder"):
        CompiledCycles(tmp_path / "none")
