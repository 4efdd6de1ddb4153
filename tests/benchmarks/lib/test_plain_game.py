"""MMapGame by hand, and thousands of games whose plans the verifier accepts."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from benchmarks.lib.memory_mapping.plain_game import State, reset
from stowplan.frontends.read import read
from stowplan.learned_guidance.memory_mapping.game.game import Action
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import Loop, Piece, Problem, Step, Table
from stowplan.models.memory_mapping.verify import verify
from tests.learned_guidance.memory_mapping.programs import play, play_on, program
from tests.models.memory_mapping.cases import random_problem

COPY, NOCOPY, DROP = Action.COPY, Action.NOCOPY, Action.DROP


def finished(problem: Problem, actions: str, *, strict: bool = False) -> Plan:
    """The plan of a game, which must be valid."""
    state = reset(problem, strict_copy_windows=strict)
    rewards = play(state, actions)
    assert state.is_over
    plan = state.plan()
    assert verify(problem, plan).ok
    assert sum(rewards) == problem.all_slow_ps - plan.objective
    return plan


# Copy


def test_copy_in_starts_as_late_as_it_may() -> None:
    plan = finished(program(["", "", "", "", "a"], {"a": 3}, inputs="a"), "c")
    assert plan.residencies == (Residency(0, 2, 5, 0),)
    assert plan.copies == (Copy(0, "in", 2, 4),)
    assert plan.objective == 50


def test_copy_out_ends_as_early_as_it_may() -> None:
    plan = finished(program([">a", "", "", "", ""], {"a": 3}, outputs="a"), "c")
    assert plan.residencies == (Residency(0, 0, 3, 0),)
    assert plan.copies == (Copy(0, "out", 1, 3),)


def test_a_copy_without_time_is_illegal() -> None:
    assert reset(program(["", "a"], {"a": 3}, inputs="a")).legal_actions() == (DROP,)
    assert reset(program(["", "", "a"], {"a": 3}, inputs="a")).legal_actions() == (COPY, DROP)
    assert reset(program([">a", ""], {"a": 3}, outputs="a")).legal_actions() == (DROP,)


def test_a_second_copy_takes_the_free_stretch_before_unless_strict() -> None:
    problem = program(["", "", "", "a b"], {"a": 3, "b": 2}, inputs="ab")
    plan = finished(problem, "cc")
    # Step 1 is shared: the first copy needs half of it.
    assert plan.copies == (Copy(1, "in", 0, 2), Copy(0, "in", 1, 3))
    state = reset(problem, strict_copy_windows=True)
    play(state, "c")
    assert state.legal_actions() == (DROP,)


@pytest.mark.parametrize("strict", [False, True])
def test_a_copy_out_and_a_copy_in_share_a_step(strict: bool) -> None:
    problem = program([">a", "", "", "", "b"], {"a": 3, "b": 3}, inputs="b", outputs="a")
    plan = finished(problem, "cc", strict=strict)
    assert plan.copies == (Copy(0, "out", 1, 3), Copy(1, "in", 2, 4))
    wider = program([">a", "", "", "", "b"], {"a": 3, "b": 4}, inputs="b", outputs="a")
    state = reset(wider, strict_copy_windows=strict)
    play(state, "c")
    assert state.legal_actions() == (DROP,)


def test_a_copy_in_waits_for_the_slow_copy() -> None:
    problem = program([">a", "", "", "", "a"], {"a": 2})
    plan = finished(problem, "cc")
    assert plan.copies == (Copy(0, "out", 1, 2), Copy(0, "in", 3, 4))
    state = reset(program([">a", "", "a"], {"a": 2}))
    play(state, "c")
    # The copy out is complete right before the read: nothing is left to bring the tensor back.
    assert state.legal_actions() == (NOCOPY, DROP)


# NoCopy


def test_nocopy_of_an_output_stays_for_its_live_range() -> None:
    problem = program([">a", "a", "", "a", ">a", ""], {"a": 3})
    state = reset(problem)
    play(state, "n")
    assert state.residencies == [Residency(0, 0, 4, 0)]
    # Slow memory does not have it.
    assert state.legal_actions() == (NOCOPY,)


def test_nocopy_of_an_input_extends_the_residency_in_place() -> None:
    problem = program(["", "", "a", "b", "a"], {"a": 2, "b": 2}, inputs="ab", capacity=4)
    assert finished(problem, "ccn").residencies == (Residency(0, 1, 5, 0), Residency(1, 2, 4, 2))


def test_nocopy_needs_the_same_place_for_longer() -> None:
    problem = program(["", "", "a", "", "b", "a"], {"a": 2, "b": 2}, inputs="ab", capacity=2)
    state = reset(problem)
    play(state, "cc")
    assert state.residencies == [Residency(0, 1, 3, 0), Residency(1, 3, 5, 0)]
    assert state.legal_actions() == (DROP,)


def test_nocopy_finds_no_content_after_a_slow_write() -> None:
    state = reset(program(["", "a", ">a", "", "a"], {"a": 2}, inputs="a"))
    play(state, "cd")
    assert state.legal_actions() == (COPY, DROP)


def test_a_program_output_may_not_stay_in_fast_memory_alone() -> None:
    state = reset(program([">a", "", ""], {"a": 2}, outputs="a"))
    assert state.legal_actions() == (COPY, DROP)


# Offsets


def test_lowest_aligned_offset() -> None:
    problem = program(["", "", "", "a b", "c"], {"a": 1, "b": 2, "c": 3}, inputs="abc", capacity=8, alignment=4)
    assert [item.offset for item in finished(problem, "ccd").residencies] == [4, 0]
    state = reset(msgspec.structs.replace(problem, capacity=5))
    play(state, "c")
    assert state.placement(COPY) is None


# Rewards


def test_rewards_depend_on_what_is_fast_already() -> None:
    problem = program(["", "", "a b"], {"a": 1, "b": 1}, inputs="ab")
    step = Step("max", "test", 2, problem.steps[2].uses, table=Table((0, 1), (100, 90, 80, 10)))
    problem = msgspec.structs.replace(problem, steps=(*problem.steps[:2], step))
    assert play(reset(problem), "cc") == [20, 160]
    assert play(reset(problem), "dc") == [0, 40]


def test_rewards_may_be_losses() -> None:
    problem = program(["", "a"], {"a": 1}, inputs="a")
    step = Step("worse", "test", 1, problem.steps[1].uses, (Piece(0, (5,), (8,)),))
    assert play(reset(msgspec.structs.replace(problem, steps=(problem.steps[0], step))), "c") == [-3]


# Alias groups


def test_a_uniform_group_is_all_fast_at_one_offset() -> None:
    problem = program(["", "a", "", "", "", "a"], {"a": 2}, inputs="a", members="a", alias_rule="uniform")
    state = reset(problem)
    play(state, "c")
    assert state.legal_actions() == (COPY, NOCOPY)
    play(state, "c")
    assert {item.offset for item in state.plan().residencies} == {0}
    state = reset(problem)
    play(state, "d")
    assert state.legal_actions() == (DROP,)


def test_read_and_write_of_an_update_are_two_moves_with_one_memory() -> None:
    problem = program(["", "a >a", "", ""], {"a": 2}, inputs="a", outputs="a")
    state = reset(problem)
    play(state, "c")
    assert state.legal_actions() == (COPY,)
    play(state, "c")
    assert state.plan().copies == (Copy(0, "in", 0, 1), Copy(0, "out", 2, 3))
    state = reset(problem)
    play(state, "d")
    assert state.legal_actions() == (DROP,)


# Loops


def test_uses_of_an_outside_tensor_in_a_loop_are_one_move() -> None:
    problem = program(["", "a", "", "a", ""], {"a": 2}, inputs="a", loops=(Loop(1, 4, 5),))
    state = reset(problem)
    assert len(state.game.moves) == 1
    assert play(state, "c") == [2 * 5 * 100]
    assert state.plan().residencies == (Residency(0, 0, 4, 0),)


def test_a_tensor_updated_in_a_loop_comes_before_it_and_leaves_after_it() -> None:
    problem = program(["", "a", ">a", "", ""], {"a": 2}, inputs="a", outputs="a", loops=(Loop(1, 4, 5),))
    plan = finished(problem, "cc")
    assert plan.residencies == (Residency(0, 0, 5, 0),)
    assert plan.copies == (Copy(0, "in", 0, 1), Copy(0, "out", 4, 5))


def test_a_tensor_of_the_loop_is_never_copied() -> None:
    problem = program(["", ">a", "a", ""], {"a": 1}, loops=(Loop(1, 3, 5),))
    state = reset(problem)
    assert state.legal_actions() == (NOCOPY, DROP)
    play(state, "d")
    assert state.legal_actions() == (DROP,)


# Infeasible states


def test_without_backup_an_infeasible_state_loses_the_game() -> None:
    problem = program(["", "a >a"], {"a": 1}, inputs="a", outputs="a")
    state = reset(problem, drop_backup=False)
    # The reward takes back all that was earned.
    assert play(state, "c") == [0]
    assert state.is_lost
    assert state.is_over
    assert state.legal_actions() == ()
    assert state.plan() == Plan(
        problem=problem.digest, objective=problem.all_slow_ps, program=problem.name, target=problem.target
    )


def test_backup_keeps_what_was_earned_before() -> None:
    problem = program(["", "c", "", "a >a", "b"], {"a": 3, "b": 1, "c": 1}, inputs="abc", outputs="a")
    state = reset(problem)
    assert play(state, "c") == [100]
    # Taking a in leaves its write without an action: one step is too short to copy it out.
    assert play(state, "c") == [0]
    assert (state.resets, state.position, state.return_ps) == (1, 1, 100)
    assert state.legal_actions() == (DROP,)
    assert play(state, "ddc") == [0, 0, 100]
    assert verify(problem, state.plan()).ok


def test_backup_takes_back_moves_that_came_between() -> None:
    """A uniform group and another tensor are placed, then the group cannot go on: both are taken back, one for good."""
    problem = program(["", "", "g", "", "b", "g"], {"g": 4, "b": 2}, inputs="gb", members="g", alias_rule="uniform", capacity=4)
    state = reset(problem)
    assert play(state, "cc") == [100, -100]
    assert (state.resets, state.position, state.return_ps) == (1, 0, 0)
    assert state.legal_actions() == (DROP,)
    assert play(state, "dcd") == [0, 100, 0]
    assert verify(problem, state.plan()).ok


def test_where_nothing_binds_dropping_is_a_way_out() -> None:
    rng = random.Random("ways out")
    free = 0
    for _ in range(150):
        state = reset(random_problem(rng), drop_backup=False)
        while not state.is_over:
            if not any(tensor.binds for tensor in state.tensors):
                other = state.copy()
                while not other.is_over:
                    other.step(DROP if DROP in other.legal_actions() else NOCOPY)
                assert not other.is_lost
                free += 1
            state.step(rng.choice(state.legal_actions()))
    assert free > 300


# State


def test_a_copy_goes_its_own_way() -> None:
    rng = random.Random("copies")
    for _ in range(40):
        state = reset(random_problem(rng))
        while not state.is_over:
            before = (state.position, state.return_ps, state.legal_actions(), state.fast[:], state.residencies[:])
            for action in state.legal_actions():
                other = state.copy()
                reward = other.step(action)
                assert reward == state.copy().step(action)
            assert before == (state.position, state.return_ps, state.legal_actions(), state.fast, state.residencies)
            state.step(rng.choice(state.legal_actions()))


def test_misuse_is_refused() -> None:
    state = reset(program(["", "a"], {"a": 1}, inputs="a"))
    with pytest.raises(ValueError, match="NOCOPY is not legal in move 0"):
        state.step(NOCOPY)
    with pytest.raises(ValueError, match="1 moves are not made"):
        state.plan()


# All games


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("manner", ["random", "greedy", "place"])
def test_every_game_is_a_valid_plan_with_the_return_it_says(manner: str, strict: bool) -> None:
    rng = random.Random(f"games {manner} {strict}")
    copies = resets = lost = 0
    for number in range(150):
        problem = random_problem(rng, steps=rng.randint(1, 14), tensors=rng.randint(1, 8))
        for drop_backup in (True, False):
            state = reset(problem, strict_copy_windows=strict, drop_backup=drop_backup)
            total = play_on(state, rng, manner)
            plan = state.plan()
            found = verify(problem, plan)
            assert found.ok, (number, found)
            assert found.figures["stall_ps"] == 0
            assert total == state.return_ps == problem.all_slow_ps - plan.objective
            if strict:
                assert_copies_meet_their_uses(state)
            copies += len(plan.copies)
            resets += state.resets
            lost += state.is_lost
            assert state.resets <= len({move.alias_group for move in state.game.moves} - {-1})
    assert copies > 100
    assert manner != "place" or (resets > 5 and lost > 5)


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["alexnet_train_b32", "lstm_scan_train_b32"])
def test_games_on_compiled_programs(corpus: Path, name: str) -> None:
    problem = read(corpus / "tpu_v4" / f"{name}.hlo.txt.gz", target="tpu-v4")
    assert isinstance(problem, Problem)
    returns = []
    for strict in (True, False):
        for manner in ("random", "greedy"):
            state = reset(problem, strict_copy_windows=strict)
            total = play_on(state, random.Random(name), manner)
            assert verify(problem, state.plan()).ok
            assert total == problem.all_slow_ps - state.plan().objective
            returns.append(total)
    assert returns[1] > returns[0] > 0
    assert returns[3] > returns[2] > 0


def assert_copies_meet_their_uses(state: State) -> None:
    """Strict windows: a copy-in ends where a visit begins, a copy-out starts where one ends."""
    starts = {(move.tensor, move.start) for move in state.game.moves}
    ends = {(move.tensor, move.end) for move in state.game.moves if move.is_output}
    for copy in state.copies:
        assert (copy.tensor, copy.end) in starts if copy.direction == "in" else (copy.tensor, copy.start) in ends


def test_every_use_belongs_to_one_move_in_order() -> None:
    rng = random.Random("moves")
    for _ in range(200):
        problem = random_problem(rng)
        moves = reset(problem).game.moves
        assert sorted(use for move in moves for use in move.uses) == list(range(problem.use_count))
        assert [move.start for move in moves] == sorted(move.start for move in moves)
        if not problem.loops:
            assert all(len(move.uses) == 1 and move.end == move.start + 1 for move in moves)
