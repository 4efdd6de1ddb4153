"""Hints of an earlier version of a program."""

from __future__ import annotations

import random

import msgspec
import pytest

from stowplan.errors import InputError
from stowplan.models.hint import check_hint
from stowplan.models.memory_mapping import hint as hints
from stowplan.models.memory_mapping.hint import VALUES, matched_steps, paired_uses, transferred
from stowplan.models.memory_mapping.problem import Piece, Problem, Step, Tensor, Use
from tests.models.memory_mapping.cases import random_plan, random_problem


def changed(problem: Problem, rng: random.Random, rename: bool) -> tuple[Problem, list[int]]:
    """The program with some new steps between, and the old steps' numbers; ``rename`` gives all steps new names."""
    steps: list[Step] = []
    old: list[int] = []
    for index, step in enumerate(problem.steps):
        while rng.random() < 0.3:
            steps.append(Step(f"new {len(steps)}", "new", 1, (), (Piece(1, (), ()),)))
            old.append(-1)
        steps.append(msgspec.structs.replace(step, name=f"renamed {len(steps)}") if rename else step)
        old.append(index)
    return msgspec.structs.replace(problem, steps=tuple(steps)), old


@pytest.mark.parametrize("seed", range(30))
def test_steps_between_do_not_move_the_values(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, loops=0)
    later, old = changed(problem, rng, rename=False)
    given = hints.of_plan(problem, random_plan(problem, rng))
    assert matched_steps(later, problem) == old
    found = transferred(later, problem, given)
    check_hint(later, found, VALUES)
    # No step that uses anything came or went, so neither did an access.
    assert found.values == given.values
    assert set(found.confidence) <= {1.0}


def test_renamed_steps_are_known_by_what_they_use() -> None:
    rng = random.Random(5)
    problem = random_problem(rng, steps=10, tensors=6, loops=0)
    later, _ = changed(problem, rng, rename=True)
    given = hints.of_plan(problem, random_plan(problem, rng))
    found = transferred(later, problem, given)
    assert sum(found.confidence) > 0.8 * len(found.confidence)


def with_another_operand(problem: Problem, rng: random.Random) -> Problem:
    """The program with steps that read a small input besides, first of all; they take no longer for it."""
    steps = []
    for step in problem.steps:
        if rng.random() < 0.5:
            pieces = tuple(Piece(each.base_ps, (0, *each.slow_ps), (0, *each.fast_ps)) for each in step.pieces)
            step = msgspec.structs.replace(step, uses=(Use(len(problem.tensors), False, 1), *step.uses), pieces=pieces)
        steps.append(step)
    return msgspec.structs.replace(
        problem, steps=tuple(steps), tensors=(*problem.tensors, Tensor("factor", 1, 1, 1, is_input=True))
    )


def test_steps_with_another_operand_are_known_by_their_place_and_bytes() -> None:
    """As where the rule for updates changes, which is fused with gradients all through the program."""
    steps, right, values, known = 0, 0, 0, 0
    for seed in range(30):
        rng = random.Random(seed)
        problem = random_problem(rng, steps=12, tensors=6, loops=0, tables=False)
        later = with_another_operand(problem, rng)
        given = hints.of_plan(problem, random_plan(problem, rng))
        found = transferred(later, problem, given)
        check_hint(later, found, VALUES)
        before = matched_steps(later, problem)
        for new, old in enumerate(before):
            if old < 0 or len(later.steps[new].uses) == len(problem.steps[old].uses):
                continue
            for place, other in paired_uses(later, new, problem, old):
                mine, theirs = later.steps[new].uses[place], problem.steps[old].uses[other]
                assert later.tensors[mine.tensor].size == problem.tensors[theirs.tensor].size
                assert mine.is_output == theirs.is_output
        right += sum(old == new for new, old in enumerate(before))
        steps += len(before)
        known += sum(value > 0 for value in found.confidence)
        values += len(given.values["fast"])
    assert right > 0.7 * steps
    assert known > 0.8 * values


@pytest.mark.parametrize("seed", range(30))
def test_any_other_program_gives_a_hint_that_fits(seed: int) -> None:
    rng = random.Random(seed)
    problem, earlier = (random_problem(rng) for _ in range(2))
    given = hints.of_plan(earlier, random_plan(earlier, rng))
    check_hint(problem, transferred(problem, earlier, given), VALUES)
    matched = [step for step in matched_steps(problem, earlier) if step >= 0]
    assert len(matched) == len({*matched})


def test_a_hint_for_something_else_is_refused() -> None:
    rng = random.Random(1)
    problem, other = (random_problem(rng) for _ in range(2))
    with pytest.raises(InputError, match="problem"):
        transferred(problem, problem, hints.of_plan(other, random_plan(other, rng)))
