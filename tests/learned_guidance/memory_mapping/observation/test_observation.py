"""Observations: drawn and described a second time in plain Python on random games, and by hand on a small program."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.lib.memory_mapping.plain_game import PlainGame, State
from stowplan.errors import UsageError
from stowplan.frontends.read import read
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame, CompiledState
from stowplan.learned_guidance.memory_mapping.game.game import Action
from stowplan.learned_guidance.memory_mapping.muzero.config import TrainingConfig
from stowplan.learned_guidance.memory_mapping.observation.layout import (
    ActionFeature,
    BufferFeature,
    GlobalFeature,
    ObservationConfig,
    SupplyFeature,
)
from stowplan.learned_guidance.memory_mapping.observation.observer import Observations, Observer, empty_observations
from tests.learned_guidance.memory_mapping.programs import program
from tests.models.memory_mapping.cases import random_problem

SMALL = ObservationConfig(
    future_buffers=2, same_tensor_buffers=2, map_rows=7, map_columns=6, profile_bins=9, supply_slots=5, id_buckets=4
)


def near(steps: float) -> float:
    return math.copysign(math.log2(1 + abs(steps)) / 8, steps)


def ratio(x: float) -> float:
    return math.log2(1 + x) / 4


def observed(state: CompiledState, config: ObservationConfig = SMALL) -> Observations:
    out = empty_observations(config, 1)
    Observer(state.game, config).observe(state, out, 0)
    return out


def overlap(low: Fraction | int, high: Fraction | int, start: Fraction | int, end: Fraction | int) -> Fraction:
    return Fraction(max(0, min(high, end) - max(low, start)))


def drawn(reference: State, config: ObservationConfig) -> tuple[list[list[Fraction]], list[Fraction]]:
    """Map and profile, cell by cell: which part of it lies in residencies."""
    problem = reference.game.problem
    row_bytes = Fraction(problem.capacity, config.map_rows)
    bin_bytes = Fraction(problem.capacity, config.profile_bins)
    width, target = config.steps_per_column, reference.move.start
    sizes = [problem.tensors[item.tensor].size for item in reference.residencies]
    image = [
        [
            sum(
                (
                    overlap(row * row_bytes, (row + 1) * row_bytes, item.offset, item.offset + size)
                    * overlap(first, first + width, item.start, item.end)
                    for item, size in zip(reference.residencies, sizes, strict=True)
                ),
                Fraction(0),
            )
            / (row_bytes * width)
            for column in range(config.map_columns)
            for first in [target + (column - config.map_columns // 2) * width]
        ]
        for row in range(config.map_rows)
    ]
    profile = [
        sum(
            (
                overlap(place * bin_bytes, (place + 1) * bin_bytes, item.offset, item.offset + size)
                for item, size in zip(reference.residencies, sizes, strict=True)
                if item.start <= target < item.end
            ),
            Fraction(0),
        )
        / bin_bytes
        for place in range(config.profile_bins)
    ]
    return image, profile


def assert_shaded(found: np.ndarray, parts: list[Fraction], binary: bool) -> None:
    for value, part in zip(found.tolist(), parts, strict=True):
        if binary or part == 0:
            assert value == (255 if part else 0)
        else:
            # Up to rounding, but never as if nothing were there.
            assert value >= 1
            assert abs(value - 255 * part) <= 1


def demand_of(reference: State) -> int:
    tensor = reference.game.problem.tensors[reference.move.tensor]
    return tensor.copy_out_ps if reference.move.is_output else tensor.copy_in_ps


def mean_supply(reference: State) -> float:
    supply = reference.game.slots.supply_ps
    return max(sum(supply) / len(supply), 1)


def assert_supply(found: np.ndarray, reference: State) -> None:
    """Slots around the target time, from the reference's channel and residencies."""
    problem, slots, channel = reference.game.problem, reference.game.slots, reference.channel
    move, bounds = reference.move, slots.boundaries
    target = next(slot for slot in range(len(bounds) - 1) if bounds[slot] <= move.start < bounds[slot + 1])
    demand, mean = demand_of(reference), mean_supply(reference)
    for place, row in enumerate(found):
        slot = target + place - len(found) // 2
        if not 0 <= slot < len(slots.supply_ps):
            assert not row.any()
            continue
        left, own = channel.supply_ps[slot], slots.supply_ps[slot]
        reach = sum(channel.supply_ps[slot:target] if slot < target else channel.supply_ps[target : slot + 1])
        in_use = sum(problem.tensors[r.tensor].size for r in reference.residencies if r.start <= bounds[slot] < r.end)
        assert row[SupplyFeature.IS_INSIDE] == 1
        assert row[SupplyFeature.LEFT] == pytest.approx(ratio(left / mean), abs=1e-6)
        if demand:
            assert row[SupplyFeature.LEFT_DEMAND] == pytest.approx(ratio(left / demand), abs=1e-6)
            assert row[SupplyFeature.REACH] == pytest.approx(min(reach / demand, 1), abs=1e-6)
        assert row[SupplyFeature.LEFT_SHARE] == pytest.approx(left / own if own else 0, abs=1e-6)
        assert row[SupplyFeature.IS_WINDOW] == any(first <= slot < last for first, last in channel.windows)
        assert row[SupplyFeature.IN_USE] == pytest.approx(in_use / problem.capacity, abs=1e-6)


def assert_actions(found: np.ndarray, reference: State) -> None:
    problem, move = reference.game.problem, reference.move
    legal = reference.legal_actions()
    for action in Action:
        row = found[action]
        assert row[ActionFeature.IS_LEGAL] == (action in legal)
        place = reference.placement(action)
        if place is None or action not in legal:
            assert not row[1:].any()
            continue
        size = problem.tensors[move.tensor].size
        assert row[ActionFeature.OCCUPIES] == (place.end > place.start)
        assert row[ActionFeature.START] == pytest.approx(near(place.start - move.start), abs=1e-6)
        assert row[ActionFeature.END] == pytest.approx(near(place.end - move.start), abs=1e-6)
        assert row[ActionFeature.OFFSET] == pytest.approx(place.offset / problem.capacity, abs=1e-6)
        assert row[ActionFeature.TOP] == pytest.approx((place.offset + size) / problem.capacity, abs=1e-6)
        area = size * (place.end - place.start) / problem.capacity
        assert row[ActionFeature.AREA] == pytest.approx(ratio(area), abs=1e-6)
        demand = demand_of(reference) if action == Action.COPY else 0
        assert row[ActionFeature.SUPPLY] == pytest.approx(ratio(demand / mean_supply(reference)), abs=1e-6)


def assert_buffers(found: np.ndarray, reference: State, config: ObservationConfig, unit: int) -> None:
    """Which buffers are described, and what the state has of their tensors."""
    moves, at = reference.game.moves, reference.position
    later = [n for n in range(at + 1, len(moves)) if moves[n].tensor == moves[at].tensor]
    numbers = [n if n < len(moves) else None for n in range(at, at + 1 + config.future_buffers)]
    numbers += [later[n] if n < len(later) else None for n in range(config.same_tensor_buffers)]
    for row, number in zip(found, numbers, strict=True):
        if number is None:
            assert not row.any()
            continue
        move, tensor = moves[number], reference.tensors[moves[number].tensor]
        problem = reference.game.problem
        size = problem.tensors[move.tensor].size
        home = None if tensor.latest is None or not tensor.is_held else reference.residencies[tensor.latest]
        steps = {reference.game.problem.step_of_use[use] for use in move.uses}
        fast = [each or use in move.uses for use, each in enumerate(reference.fast)]
        gain = sum(reference.game.latency_ps(s, reference.fast) - reference.game.latency_ps(s, fast) for s in steps)
        assert row[BufferFeature.IS_PRESENT] == 1
        assert row[BufferFeature.SIZE] == pytest.approx(min(size / problem.capacity, 2))
        assert row[BufferFeature.IS_OUTPUT] == move.is_output
        assert row[BufferFeature.TARGET_TIME] == pytest.approx(near(move.start - moves[at].start), abs=1e-6)
        assert row[BufferFeature.BENEFIT_SHARE] == pytest.approx(gain / unit, abs=1e-5)
        assert row[BufferFeature.SAME_TENSOR] == (move.tensor == moves[at].tensor)
        assert row[BufferFeature.SAME_ALIAS] == (move.alias_group == moves[at].alias_group >= 0)
        assert row[BufferFeature.IS_HELD] == tensor.is_held
        assert row[BufferFeature.HOME_OFFSET] == pytest.approx(home.offset / problem.capacity if home else 0)
        assert row[BufferFeature.HOME_END] == pytest.approx(near(home.end - move.start) if home else 0, abs=1e-6)
        assert row[BufferFeature.IS_COVERED] == (home is not None and home.end >= move.end)
        assert row[BufferFeature.HAS_SLOW] == (tensor.slow_from is not None)
        assert row[BufferFeature.IS_SLOW_VALID] == (tensor.slow_from is not None and tensor.slow_from <= move.start)
        assert row[BufferFeature.IS_GROUP_FAST] == (tensor.group_fast is True)
        assert row[BufferFeature.IS_GROUP_SLOW] == (tensor.group_fast is False)
        assert row[BufferFeature.IS_DROPPED] == (move.alias_group in reference.dropped)
        assert row[BufferFeature.TENSOR_ID] == 1 + move.tensor % (config.id_buckets - 1)
        assert (row[BufferFeature.ALIAS_ID] == 0) == (move.alias_group < 0)


@pytest.mark.slow
@settings(max_examples=120)
@given(
    seed=st.integers(0, 2**32 - 1),
    strict=st.booleans(),
    binary=st.booleans(),
    sizes=st.tuples(*[st.integers(1, 9)] * 5),
    width=st.integers(1, 3),
)
def test_shows_what_the_reference_has(seed: int, strict: bool, binary: bool, sizes: tuple[int, ...], width: int) -> None:
    rows, columns, bins, slots, buffers = sizes
    config = ObservationConfig(
        future_buffers=buffers - 1,
        same_tensor_buffers=buffers // 2,
        id_buckets=1 + buffers,
        map_rows=rows,
        map_columns=columns,
        steps_per_column=width,
        binary_map=binary,
        profile_bins=bins,
        supply_slots=slots,
    )
    rng = random.Random(seed)
    problem = random_problem(rng, steps=rng.randint(1, 16), tensors=rng.randint(1, 6))
    reference = PlainGame(problem, strict_copy_windows=strict).reset()
    state = CompiledGame(problem, strict_copy_windows=strict).reset()
    if reference.is_over:
        return
    observer = Observer(state.game, config)
    out = empty_observations(config, 3)
    unit = state.game.unit_ps
    while not reference.is_over:
        for array in out:
            array[1] = 99  # Nothing of the last state may be left.
        observer.observe(state, out, 1)
        image, profile = drawn(reference, config)
        for found, parts in zip(out.memory_map[1], image, strict=True):
            assert_shaded(found, parts, binary)
        assert_shaded(out.profile[1], profile, binary)
        assert_supply(out.supply[1], reference)
        assert_actions(out.actions[1], reference)
        assert_buffers(out.buffers[1], reference, config, unit)
        features = out.globals[1]
        assert features[GlobalFeature.PROGRESS] == pytest.approx(reference.position / len(reference.game.moves))
        assert features[GlobalFeature.RETURN] == pytest.approx(reference.return_ps / unit, abs=1e-5)
        assert features[GlobalFeature.RESETS] == pytest.approx(ratio(reference.resets))
        # Placing more than a random player does fills memory, and leads to resets.
        action = rng.choice(reference.legal_actions()[:2])
        reference.step(action)
        state.step(action)
    for array in out:
        assert not array[[0, 2]].any()
        assert np.isfinite(array.astype(float)).all()


def start() -> CompiledState:
    """Seven moves: a (read at 0), b (written), b (read at 1), c (written), a (read at 2), c (read), d (written)."""
    sizes = {"a": 40, "b": 20, "c": 20, "d": 10}
    return CompiledGame(program(["a >b", "b >c", "a c >d"], sizes, inputs="a", outputs="d")).reset()


def test_static_features_by_hand() -> None:
    buffers = observed(start()).buffers[0]
    a, b, b_again, a_again, nothing = buffers
    assert a[BufferFeature.SIZE] == pytest.approx(0.4)
    assert a[BufferFeature.LOG_SIZE] == pytest.approx(math.log(41) / math.log(101))
    assert [each[BufferFeature.IS_OUTPUT] for each in buffers] == [0, 1, 0, 0, 0]
    assert [each[BufferFeature.DEFINES] for each in buffers] == [0, 1, 0, 0, 0]
    assert [each[BufferFeature.IS_PROGRAM_INPUT] for each in buffers] == [1, 0, 0, 1, 0]
    assert [each[BufferFeature.SAME_TENSOR] for each in buffers] == [1, 0, 0, 1, 0]
    assert [each[BufferFeature.TENSOR_ID] for each in buffers] == [1, 2, 2, 1, 0]
    assert not nothing.any()
    # A slot has 10 ps; copies take 5 ps a byte.
    assert a[BufferFeature.DEMAND] == pytest.approx(ratio(20))
    assert b[BufferFeature.DEMAND] == pytest.approx(ratio(10))
    # Every use saves 100 ps; the greedy game keeps b and c, four uses.
    assert a[BufferFeature.BENEFIT] == a[BufferFeature.FIRST_BENEFIT] == pytest.approx(ratio(1))
    assert a[BufferFeature.BENEFIT_SHARE] == pytest.approx(1 / 4)
    assert a[BufferFeature.BENEFIT_RANK] == pytest.approx(1 / 2)
    # Bytes of all moves: 40 + 20 + 20 + 20 + 40 + 20 + 10.
    assert a[BufferFeature.BYTE_BENEFIT] == pytest.approx(ratio(100 / 40 / (700 / 170)))
    # Bytes times steps: a 40, b 20 * 2, b 20 * 1 after step 0, c the same, a 40 * 2 after step 0, d 10.
    areas = [40, 40, 20, 40, 80, 20, 10]
    density = 700 / sum(areas)
    assert b[BufferFeature.DENSITY] == pytest.approx(ratio(100 / 40 / density))
    assert a_again[BufferFeature.DENSITY] == pytest.approx(ratio(100 / 80 / density))
    assert a_again[BufferFeature.DENSITY_RANK] == 0
    assert b_again[BufferFeature.DENSITY_RANK] == pytest.approx((4 + 5) / 2 / 6)
    # a is there from the start to step 2; b from step 0 to step 1.
    assert a[BufferFeature.LIVE_BEFORE] == 0
    assert a[BufferFeature.LIVE_AFTER] == pytest.approx(near(3))
    assert b[BufferFeature.LIVE_AFTER] == pytest.approx(near(2))
    assert b_again[BufferFeature.LIVE_BEFORE] == pytest.approx(near(1))
    assert [a[BufferFeature.HAS_PREVIOUS], a[BufferFeature.HAS_NEXT]] == [0, 1]
    assert a[BufferFeature.NEXT] == a_again[BufferFeature.PREVIOUS] == pytest.approx(near(2))
    assert [a_again[BufferFeature.HAS_PREVIOUS], a_again[BufferFeature.HAS_NEXT]] == [1, 0]
    assert a[BufferFeature.VISITS_LEFT] == pytest.approx(ratio(1))
    # Between the reads of a there is step 1; before the first there is nothing. After b's write there are steps 1 and 2.
    assert a_again[BufferFeature.SLACK] == pytest.approx(math.log2(10 / 200) / 8)
    assert a[BufferFeature.SLACK] == -1
    assert b[BufferFeature.SLACK] == pytest.approx(math.log2(20 / 100) / 8)
    assert [each[BufferFeature.TARGET_TIME] for each in buffers] == pytest.approx([0, 0, near(1), near(2), 0])


def test_globals_and_supply_by_hand() -> None:
    found = observed(start())
    features = found.globals[0]
    # Bytes between first and last visit: a and b, a and b and c, a and c and d.
    pressure = [0.6, 0.8, 0.7]
    assert features[GlobalFeature.PRESSURE] == pytest.approx(ratio(0.6))
    assert features[GlobalFeature.MEAN_PRESSURE] == pytest.approx(ratio(0.7))
    assert features[GlobalFeature.PEAK_PRESSURE] == pytest.approx(ratio(0.8))
    assert features[GlobalFeature.SPAN] == pytest.approx(ratio(7 / 4))
    assert features[GlobalFeature.BENEFIT_LEFT] == pytest.approx(ratio(7 / 4))
    assert features[GlobalFeature.DEMAND] == pytest.approx(ratio((200 + 100 + 200 + 100) / 30))
    assert features[GlobalFeature.MOVES] == features[GlobalFeature.LEFT] == pytest.approx(math.log2(8) / 16)
    assert features[GlobalFeature.STEPS] == pytest.approx(math.log2(4) / 16)
    assert features[GlobalFeature.TENSORS] == pytest.approx(math.log2(5) / 16)
    assert [features[GlobalFeature.IS_STRICT], features[GlobalFeature.HAS_BACKUP]] == [0, 1]
    # Two places before the target time's slot and two after it.
    assert found.supply[0, :, SupplyFeature.IS_INSIDE].tolist() == [0, 0, 1, 1, 1]
    assert found.supply[0, 2:, SupplyFeature.PRESSURE] == pytest.approx([ratio(x) for x in pressure])
    assert found.supply[0, 2:, SupplyFeature.BENEFIT] == pytest.approx([ratio(2), ratio(2), ratio(3)])
    assert found.supply[0, 2:, SupplyFeature.LEFT_DEMAND] == pytest.approx([ratio(10 / 200)] * 3)
    assert found.supply[0, 2:, SupplyFeature.REACH] == pytest.approx([10 / 200, 20 / 200, 30 / 200])


def test_a_state_by_hand() -> None:
    state = start()
    state.play([Action.DROP, Action.NOCOPY])  # b lies in [0, 20) during steps 0 and 1.
    found = observed(state)
    b = found.buffers[0, 0]
    assert [b[BufferFeature.IS_HELD], b[BufferFeature.IS_COVERED], b[BufferFeature.HOME_OFFSET]] == [1, 1, 0]
    assert b[BufferFeature.HOME_END] == pytest.approx(near(1))
    assert [b[BufferFeature.HAS_SLOW], b[BufferFeature.IS_SLOW_VALID]] == [0, 0]
    assert found.actions[0, :, ActionFeature.IS_LEGAL].tolist() == [0, 1, 0]
    free = found.actions[0, Action.NOCOPY]
    assert [free[ActionFeature.OCCUPIES], free[ActionFeature.AREA]] == [0, 0]
    assert free[ActionFeature.TOP] == pytest.approx(0.2)
    assert free[ActionFeature.END_COLUMN] == pytest.approx(1 / 3)
    assert free[ActionFeature.REWARD_SHARE] == pytest.approx(1 / 4)
    features = found.globals[0]
    assert features[GlobalFeature.PROGRESS] == pytest.approx(2 / 7)
    assert features[GlobalFeature.RETURN] == pytest.approx(1 / 4)
    assert features[GlobalFeature.BENEFIT_LEFT] == pytest.approx(ratio(5 / 4))
    assert features[GlobalFeature.IN_USE] == pytest.approx(0.2)
    # Rows of 100 / 7 bytes; columns are steps -2 to 3, the target time in the middle.
    shade = round(255 * (20 - 100 / 7) / (100 / 7))
    assert found.memory_map[0, 0].tolist() == [0, 0, 255, 255, 0, 0]
    assert found.memory_map[0, 1].tolist() == [0, 0, shade, shade, 0, 0]
    assert not found.memory_map[0, 2:].any()
    assert found.profile[0, :2].tolist() == [255, round(255 * 0.8)]


def test_neighbouring_states_share_an_observer() -> None:
    state = start()
    observer = Observer(state.game, SMALL)
    first, second = empty_observations(SMALL, 1), empty_observations(SMALL, 1)
    observer.observe(state, first, 0)
    later = state.copy()
    later.play([Action.DROP, Action.NOCOPY])
    observer.observe(later, second, 0)
    observer.observe(state, second, 0)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


def test_misuse_is_refused() -> None:
    state = start()
    observer, out = Observer(state.game, SMALL), empty_observations(SMALL, 2)
    with pytest.raises(IndexError, match="row 2 of 2"):
        observer.observe(state, out, 2)
    while not state.is_over:
        state.step(int(np.flatnonzero(state.legal)[0]))
    with pytest.raises(ValueError, match="the game is over"):
        observer.observe(state, out, 0)
    for name in ("map_rows", "profile_bins", "supply_slots", "steps_per_column"):
        with pytest.raises(UsageError, match=f"{name} is 0, expected 1 or more"):
            ObservationConfig(**{name: 0})
    with pytest.raises(UsageError, match="id_buckets is 1, expected 2 or more"):
        ObservationConfig(id_buckets=1)


@pytest.mark.corpus
@pytest.mark.parametrize("config", [ObservationConfig(), TrainingConfig.paper().network.observation], ids=["cpu", "paper"])
def test_a_compiled_program(corpus: Path, config: ObservationConfig) -> None:
    state = CompiledGame(read(corpus / "tpu_v4" / "alexnet_train_b32.hlo.txt.gz", target="tpu-v4")).reset()
    observer, out = Observer(state.game, config), empty_observations(config, 1)
    rng = random.Random(0)
    filled = 0.0
    while not state.is_over:
        observer.observe(state, out, 0)
        for name, array in out._asdict().items():
            if array.dtype == np.float32:
                features = array[..., : BufferFeature.TENSOR_ID] if name == "buffers" else array
                assert np.abs(features).max() < 5, name
        filled = max(filled, float(out.memory_map.mean() / 255))
        state.step(rng.choice(np.flatnonzero(state.legal)[:2].tolist()))
    assert filled > 0.3
