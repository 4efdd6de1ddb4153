"""Offsets of residencies: a packing for fixed times (:func:`pack`), and variables of the complete model.

Offsets in the model count units of the problem's alignment. A *residency* is one stay of a tensor in fast memory, and a *stay*
is a residency without its offset. A *uniform alias group* is a tensor whose uses must all be served from fast memory, at one
offset, or all from slow memory (``alias_rule="uniform"``). An *access* is a step that uses a tensor, and a *gap* is the time
between two accesses. In a *neighbourhood*, only some tensors may change; the residencies of all other tensors are fixed.

Nothing here raises an error, except what ``check_stop`` of :class:`~stowplan.models.memory_mapping.cpsat.variables.Variables`
raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from stowplan.models import cpsat_runner
from stowplan.models.first_fit import FirstFit
from stowplan.models.memory_mapping.accesses import TensorAccesses
from stowplan.models.memory_mapping.cpsat.decisions import Stay
from stowplan.models.memory_mapping.cpsat.fixed_part import FixedPart
from stowplan.models.memory_mapping.cpsat.variables import AccessVariables, TensorVariables, Variables
from stowplan.models.memory_mapping.problem import Problem


def pack(
    problem: Problem, sequences: Sequence[TensorAccesses], stays: Sequence[Stay], *, time_limit: float, exact: bool = True
) -> tuple[int, ...] | None:
    """Find an offset for every residency; residencies of a uniform alias group get the same offset.

    First fit is tried in a few orders. If it fails and ``exact`` is true, CP-SAT searches with one worker for at most
    ``time_limit`` seconds.

    Returns
    -------
    tuple of int or None
        Offsets in bytes, in the order of ``stays``; None if none were found.
    """
    blocks = _blocks(problem, sequences, stays)
    orders = (
        lambda block: (-block.units, block.times[0]),
        lambda block: (-sum(end - start for start, end in block.times), -block.units),
        lambda block: (-block.units * sum(end - start for start, end in block.times),),
        lambda block: (block.times[0], -block.units),
    )
    for order in orders:
        placed = _first_fit(problem, sorted(blocks, key=order))
        if placed is not None:
            return _offsets(placed, len(stays))
    if not exact:
        return None
    return _pack_exactly(problem, blocks, len(stays), time_limit)


@dataclass(frozen=True)
class _Block:
    """Residencies that must have the same offset."""

    members: tuple[int, ...]
    """Numbers of the residencies."""
    times: tuple[tuple[int, int], ...]
    """Steps ``[start, end)`` of each residency."""
    size: int
    """Size in bytes."""
    units: int
    """Size in units of the alignment, rounded up."""


def _blocks(problem: Problem, sequences: Sequence[TensorAccesses], stays: Sequence[Stay]) -> list[_Block]:
    """Group residencies that must have the same offset: the residencies of each uniform alias group form a block. Every other
    residency is a block of its own."""
    groups: dict[tuple[int, int], list[int]] = {}
    for number, stay in enumerate(stays):
        # All residencies of a uniform alias group have the same key; those of other tensors have a key each.
        groups.setdefault((stay.tensor, -1 if sequences[stay.tensor].uniform else number), []).append(number)
    blocks = []
    for (tensor, _), members in groups.items():
        size = problem.tensors[tensor].size
        times = tuple((stays[number].start, stays[number].end) for number in members)
        blocks.append(_Block(tuple(members), times, size, -(-size // problem.alignment)))
    return blocks


def _offsets(placed: Sequence[tuple[_Block, int]], count: int) -> tuple[int, ...]:
    """The offset of each of ``count`` residencies, from those of the blocks."""
    result = [0] * count
    for block, offset in placed:
        for member in block.members:
            result[member] = offset
    return tuple(result)


def _first_fit(problem: Problem, blocks: Sequence[_Block]) -> list[tuple[_Block, int]] | None:
    """Give each block the lowest free offset, in the order of the blocks; None if one does not fit."""
    memory, placed = FirstFit(problem.capacity), []
    for block in blocks:
        offset = memory.take_all(block.times, block.size, problem.alignment)
        if offset is None:
            return None
        placed.append((block, offset))
    return placed


def _pack_exactly(problem: Problem, blocks: Sequence[_Block], count: int, time_limit: float) -> tuple[int, ...] | None:
    """Find offsets by CP-SAT, with rectangles of time and memory that do not overlap; None if none are found in time."""
    model = cp_model.CpModel()
    places = [model.new_int_var(0, (problem.capacity - block.size) // problem.alignment, "") for block in blocks]
    times, memory = [], []
    for block, place in zip(blocks, places, strict=True):
        for start, end in block.times:
            times.append(model.new_fixed_size_interval_var(start, end - start, ""))
            memory.append(model.new_fixed_size_interval_var(place, block.units, ""))
    model.add_no_overlap_2d(times, memory)
    run = cpsat_runner.run(model, time_limit=time_limit, seed=1)
    if not run.is_found:
        return None
    offsets = [run.value(place) * problem.alignment for place in places]
    return _offsets(list(zip(blocks, offsets, strict=True)), count)


class OffsetVariables:
    """Adds offsets to the complete model: rectangles of time and memory, no two of which overlap.

    There are rectangles for accesses, gaps, copies-in, and residencies that a copy-out extends.
    """

    def __init__(self, variables: Variables):
        self._variables = variables
        self._model = variables.model
        self._alignment = variables.problem.alignment
        self._times: list[cp_model.IntervalVar] = []
        self._memory: list[cp_model.IntervalVar] = []
        self.access: list[list[cp_model.IntVar | None]] = []
        """For each tensor and access, the variable of its residency's offset, in units of the alignment."""
        self._sizes: list[tuple[cp_model.IntVar, list[cp_model.IntVar]]] = []
        for tensor in variables.tensors:
            self._add_tensor(tensor)
        if variables.fixed_part is not None:
            self._add_borders(variables.fixed_part)
        self._model.add_no_overlap_2d(self._times, self._memory)

    def _add_tensor(self, tensor: TensorVariables) -> None:
        """Add the offsets and rectangles of one tensor."""
        self._variables.check_stop()
        sequence, model = tensor.sequence, self._model
        columns: list[cp_model.IntVar | None] = []
        self.access.append(columns)
        highest = (self._variables.problem.capacity - sequence.size) // self._alignment
        for j, access in enumerate(sequence.accesses):
            here = tensor.access[j]
            before = columns[j - 1] if j else None
            if here.landed is None:
                columns.append(None)
                continue
            is_same = (sequence.is_glued(j) or sequence.uniform) and before is not None
            place = before if is_same else model.new_int_var(0, highest, f"offset{sequence.tensor}.{j}")
            columns.append(place)
            assert place is not None
            if here.keep is not None and before is not None and before is not place:
                model.add(place == before).only_enforce_if(here.keep)
            self._add(here.landed, access.step, access.step + 1, place, sequence)
        for j, here in enumerate(tensor.access):
            if len(sequence):
                self._add_gap(tensor, j, here, columns)

    def _add_gap(
        self, tensor: TensorVariables, j: int, here: AccessVariables, columns: Sequence[cp_model.IntVar | None]
    ) -> None:
        """Add the rectangles of gap ``j``; ``columns`` are the offsets at the tensor's accesses."""
        sequence = tensor.sequence
        first, last = sequence.gap(j)
        before = columns[j - 1] if j else None
        place = columns[j] if j < len(columns) else None
        if here.keep is not None and place is not None and first < last:
            self._add(here.keep, first, last, place, sequence)
        if here.copy_in is not None and place is not None and here.copy_in.resident:
            literals = list(here.copy_in.resident.values())
            self._add_growing(literals, last, place, sequence, backwards=True)
        if before is None:
            return
        if here.lingers is not None:
            self._add(here.lingers, first, int(sequence.residency.next[first]), before, sequence)
        out = tensor.access[sequence.last_write[j]].copy_out if sequence.last_write[j] >= 0 else None
        if out is not None:
            steps = [step for step in out.extends if first <= step < last]
            if steps:
                self._add_growing([out.extends[step] for step in steps], steps[0], before, sequence, backwards=False)

    def _add(self, present: cp_model.IntVar, start: int, end: int, place: cp_model.IntVar, sequence: TensorAccesses) -> None:
        """Add a rectangle for the steps ``[start, end)`` and the bytes of a tensor at offset ``place``. It exists if
        ``present`` is true."""
        units = -(-sequence.size // self._alignment)
        self._avoid_fixed(present, start, end, place, units)
        self._times.append(self._model.new_optional_fixed_size_interval_var(start, end - start, present, ""))
        self._memory.append(self._model.new_optional_fixed_size_interval_var(place, units, present, ""))

    def _add_growing(
        self,
        literals: list[cp_model.IntVar],
        border: int,
        place: cp_model.IntVar,
        sequence: TensorAccesses,
        *,
        backwards: bool,
    ) -> None:
        """Add a rectangle of variable length that starts at ``border``, or ends there if ``backwards``.

        There is a literal for each step, and the rectangle covers the steps whose literals are true. These are always the steps
        next to the border.
        """
        model = self._model
        units = -(-sequence.size // self._alignment)
        present = literals[-1] if backwards else literals[0]
        for number, literal in enumerate(literals):
            # If the next literal away from the border is the same variable, the shorter rectangle needs no constraint.
            if backwards and (number == 0 or literal is not literals[number - 1]):
                self._avoid_fixed(literal, border - len(literals) + number, border, place, units)
            if not backwards and (number + 1 == len(literals) or literal is not literals[number + 1]):
                self._avoid_fixed(literal, border, border + number + 1, place, units)
        length = model.new_int_var(0, len(literals), "")
        self._sizes.append((length, literals))
        model.add(length == sum(literals))
        if backwards:
            time = model.new_optional_interval_var(border - length, length, border, present, "")
        else:
            time = model.new_optional_interval_var(border, length, border + length, present, "")
        self._times.append(time)
        self._memory.append(model.new_optional_fixed_size_interval_var(place, units, present, ""))

    def _avoid_fixed(self, present: cp_model.IntVar, start: int, end: int, place: cp_model.IntVar, units: int) -> None:
        """Exclude offsets at which a residency would overlap residencies outside the neighbourhood."""
        fixed_part = self._variables.fixed_part
        free = None if fixed_part is None else fixed_part.space.offsets(start, end, units)
        if free is not None:
            self._model.add_linear_expression_in_domain(place, free).only_enforce_if(present)

    def _add_borders(self, fixed_part: FixedPart) -> None:
        """Let residencies that extend beyond the first or last boundary of the neighbourhood keep their offset."""
        model = self._model
        for number, offset in fixed_part.entering.items():
            first, place = self._variables.tensors[number].access[0], self.access[number][0]
            present = first.begun if first.keep is None else first.keep
            if place is not None and present is not None:
                model.add(place == offset).only_enforce_if(present)
        for number, offset in fixed_part.leaving.items():
            place = self.access[number][-1]
            assert place is not None
            model.add(place == offset)

    def hint_sizes(self, values: dict[int, int]) -> None:
        """Set the lengths of growing rectangles in ``values``, which must already have the values of their literals."""
        for length, literals in self._sizes:
            values[length.index] = sum(values[literal.index] for literal in literals)
