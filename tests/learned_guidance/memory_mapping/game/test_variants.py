"""Windows and other variants of programs: valid, and together what the whole is."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks.lib.memory_mapping.plain_game import reset
from stowplan.errors import UsageError
from stowplan.frontends.read import read
from stowplan.learned_guidance.memory_mapping.game.game import moves_of
from stowplan.learned_guidance.memory_mapping.game.programs import (
    CAPACITIES,
    excerpt,
    peak_live_bytes,
    training_variants,
    with_capacity,
    with_copy_times,
)
from stowplan.models.memory_mapping.accesses import Boundaries
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Loop, Problem
from stowplan.models.memory_mapping.verify import verify
from tests.learned_guidance.memory_mapping.programs import play_on, program
from tests.models.memory_mapping.cases import random_problem


def cuts(problem: Problem, rng: random.Random) -> list[int]:
    """Borders of consecutive windows, outside loops."""
    free = np.flatnonzero(Boundaries(problem.horizon, problem.loops).free)
    return sorted({0, problem.horizon, *(int(rng.choice(free)) for _ in range(2))})


def joined(problem: Problem, parts: list[Plan], borders: list[int]) -> Plan:
    """Plans of consecutive windows as one plan of the whole."""
    residencies, copies, fast = [], [], []
    for plan, (start, end) in zip(parts, pairwise(borders), strict=True):
        steps = problem.steps[start:end]
        used = sorted({use.tensor for step in steps for use in step.uses})
        before = sum(len(step.uses) for step in problem.steps[:start])
        for item in plan.residencies:
            place = {"tensor": used[item.tensor], "start": item.start + start, "end": item.end + start}
            residencies.append(msgspec.structs.replace(item, **place))
        for copy in plan.copies:
            place = {"tensor": used[copy.tensor], "start": copy.start + start, "end": copy.end + start}
            copies.append(msgspec.structs.replace(copy, **place))
        fast += [use + before for use in plan.fast_uses]
    return Plan(
        problem=problem.digest,
        objective=sum(plan.objective for plan in parts),
        residencies=tuple(residencies),
        copies=tuple(copies),
        fast_uses=tuple(fast),
    )


def test_windows_together_are_the_program() -> None:
    rng = random.Random("windows")
    gains = loops = 0
    for _ in range(200):
        problem = random_problem(rng, steps=rng.randint(4, 14), tensors=rng.randint(2, 6))
        problem = msgspec.structs.replace(problem, stalls="forbidden", max_preloads=0)
        borders = cuts(problem, rng)
        windows = [excerpt(problem, start, end) for start, end in pairwise(borders)]
        assert [part.horizon for part in windows] == [end - start for start, end in pairwise(borders)]
        assert sum(part.all_slow_ps for part in windows) == problem.all_slow_ps
        assert sum(part.all_fast_ps for part in windows) == problem.all_fast_ps
        assert sum(len(part.loops) for part in windows) == len(problem.loops)
        if problem.alias_rule == "uniform":
            continue
        states = [reset(part) for part in windows]
        for state in states:
            play_on(state, rng, rng.choice(["greedy", "place"]))
        plan = joined(problem, [state.plan() for state in states], borders)
        assert verify(problem, plan).violations == ()
        gains += plan.objective < problem.all_slow_ps and len(windows) > 1
        loops += bool(problem.loops) and len(windows) > 1
    assert gains > 50
    assert loops > 20


def test_the_whole_program_is_a_window_of_itself() -> None:
    rng = random.Random("whole")
    for _ in range(50):
        problem = random_problem(rng, steps=rng.randint(4, 14), tensors=rng.randint(2, 6))
        whole = excerpt(problem, 0, problem.horizon)
        assert (whole.steps, whole.loops, whole.max_preloads) == ((*_renumbered(problem),), problem.loops, problem.max_preloads)
        moves = [msgspec.json.encode([move.uses, move.start, move.live_end]) for move in moves_of(problem)]
        assert moves == [msgspec.json.encode([move.uses, move.start, move.live_end]) for move in moves_of(whole)]


def _renumbered(problem: Problem) -> list[object]:
    used = sorted({use.tensor for step in problem.steps for use in step.uses})
    return [
        msgspec.structs.replace(
            step, uses=tuple(msgspec.structs.replace(use, tensor=used.index(use.tensor)) for use in step.uses)
        )
        for step in problem.steps
    ]


def test_inputs_and_outputs_of_a_window() -> None:
    problem = program([">a >b", "a >c", "c b >a", "a", "b >d"], {"a": 1, "b": 2, "c": 3, "d": 4}, outputs="d")
    part = excerpt(problem, 1, 3)
    assert part.name == "test[1:3]"
    # What was in a is not needed after step 1, what step 2 writes there is; c is dead after step 2.
    flags = [(tensor.name, tensor.is_input, tensor.is_output) for tensor in part.tensors]
    assert flags == [("a", True, True), ("b", True, False), ("c", False, False)]
    last = excerpt(problem, 4, 5)
    assert [(tensor.name, tensor.is_input, tensor.is_output) for tensor in last.tensors] == [
        ("b", True, False),
        ("d", False, True),
    ]


def test_loops_are_never_cut() -> None:
    problem = program(["a", "a", "a", "a", "a"], {"a": 1}, inputs="a", loops=(Loop(1, 3, 5), Loop(2, 3, 2)))
    assert excerpt(problem, 2, 4).name == "test[1:4]"
    assert excerpt(problem, 2, 4).loops == (Loop(0, 2, 5), Loop(1, 2, 2))
    assert excerpt(problem, 0, 1).loops == ()
    assert [step.weight for step in excerpt(problem, 1, 3).steps] == [5, 10]


def test_a_tensor_from_outside_stays_one() -> None:
    # In the window all uses of a lie in the loop, and nothing of it is needed before or after.
    problem = program([">a", "a", ">a", "a", ">a", "a"], {"a": 1}, loops=(Loop(2, 4, 5),))
    assert [move.end for move in moves_of(excerpt(problem, 2, 4))] == [2]
    assert [move.end for move in moves_of(problem)][2] == 4


@pytest.mark.parametrize(("start", "end"), [(-1, 2), (2, 2), (0, 9)])
def test_a_window_is_a_range_of_steps(start: int, end: int) -> None:
    with pytest.raises(UsageError, match="expected a range within 0 to 3"):
        excerpt(program(["a", "a", "a"], {"a": 1}, inputs="a"), start, end)


def test_capacity_and_copy_times() -> None:
    problem = program(["a", "a b", "b"], {"a": 3, "b": 4}, inputs="ab")
    assert peak_live_bytes(problem) == 7
    assert with_capacity(problem, 5).capacity == 5
    slower = with_copy_times(problem, 1.5)
    assert [(tensor.copy_in_ps, tensor.copy_out_ps) for tensor in slower.tensors] == [(22, 22), (30, 30)]
    assert len({problem.name, with_capacity(problem, 5).name, slower.name}) == 3
    with pytest.raises(UsageError, match="expected more than 0"):
        with_copy_times(problem, 0.0)


def test_training_variants_of_a_real_program(corpus: Path) -> None:
    problem = read(corpus / "tpu_v4" / "alexnet_train_b32.hlo.txt.gz", target="tpu-v4")
    found = list(training_variants(problem, np.random.default_rng(1), moves=120, count=12))
    again = list(training_variants(problem, np.random.default_rng(1), moves=120, count=12))
    assert found == again
    assert len(found) == 12
    assert len({variant.name for variant in found}) == 12
    for variant in found:
        moves = len(moves_of(variant))
        # Windows are whole steps.
        assert 40 <= moves <= 140
        assert problem.alignment <= variant.capacity <= problem.capacity
        assert variant.capacity == problem.capacity or variant.capacity <= CAPACITIES[1] * peak_live_bytes(variant)
        assert variant.all_fast_ps < variant.all_slow_ps
    assert {variant.capacity == problem.capacity for variant in found} == {True, False}


def test_a_short_program_is_its_own_window() -> None:
    problem = program(["a", "a b", "b"], {"a": 3, "b": 4}, inputs="ab")
    found = list(training_variants(problem, np.random.default_rng(1), moves=50, count=3))
    assert len(found) == 3
    assert {variant.steps for variant in found} == {problem.steps}


def test_nothing_to_gain_teaches_nothing() -> None:
    assert list(training_variants(program(["", ""], {}), np.random.default_rng(1), count=3)) == []
