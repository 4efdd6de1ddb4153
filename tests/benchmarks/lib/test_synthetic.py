"""Random programs look like programs: of the length asked for, each form with what is typical of it, and worth playing."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from benchmarks.lib.memory_mapping.synthetic import FORMS, Form, synthetic
from stowplan.kernel.kind import kind_of
from stowplan.learned_guidance.memory_mapping.game.game import Game
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.memory_mapping.verify import verify


@pytest.mark.parametrize("form", FORMS)
def test_a_form_has_the_moves_asked_for_and_much_to_gain(form: Form) -> None:
    rng = np.random.default_rng(5)
    for moves in (100, 200, 300):
        for _ in range(8):
            problem = synthetic(rng, moves=moves, form=form)
            assert 0.5 * moves <= len(Game(problem).moves) <= 1.6 * moves
            assert problem.all_slow_ps > 1.05 * problem.all_fast_ps
            assert problem.capacity < sum(tensor.size for tensor in problem.tensors)
            assert any(tensor.is_output for tensor in problem.tensors)
            assert any(tensor.size <= problem.capacity for tensor in problem.tensors)
            assert bool(problem.loops) == (form == "recurrent")


def test_training_updates_weights_in_place() -> None:
    problem = synthetic(np.random.default_rng(3), form="training")
    updated = {use.tensor for step in problem.steps if step.opcode == "update" for use in step.uses if use.is_output}
    assert len(updated) > 4
    for number in updated:
        assert problem.tensors[number].is_input
        assert problem.tensors[number].is_output
    assert {move.is_updated for move in Game(problem).moves} == {False, True}


def test_a_loop_reads_its_weights_from_outside() -> None:
    problem = synthetic(np.random.default_rng(3), form="recurrent")
    (loop,) = problem.loops
    inside = {use.tensor for step in problem.steps[loop.start : loop.end] for use in step.uses}
    assert any(problem.tensors[number].is_input for number in inside)
    assert {step.weight for step in problem.steps[loop.start : loop.end]} == {loop.trip_count}


def test_the_same_seed_gives_the_same_program() -> None:
    one, two, other = (synthetic(np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert one == two
    assert one.name != other.name


def test_it_can_be_written_read_and_planned() -> None:
    problem = synthetic(np.random.default_rng(1), moves=80)
    assert Problem.decode(msgspec.json.encode(problem)) == problem
    (plan,) = kind_of(problem).initial(problem).values()
    assert verify(problem, plan).ok
