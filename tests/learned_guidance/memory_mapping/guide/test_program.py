"""Programs as flat arrays, against the problem itself."""

from __future__ import annotations

import random

import numpy as np
import pytest

from stowplan.learned_guidance.memory_mapping.guide.program import program
from stowplan.models.memory_mapping.accesses import access_sequences
from stowplan.models.memory_mapping.problem import Piece, Problem, Step
from tests.models.memory_mapping.cases import random_problem


def cases() -> list[Problem]:
    return [random_problem(random.Random(seed), steps=8, tensors=5) for seed in range(80)]


def test_accesses_are_numbered_as_in_hints_and_know_what_loops_forbid() -> None:
    for problem in cases():
        found = program(problem)
        listed = [(each.tensor, access) for each in access_sequences(problem) for access in each.accesses]
        assert found.tensor.tolist() == [tensor for tensor, _ in listed]
        assert found.step.tolist() == [access.step for _, access in listed]
        assert found.reads.tolist() == [access.read is not None for _, access in listed]
        assert found.writes.tolist() == [access.write is not None for _, access in listed]
        for sequence in access_sequences(problem):
            first = found.first[sequence.tensor]
            assert found.first[sequence.tensor + 1] - first == len(sequence)
            assert found.may_copy[sequence.tensor] == sequence.may_copy
            for j in range(1, len(sequence) + 1):
                glued = j < len(sequence) and sequence.is_glued(j)
                assert found.glued[first + j - 1] == glued
                assert found.dead[first + j - 1] == (sequence.is_dead(j) and not glued)


def test_latencies_and_what_accesses_save_of_them() -> None:
    tables = 0
    for problem in cases():
        found = program(problem)
        assert found.slow.sum() == problem.all_slow_ps
        assert found.floor.sum() == problem.floor_ps
        for number, (tensor, at) in enumerate(zip(found.tensor.tolist(), found.step.tolist(), strict=True)):
            step = problem.steps[at]
            tables += step.table is not None
            mine = [use.tensor == tensor for use in step.uses]
            alone = step.latency_ps([False] * len(mine)) - step.latency_ps(mine)
            final = step.latency_ps([not each for each in mine]) - step.latency_ps([True] * len(mine))
            assert found.alone[number] == step.weight * alone
            assert found.final[number] == step.weight * final
            assert found.bytes[number] == step.weight * sum(use.bytes for use in step.uses if use.tensor == tensor)
    assert tables


@pytest.mark.parametrize("steps", [0, 3])
def test_a_program_without_uses(steps: int) -> None:
    problem = random_problem(random.Random(1), steps=3, tensors=2)
    empty = tuple(Step(step.name, step.opcode, 1, (), (Piece(7, (), ()),)) for step in problem.steps[:steps])
    found = program(Problem(name="", target="", cost_model="", capacity=1, steps=empty, tensors=()))
    assert len(found.tensor) == 0
    assert np.all(found.slow == 7)
