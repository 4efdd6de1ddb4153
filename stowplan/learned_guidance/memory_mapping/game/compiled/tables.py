"""A game as flat tables for compiled code: the data that no move changes.

A table is a sequence of rows with named integer fields (``tables.moves[3].start``); in Python, ``tables.moves.start`` is a
column as an array. A field ``first_*`` is the index of a row's first entry in another table; its entries end where the entries
of the next row begin. A table with such a field therefore has one row more than there are items. Flags are 0 or 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.compiled import filled
from stowplan.learned_guidance.memory_mapping.game.compiled import layout
from stowplan.learned_guidance.memory_mapping.game.game import Game
from stowplan.models.memory_mapping.problem import Problem, Step

Ints = NDArray[np.int64]


class ProgramRow:
    """The program as a whole, and where the sections of a state begin (``layout.py``); one row."""

    capacity: int
    """Capacity of fast memory in bytes."""
    alignment: int
    """Alignment of offsets in bytes."""
    moves: int
    """Number of moves."""
    slots: int
    """Number of slots of the copy channel."""
    strict: int
    """1 with strict copy windows."""
    drop_backup: int
    """1 with Drop-backup."""
    large: int
    """Bytes from which on a buffer gets the lowest free offset; smaller ones get the highest."""
    at_tensors: int
    """Index in a state at which the section of tensors begins; likewise for the other sections."""
    at_slots: int
    at_latencies: int
    at_pieces: int
    at_dropped: int
    at_rows: int


class MoveRow:
    """A move, with the data of its tensor that it needs. Fields without a comment are those of ``game.Move``."""

    tensor: int
    start: int
    """First step of the visit."""
    end: int
    """Boundary after its last step."""
    is_output: int
    defines: int
    needs_content: int
    has_output: int
    is_final_output: int
    is_updated: int
    is_last: int
    live_end: int
    alias_group: int
    """-1 for none."""
    is_uniform: int
    """1 if all uses of the tensor must be fast or all slow."""
    may_copy: int
    """1 if the tensor may be copied."""
    bytes: int
    """Size of the tensor."""
    demand: int
    """Time that its copy takes on the channel (ps): a copy-in for an input, a copy-out for an output."""
    first_slot: int
    """First slot at which the copy of an output may begin; 0 for an input."""
    last_slot: int
    """Slot before which its copy has to end."""
    later: int
    """The next move of the same tensor; -1 for none."""
    first_part: int
    """Index of its first part."""


class PartRow:
    """The effect of a move on one step if it is fast."""

    step: int
    """Number of the step."""
    first_piece: int
    """Cell of the step's first piece among the state's pieces; its other pieces follow."""
    first_change: int
    """Index in ``Tables.changes`` of the change of each piece (weighted ps)."""
    pieces: int
    """Number of pieces; 0 for a step with a latency table."""
    table: int
    """Index in ``Tables.latencies`` of the first latency of the step's table; -1 if it has none."""
    subset: int
    """Bits of the table's index that the move sets."""


class SlotRow:
    """A slot of the channel; the row after the last is the end of the program."""

    start: int
    """Boundary at which it begins."""
    supply: int
    """Supply before any copy (ps)."""


class Tables(NamedTuple):
    """All data that no move changes. There are M moves, K slots and T steps."""

    program: Sequence[ProgramRow]
    """[1]"""
    moves: Sequence[MoveRow]
    """[M + 1]"""
    parts: Sequence[PartRow]
    """[parts of all moves]"""
    slots: Sequence[SlotRow]
    """[K + 1]"""
    changes: Ints
    """For every part, the change of each piece of its step (weighted ps)."""
    latencies: Ints
    """For every step with a latency table, the latency of each subset of fast uses (weighted ps)."""
    slot_of: Ints
    """[T + 1] the first slot that begins at each boundary or later; K at the end."""
    initial: Ints
    """The state before the first move."""


Columns = dict[str, list[int]]


def build_tables(game: Game) -> Tables:
    """Tables of a game."""
    problem = game.problem
    groups = 1 + max((move.alias_group for move in game.moves), default=-1)
    first_piece, initial_pieces = _pieces(problem)
    parts, changes, latencies, first_part = _parts(game, first_piece)
    rows = len(game.moves)
    sections: Columns = {}
    size = layout.HEAD
    for name, length in {
        "at_tensors": layout.TENSOR * len(problem.tensors),
        "at_slots": layout.SLOT * len(game.slots.supply_ps),
        "at_latencies": problem.horizon,
        "at_pieces": len(initial_pieces),
        "at_dropped": groups,
        "at_rows": layout.ROW * rows,
    }.items():
        sections[name] = [size]
        size += length
    initial = np.zeros(size, np.int64)
    initial[[layout.LAST_TO_END, *range(layout.PLACEMENTS, layout.HEAD)]] = -1
    at = {name: first for name, (first,) in sections.items()}
    for number, tensor in enumerate(problem.tensors):
        cell = at["at_tensors"] + layout.TENSOR * number
        initial[cell + layout.LATEST] = -1
        initial[cell + layout.SLOW_FROM] = 0 if tensor.is_input else layout.NEVER
    initial[at["at_slots"] : at["at_latencies"] : layout.SLOT] = game.slots.supply_ps
    initial[at["at_latencies"] : at["at_pieces"]] = [
        step.weight * step.latency_ps([False] * len(step.uses)) for step in problem.steps
    ]
    initial[at["at_pieces"] : at["at_dropped"]] = initial_pieces
    return Tables(
        program=filled(
            ProgramRow,
            1,
            {
                "capacity": [problem.capacity],
                "alignment": [problem.alignment],
                "moves": [rows],
                "slots": [len(game.slots.supply_ps)],
                "strict": [int(game.strict_copy_windows)],
                "drop_backup": [int(game.drop_backup)],
                "large": [game.large_bytes],
                **sections,
            },
        ),
        moves=filled(MoveRow, rows + 1, {**_moves(game), "first_part": first_part}),
        parts=filled(PartRow, len(parts["step"]), parts),
        slots=filled(
            SlotRow,
            len(game.slots.boundaries),
            {"start": list(game.slots.boundaries), "supply": list(game.slots.supply_ps)},
        ),
        changes=np.array(changes, np.int64),
        latencies=np.array(latencies, np.int64),
        slot_of=np.searchsorted(game.slots.boundaries, np.arange(problem.horizon + 1)).astype(np.int64),
        initial=initial,
    )


def _moves(game: Game) -> Columns:
    """The columns of the table of moves, without ``first_part``."""
    tensors, slots = game.problem.tensors, game.slots
    columns: Columns = {
        name: [int(getattr(move, name)) for move in game.moves]
        for name in (
            "tensor",
            "start",
            "end",
            "is_output",
            "defines",
            "needs_content",
            "has_output",
            "is_final_output",
            "is_updated",
            "is_last",
            "live_end",
            "alias_group",
        )
    }
    columns["is_uniform"] = [int(game.is_uniform[move.tensor]) for move in game.moves]
    columns["may_copy"] = [int(game.may_copy[move.tensor]) for move in game.moves]
    columns["bytes"] = [tensors[move.tensor].size for move in game.moves]
    columns["demand"] = [
        tensors[move.tensor].copy_out_ps if move.is_output else tensors[move.tensor].copy_in_ps for move in game.moves
    ]
    columns["first_slot"] = [slots.number(move.end if move.is_output else move.released) for move in game.moves]
    columns["last_slot"] = [slots.number(move.copy_out_limit if move.is_output else move.start) for move in game.moves]
    columns["later"] = [-1] * len(game.moves)
    following: dict[int, int] = {}
    for number in reversed(range(len(game.moves))):
        columns["later"][number] = following.get(game.moves[number].tensor, -1)
        following[game.moves[number].tensor] = number
    return columns


def _pieces(problem: Problem) -> tuple[list[int], list[int]]:
    """The first piece of each step, and the values of all pieces with all uses slow."""
    first: list[int] = []
    pieces: list[int] = []
    for step in problem.steps:
        first.append(len(pieces))
        pieces += [step.weight * (piece.base_ps + sum(piece.slow_ps)) for piece in step.pieces] or [0]
    return first, pieces


def _parts(game: Game, first_piece: list[int]) -> tuple[Columns, list[int], list[int], list[int]]:
    """Parts of all moves, changes, latencies, and each move's first part."""
    latencies: list[int] = []
    tables = [-1] * len(game.problem.steps)
    for number, step in enumerate(game.problem.steps):
        if step.table is not None:
            tables[number] = len(latencies)
            latencies += [step.weight * latency for latency in step.table.latency_ps]
    columns: Columns = {name: [] for name in PartRow.__annotations__}
    changes: list[int] = []
    first_part = [0]
    for move in game.moves:
        # A move's uses are ascending, and so are their steps.
        touched = [game.problem.step_of_use[use] for use in move.uses]
        marks = [n for n in range(len(touched)) if n == 0 or touched[n] != touched[n - 1]]
        for first, last in pairwise([*marks, len(touched)]):
            number = touched[first]
            step = game.problem.steps[number]
            places = [use - game.problem.first_use[number] for use in move.uses[first:last]]
            columns["step"].append(number)
            columns["first_piece"].append(first_piece[number])
            columns["first_change"].append(len(changes))
            columns["pieces"].append(len(step.pieces))
            columns["table"].append(tables[number])
            columns["subset"].append(_subset(step, places))
            changes += [
                step.weight * sum(piece.fast_ps[place] - piece.slow_ps[place] for place in places) for piece in step.pieces
            ]
        first_part.append(len(columns["step"]))
    return columns, changes, latencies, first_part


def _subset(step: Step, places: list[int]) -> int:
    """Bits of the step's table that stand for these of its uses."""
    return 0 if step.table is None else sum(1 << bit for bit, use in enumerate(step.table.uses) if use in places)
