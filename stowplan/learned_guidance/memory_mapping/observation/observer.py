"""Observations of MMap-MuZero (Wang et al. 2023, section 4.3.1): arrays with the features that its network reads.

The arrays describe buffers, the map of fast memory over time, the memory that is occupied at the time of the move, the supply
of time for copies, the possible actions, and the game as a whole. ``layout.py`` defines them, and ``compiled.py`` encodes a
state. This file computes, once for each game, the features that no move changes. It also computes the numbers by which the
encoder divides other features, for example the mean benefit of a move.

A *visit* of a tensor is all of its uses by one step. If its value enters a loop from outside or is needed after the loop, all
of its uses in the loop are one visit. A move decides whether the reads or the writes of a visit are served from fast memory;
*buffer* is the paper's word for what a move decides about. The *benefit* of a move is the time that these uses would save in
fast memory.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from stowplan.learned_guidance.memory_mapping.game.compiled import layout
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame, CompiledState
from stowplan.learned_guidance.memory_mapping.game.game import Game, Move
from stowplan.learned_guidance.memory_mapping.observation.compiled import Doubles, View, encode, first_benefits
from stowplan.learned_guidance.memory_mapping.observation.layout import (
    BufferFeature,
    Floats,
    GlobalFeature,
    ObservationConfig,
    Observations,
    empty_observations,
)

#: The feature SLACK of a move is the base-2 logarithm of a ratio, divided by this number and clipped to [-1, 1]. The ratio is
#: the supply of time in which the move's copy may run, divided by the time that the copy takes.
_SLACK_RANGE = 8


def view_of(game: CompiledGame, config: ObservationConfig) -> View:
    """Return the data of a game that no move changes and that the encoder needs."""
    moves, tensors, supply = game.moves, game.problem.tensors, game.slots.supply_ps
    benefits = np.zeros(len(moves))
    first_benefits(game.tables, game.tables.initial, benefits)
    # Benefits may be negative, but a scale must be positive.
    total = max(float(benefits.sum()), 1.0)
    contents = occupied(game)
    area = np.array(
        [tensors[move.tensor].size * (end - start) for move, (start, end) in zip(moves, contents, strict=True)], float
    )
    pressure = _pressure(game)
    unit = float(game.unit_ps)
    slot_benefit = np.zeros(len(supply))
    starts = np.array([move.start for move in moves], int)
    np.add.at(slot_benefit, np.searchsorted(game.slots.boundaries, starts, side="right") - 1, benefits)
    benefit_left = np.append(np.maximum(benefits, 0.0)[::-1].cumsum()[::-1], 0.0)
    view = View(
        future_buffers=config.future_buffers,
        same_tensor_buffers=config.same_tensor_buffers,
        steps_per_column=config.steps_per_column,
        is_binary=config.binary_map,
        unit=unit,
        mean_benefit=total / max(len(moves), 1),
        byte_benefit=total / max(sum(tensors[move.tensor].size for move in moves), 1),
        density=total / max(float(area.sum()), 1.0),
        mean_supply=max(sum(supply) / max(len(supply), 1), 1.0),
        buffers=np.zeros((len(moves), len(BufferFeature)), np.float32),
        area=area,
        pressure=_ratio(pressure),
        slot_benefit=_signed(slot_benefit * max(len(moves), 1) / total),
        benefit_left=_ratio(benefit_left / unit),
        globals=np.zeros(len(GlobalFeature), np.float32),
        map_sums=np.zeros((config.map_rows, config.map_columns), np.float32),
        profile_sums=np.zeros(config.profile_bins, np.float32),
        in_use=np.zeros(config.supply_slots + 1),
    )
    _describe_moves(game, config, view)
    _describe_place(game, contents, view)
    _describe_benefits(benefits, view)
    _describe_program(game, pressure, view)
    return view


def occupied(game: Game) -> list[tuple[int, int]]:
    """Return the steps ``[start, end)`` during which each move occupies fast memory if it is served from there without a copy.

    An output, a move for writes, occupies memory from the start of its visit to the end of its live range. An input, a move for
    reads, occupies memory from the end of the tensor's previous visit to the end of its own visit. If there is no previous
    visit, it begins at the start of its own one.
    """
    spans = []
    before: dict[int, int] = {}
    for move in game.moves:
        if move.is_output:
            spans.append((move.start, max(move.live_end, move.end)))
        else:
            spans.append((min(before.get(move.tensor, move.start), move.start), move.end))
        before[move.tensor] = move.end
    return spans


def _pressure(game: CompiledGame) -> Doubles:
    """Return for each step the sum of the sizes of all tensors between their first and last visits, divided by the capacity."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for move in game.moves:
        first.setdefault(move.tensor, move.start)
        last[move.tensor] = max(last.get(move.tensor, 0), move.end)
    change = np.zeros(game.problem.horizon + 1)
    for tensor, start in first.items():
        change[start] += game.problem.tensors[tensor].size
        change[last[tensor]] -= game.problem.tensors[tensor].size
    return change.cumsum()[:-1] / game.problem.capacity


def _describe_moves(game: CompiledGame, config: ObservationConfig, view: View) -> None:
    """Fill in sizes, ids, duration, demand and flags of all moves, and their positions in their alias groups."""
    capacity = game.problem.capacity
    for number, move in enumerate(game.moves):
        tensor = game.problem.tensors[move.tensor]
        row = view.buffers[number]
        row[BufferFeature.IS_PRESENT] = 1.0
        row[BufferFeature.SIZE] = min(tensor.size / capacity, 2.0)
        row[BufferFeature.LOG_SIZE] = math.log2(1 + tensor.size) / math.log2(1 + capacity)
        row[BufferFeature.IS_OUTPUT] = move.is_output
        row[BufferFeature.DEFINES] = move.defines
        row[BufferFeature.NEEDS_CONTENT] = move.needs_content
        row[BufferFeature.HAS_OUTPUT] = move.has_output
        row[BufferFeature.IS_FINAL_OUTPUT] = move.is_final_output
        row[BufferFeature.IS_UPDATED] = move.is_updated
        row[BufferFeature.IS_PROGRAM_INPUT] = tensor.is_input
        row[BufferFeature.MAY_COPY] = game.tables.moves[number].may_copy
        row[BufferFeature.IS_UNIFORM] = game.tables.moves[number].is_uniform
        row[BufferFeature.DURATION] = _ratio(move.end - move.start)
        row[BufferFeature.DEMAND] = _ratio(game.tables.moves[number].demand / view.mean_supply)
        # 0 means that there is no buffer, or no alias group.
        row[BufferFeature.TENSOR_ID] = 1 + move.tensor % (config.id_buckets - 1)
        row[BufferFeature.ALIAS_ID] = 1 + move.alias_group % (config.id_buckets - 1) if move.alias_group >= 0 else 0
    groups = _numbers_by(move.alias_group for move in game.moves)
    for group, numbers in groups.items():
        for index, number in enumerate(numbers if group >= 0 else ()):
            view.buffers[number, BufferFeature.ALIAS_INDEX] = _ratio(index)
            view.buffers[number, BufferFeature.ALIAS_LEFT] = _ratio(len(numbers) - 1 - index)


def _describe_place(game: CompiledGame, contents: Sequence[tuple[int, int]], view: View) -> None:
    """Fill in the features of each move that depend on the other moves of its tensor.

    The *content* of a tensor is the value that the move reads or writes. The features are the distances of the move to the
    start and the end of the live range of the content, its distances to the visits before and after it, the number of later
    moves, and SLACK. SLACK belongs to them because the time available for the move's copy depends on these visits.
    """
    clock = [0, *accumulate(game.slots.supply_ps)]
    for numbers in _numbers_by(move.tensor for move in game.moves).values():
        moves = [game.moves[number] for number in numbers]
        born, needed = 0, _first_need(moves)
        for place, (number, move) in enumerate(zip(numbers, moves, strict=True)):
            row = view.buffers[number]
            if move.is_output:
                born, needed = move.start, contents[number][1]
            row[BufferFeature.LIVE_BEFORE] = _near(move.start - born)
            row[BufferFeature.LIVE_AFTER] = _near(max(needed, move.end) - move.start)
            previous = next((other for other in reversed(moves[:place]) if other.start < move.start), None)
            following = next((other for other in moves[place:] if other.start > move.start), None)
            row[BufferFeature.HAS_PREVIOUS] = previous is not None
            row[BufferFeature.PREVIOUS] = _near(move.start - previous.start) if previous else 0.0
            row[BufferFeature.HAS_NEXT] = following is not None
            row[BufferFeature.NEXT] = _near(following.start - move.start) if following else 0.0
            row[BufferFeature.VISITS_LEFT] = _ratio(len(moves) - 1 - place)
            free_from = previous.end if previous else 0
            window = (move.end, move.copy_out_limit) if move.is_output else (free_from, move.start)
            first, last = (game.slots.number(boundary) for boundary in window)
            supply = clock[last] - clock[first] if first < last else 0
            row[BufferFeature.SLACK] = _slack(supply, game.tables.moves[number].demand)


def _first_need(moves: Sequence[Move]) -> int:
    """Return the end of the last visit that needs the content which the tensor had before the program; 0 if none does."""
    end = 0
    for move in moves:
        if move.is_output:
            break
        end = move.end if move.needs_content else end
    return end


def _slack(supply: int, demand: int) -> float:
    """Return the feature SLACK of a move from the supply and the demand of its copy, both in ps."""
    if demand == 0:
        return 1.0
    return max(min(math.log2(max(supply / demand, 1e-9)) / _SLACK_RANGE, 1.0), -1.0)


def _describe_benefits(benefits: Doubles, view: View) -> None:
    """Fill in the features made of the benefits that moves have if all buffers are slow."""
    view.buffers[:, BufferFeature.FIRST_BENEFIT] = _signed(benefits / view.mean_benefit)
    view.buffers[:, BufferFeature.BENEFIT_RANK] = _ranks(benefits)
    view.buffers[:, BufferFeature.DENSITY_RANK] = _ranks(benefits / view.area)


def _ranks(values: Doubles) -> Doubles:
    """Return for each value the fraction of the other values that are smaller. Equal values count half."""
    order = np.sort(values)
    below, upto = np.searchsorted(order, values, "left"), np.searchsorted(order, values, "right")
    ranks: Doubles = (below + upto - 1) / 2 / max(len(values) - 1, 1)
    return ranks


def _describe_program(game: CompiledGame, pressure: Doubles, view: View) -> None:
    """Fill in the global features that are the same in all states."""
    problem, features = game.problem, view.globals
    demand = sum(problem.tensors[move.tensor].copy_in_ps for move in game.moves if not move.is_output)
    features[GlobalFeature.MEAN_PRESSURE] = _ratio(pressure.mean() if len(pressure) else 0.0)
    features[GlobalFeature.PEAK_PRESSURE] = _ratio(pressure.max(initial=0.0))
    features[GlobalFeature.SPAN] = _ratio((problem.all_slow_ps - problem.floor_ps) / view.unit)
    features[GlobalFeature.DEMAND] = _ratio(demand / max(sum(game.slots.supply_ps), 1))
    features[GlobalFeature.MOVES] = math.log2(1 + len(game.moves)) / 16
    features[GlobalFeature.STEPS] = math.log2(1 + problem.horizon) / 16
    features[GlobalFeature.TENSORS] = math.log2(1 + len(problem.tensors)) / 16
    features[GlobalFeature.IS_STRICT] = game.strict_copy_windows
    features[GlobalFeature.HAS_BACKUP] = game.drop_backup


def _numbers_by(keys: Any) -> dict[int, list[int]]:
    """Return the indices of the items with each key."""
    numbers: dict[int, list[int]] = defaultdict(list)
    for number, key in enumerate(keys):
        numbers[key].append(number)
    return numbers


# ``_near``, ``_ratio`` and ``_signed`` compute the same logarithms as ``near``, ``ratio`` and ``signed`` of ``compiled.py``, by
# which features are kept small. They also accept arrays, and their results have single precision.


def _near(steps: Any) -> Any:
    return _as_single(np.copysign(np.log2(1.0 + np.abs(steps)), steps) / 8.0)


def _ratio(x: Any) -> Any:
    return _as_single(np.log2(1.0 + np.maximum(x, 0.0)) / 4.0)


def _signed(x: Any) -> Any:
    return _as_single(np.copysign(np.log2(1.0 + np.abs(x)), x) / 4.0)


def _as_single(x: Any) -> Floats:
    return np.asarray(x, np.float32)


__all__ = ["Observations", "Observer", "empty_observations"]


class Observer:
    """Observes the states of one game. Not safe to share between threads."""

    def __init__(self, game: CompiledGame, config: ObservationConfig):
        self.game = game
        self.config = config
        self._view = view_of(game, config)

    @property
    def scales(self) -> tuple[float, float]:
        """The scales of rewards: mean benefit of a move (ps), and mean benefit per byte and step."""
        return self._view.mean_benefit, self._view.density

    def observe(self, state: CompiledState, out: Observations, row: int) -> None:
        """Fill one row of ``out``, the arrays from :func:`empty_observations` with the same configuration.

        Raises
        ------
        ValueError
            If the game is over.
        IndexError
            If there is no such row.
        """
        if not state.data[layout.LEGAL]:
            raise ValueError("the game is over: there is nothing to observe")
        if not 0 <= row < len(out.globals):
            raise IndexError(f"row {row} of {len(out.globals)}")
        encode(self.game.tables, state.data, self._view, out, row)
