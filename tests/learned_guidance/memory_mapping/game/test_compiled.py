"""The compiled game against the plain reference: the same in every part of every state, on thousands of games."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.lib.memory_mapping.plain_game import State, reset
from stowplan.frontends.read import read
from stowplan.learned_guidance.memory_mapping.game import game
from stowplan.learned_guidance.memory_mapping.game.compiled import layout
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame, CompiledState
from stowplan.learned_guidance.memory_mapping.game.game import Action, Placing
from stowplan.models.memory_mapping.problem import Loop, Problem
from stowplan.models.memory_mapping.verify import verify
from tests.learned_guidance.memory_mapping.programs import program
from tests.models.memory_mapping.cases import random_problem, with_in_flight

COPY, NOCOPY, DROP = Action.COPY, Action.NOCOPY, Action.DROP


def assert_equal(state: CompiledState, reference: State) -> None:
    """Everything that moves or an encoder can see is the same."""
    legal = reference.legal_actions()
    assert tuple(np.flatnonzero(state.legal)) == legal
    assert (state.position, state.return_ps, state.resets) == (reference.position, reference.return_ps, reference.resets)
    assert (state.is_over, state.is_lost) == (reference.is_over, reference.is_lost)
    for action in Action:
        place = reference.placement(action) if action in legal else None
        assert tuple(state.placements[action]) == ((-1, -1, -1) if place is None else (place.start, place.end, place.offset))
    assert state.residencies == reference.residencies
    assert state.copies == reference.copies
    assert state.fast_uses == [use for use, is_fast in enumerate(reference.fast) if is_fast]
    at = state.game.tables.program[0]
    slots = state.data[at.at_slots : at.at_latencies].reshape(-1, layout.SLOT)
    assert slots[:, layout.SUPPLY_PS].tolist() == reference.channel.supply_ps
    covered = [sum(first <= slot < last for first, last in reference.channel.windows) for slot in range(at.slots)]
    assert (slots[:, layout.MARKS] // layout.COVERED).tolist() == covered
    assert set(np.flatnonzero(state.data[at.at_dropped : at.at_rows])) == reference.dropped
    for number, tensor in enumerate(reference.tensors):
        latest, slow_from, flags = state.data[at.at_tensors + layout.TENSOR * number :][: layout.TENSOR]
        assert latest == (-1 if tensor.latest is None else tensor.latest)
        assert slow_from == (layout.NEVER if tensor.slow_from is None else tensor.slow_from)
        assert flags == (
            layout.HELD * tensor.is_held
            + layout.INPUT_FAST * tensor.input_fast
            + layout.BINDS * tensor.binds
            + layout.GROUP_FAST * (tensor.group_fast is True)
            + layout.GROUP_SLOW * (tensor.group_fast is False)
        )


def play_both(
    problem: Problem, rng: random.Random, manner: str, *, strict: bool, drop_backup: bool, placing: Placing = "lowest"
) -> State:
    """Play the same game in both, equal after every step; the reference at its end."""
    reference = reset(problem, strict_copy_windows=strict, drop_backup=drop_backup, placing=placing)
    state = CompiledGame(problem, strict_copy_windows=strict, drop_backup=drop_backup, placing=placing).reset()
    assert_equal(state, reference)
    while not reference.is_over:
        legal = reference.legal_actions()
        fast = [action for action in legal if action != DROP]
        action = rng.choice(fast if manner == "place" and fast else legal)
        resets, benefit = reference.resets, state.benefit_ps
        reward = reference.step(action)
        assert state.step(action) == reward
        if action != DROP and reference.resets == resets and not reference.is_lost:
            assert benefit == reward
        assert_equal(state, reference)
    assert state.plan() == reference.plan()
    found = verify(problem, state.plan())
    assert found.ok
    assert found.figures["stall_ps"] == 0
    assert found.objective == problem.all_slow_ps - state.return_ps
    return reference


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), strict=st.booleans(), drop_backup=st.booleans())
def test_equals_the_reference(seed: int, strict: bool, drop_backup: bool) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, steps=rng.randint(1, 20), tensors=rng.randint(1, 8))
    for manner in ("random", "place"):
        play_both(problem, rng, manner, strict=strict, drop_backup=drop_backup)


@pytest.mark.parametrize("strict", [False, True])
def test_equals_the_reference_with_asynchronous_operations(strict: bool) -> None:
    for seed in range(60):
        rng = random.Random(f"in flight {seed}")
        problem = with_in_flight(random_problem(rng, steps=rng.randint(3, 15), tensors=rng.randint(1, 6)), rng)
        play_both(problem, rng, "place", strict=strict, drop_backup=seed % 2 == 0)


@pytest.mark.parametrize("rule", ["in_place", "uniform"])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("drop_backup", [False, True])
def test_equals_the_reference_in_what_is_rare(rule: str, strict: bool, drop_backup: bool) -> None:
    """Little memory, little time to copy, updates in place and loops: resets, lost games, and tables are all there."""
    rng = random.Random(f"{rule} {strict} {drop_backup}")
    resets = lost = copies = tables = loops = 0
    for _ in range(40):
        problem = random_problem(rng, steps=rng.randint(6, 20), tensors=rng.randint(2, 6), alias_rule=rule)  # type: ignore[arg-type]
        end = play_both(problem, rng, "place", strict=strict, drop_backup=drop_backup)
        resets += end.resets
        lost += end.is_lost
        copies += len(end.copies)
        tables += any(step.table is not None for step in problem.steps)
        loops += bool(problem.loops)
    assert tables > 5
    assert loops > 2
    assert copies > 5
    if drop_backup:
        assert resets > 2
        assert lost == 0
    else:
        assert lost > 2
        assert resets == 0


def test_equals_the_reference_in_larger_programs() -> None:
    rng = random.Random("larger")
    for loops in (0, 2):
        problem = random_problem(rng, steps=70, tensors=20, loops=loops)
        play_both(problem, rng, "random", strict=False, drop_backup=True)
        play_both(problem, rng, "place", strict=False, drop_backup=True)


@pytest.mark.parametrize("alignment", [1, 3])
def test_equals_the_reference_where_buffers_come_from_both_ends(monkeypatch: pytest.MonkeyPatch, alignment: int) -> None:
    monkeypatch.setattr(game, "LARGE", 2)
    rng = random.Random(f"ends {alignment}")
    highest = 0
    for _ in range(150):
        problem = random_problem(rng, steps=rng.randint(1, 20), tensors=rng.randint(1, 8))
        problem = msgspec.structs.replace(problem, alignment=alignment)
        end = play_both(problem, rng, "place", strict=False, drop_backup=True, placing="two_ended")
        highest += sum(item.offset > 0 and problem.tensors[item.tensor].size < end.game.large_bytes for item in end.residencies)
    assert highest > 50


# Programs made to be infeasible


def infeasible_programs() -> dict[str, Problem]:
    return {
        # One step is too short to copy a out after its update.
        "no time": program(["", "c", "", "a >a", "b"], {"a": 3, "b": 1, "c": 1}, inputs="abc", outputs="a"),
        # A uniform group cannot go on, after another tensor was placed.
        "group": program(
            ["", "", "g", "", "b", "g"], {"g": 4, "b": 2}, inputs="gb", members="g", alias_rule="uniform", capacity=4
        ),
        # Several groups, each given up in turn.
        "groups": program(
            ["", "", "g h", "", "b", "g", "h >h", "c", "g", "h"],
            {"g": 4, "h": 2, "b": 2, "c": 3},
            inputs="gbch",
            members="gh",
            alias_rule="uniform",
            capacity=6,
        ),
        # The loop that updates a is the program's end.
        "loop": program(
            ["b", "", "", "a b", "a >a"], {"a": 3, "b": 2}, inputs="ab", outputs="a", loops=(Loop(3, 5, 5),), capacity=5
        ),
    }


@pytest.mark.parametrize("name", infeasible_programs())
def test_infeasible_states(name: str) -> None:
    problem = infeasible_programs()[name]
    rng = random.Random(name)
    resets = lost = 0
    for _ in range(12):
        resets += play_both(problem, rng, "place", strict=False, drop_backup=True).resets
        lost += play_both(problem, rng, "place", strict=False, drop_backup=False).is_lost
    assert resets > 0
    assert lost > 0


def test_a_program_without_moves_is_over_at_once() -> None:
    state = CompiledGame(program(["", ""], {"a": 1}, inputs="a")).reset()
    assert state.is_over
    assert not state.legal.any()
    assert (state.benefit_ps, state.placements.tolist()) == (0, [[-1] * 3] * 3)
    assert state.plan().residencies == ()


# States


def test_a_copy_goes_its_own_way() -> None:
    rng = random.Random("copies")
    for _ in range(20):
        state = CompiledGame(random_problem(rng)).reset()
        while not state.is_over:
            before = state.data.copy()
            legal = np.flatnonzero(state.legal)
            for action in legal:
                assert state.copy().step(action) == state.copy().step(action)
            assert np.array_equal(state.data, before)
            state.step(rng.choice(legal))


def test_replays_what_was_played() -> None:
    """All actions, also those that Drop-backup took back, lead to the same state; those that are left lead to the same plan."""
    rng = random.Random("replay")
    resets = 0
    for _ in range(60):
        game = CompiledGame(random_problem(rng, steps=16, tensors=5, tables=False))
        state = game.reset()
        played = []
        while not state.is_over:
            legal = list(np.flatnonzero(state.legal))
            played.append(rng.choice([action for action in legal if action != DROP] or legal))
            state.step(played[-1])
        again, straight = game.reset(), game.reset()
        assert again.play(played) == straight.play(state.actions) == state.return_ps
        assert np.array_equal(again.data, state.data)
        assert straight.plan() == state.plan()
        assert straight.resets == 0
        assert len(straight.actions) == len(game.moves)
        resets += state.resets
    assert resets > 5


def test_misuse_is_refused() -> None:
    state = CompiledGame(program(["", "a", "a"], {"a": 1}, inputs="a")).reset()
    before = state.data.copy()
    with pytest.raises(ValueError, match="NOCOPY is not legal in move 0"):
        state.step(NOCOPY)
    with pytest.raises(ValueError, match="action 3 is not legal in move 0"):
        state.step(3)
    with pytest.raises(ValueError, match="2 moves are not made"):
        state.plan()
    assert np.array_equal(state.data, before)
    for wrong in (NOCOPY, 3, -1):
        with pytest.raises(ValueError, match=f"action {int(wrong)}, number 1 of the list, is not legal in move 1"):
            state.copy().play([DROP, wrong])
    state.play([DROP, DROP])
    with pytest.raises(ValueError, match="number 0 of the list, is not legal in move 2"):
        state.play([DROP])


def test_the_unit_of_returns() -> None:
    problem = program(["", "", "", "a", "b"], {"a": 2, "b": 2}, inputs="ab")
    assert CompiledGame(problem).unit_ps == 200
    # Nothing can be placed: an eighth of what all fast would save.
    assert CompiledGame(program(["a b"], {"a": 2, "b": 2}, inputs="ab")).unit_ps == 25
    assert CompiledGame(program([""], {"a": 2}, inputs="a")).unit_ps == 1


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["alexnet_train_b32", "gpt_decode_loop_b8", "lstm_scan_train_b32"])
def test_compiled_programs(corpus: Path, name: str) -> None:
    problem = read(corpus / "tpu_v4" / f"{name}.hlo.txt.gz", target="tpu-v4")
    assert isinstance(problem, Problem)
    rng = random.Random(name)
    for strict in (False, True):
        game = CompiledGame(problem, strict_copy_windows=strict)
        for manner in ("random", "place"):
            reference = reset(problem, strict_copy_windows=strict)
            state = game.reset()
            while not reference.is_over:
                legal = reference.legal_actions()
                assert tuple(np.flatnonzero(state.legal)) == legal
                placing = [action for action in legal if action != DROP]
                action = rng.choice(placing if manner == "place" and placing else legal)
                assert state.step(action) == reference.step(action)
            assert_equal(state, reference)
            assert state.plan() == reference.plan()
            assert verify(problem, state.plan()).ok
