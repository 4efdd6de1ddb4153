"""Converts any valid plan into decisions that the complete model can represent, and into values of all its variables.

These values are a complete hint, from which CP-SAT can start directly. The decisions are those of the plan or of a plan that is
at least as good; ``docs/reference/memory-mapping-models.md`` proves that there are such decisions. Comments name its lemmas,
such as L4. An *access* is a step that uses a tensor, and a *residency* is one stay of a tensor in fast memory. A tensor is
*landed* at an access if it is resident there with its content. An access is *fast* if it is served from fast memory. Nothing
here raises an error for a valid plan.
"""

from __future__ import annotations

from collections import defaultdict

from ortools.sat.python import cp_model

from stowplan.models.memory_mapping.copy_engine import Moments, with_whole_copies
from stowplan.models.memory_mapping.cpsat.constraints import Objective
from stowplan.models.memory_mapping.cpsat.decisions import CopyKey, CopyOut, Decisions, TensorDecisions
from stowplan.models.memory_mapping.cpsat.offsets import OffsetVariables
from stowplan.models.memory_mapping.cpsat.variables import AccessVariables, TensorVariables, Variables
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency, by_tensor


def decisions_of(variables: Variables, plan: Plan) -> Decisions:
    """The decisions of a valid plan, without residencies and copies that no use needs."""
    plan = with_whole_copies(variables.problem, plan)
    fast_uses = set(plan.fast_uses)
    residencies = by_tensor(sorted(plan.residencies, key=lambda item: item.start))
    copies: defaultdict[int, list[tuple[int, Copy]]] = defaultdict(list)
    for place, copy in enumerate(plan.copies):
        copies[copy.tensor].append((place, copy))
    chosen: list[TensorDecisions] = []
    queue: list[tuple[int, CopyKey]] = []
    for number, tensor in enumerate(variables.tensors):
        reader = _TensorReader(tensor, fast_uses, residencies[number], copies[number], between=variables.leaves_between_steps)
        chosen.append(reader.read())
        queue += reader.queue
    queue.sort(key=lambda item: item[0])
    return Decisions(variables.problem, variables.sequences, chosen, [key for _, key in queue])


def offsets_of(decisions: Decisions, plan: Plan) -> dict[int, list[int]]:
    """For each tensor, the offset in bytes of the residency that covers each of its accesses, or 0.

    The decisions must come from the plan, so that each of their residencies is part of one of the plan.
    """
    residencies_of = by_tensor(plan.residencies)
    placed = {number: [0] * len(sequence) for number, sequence in enumerate(decisions.sequences)}
    for stay in decisions.stays():
        sequence = decisions.sequences[stay.tensor]
        step = sequence.accesses[stay.first].step
        offset = next(residency.offset for residency in residencies_of[stay.tensor] if residency.start <= step < residency.end)
        if sequence.uniform:
            placed[stay.tensor] = [offset] * len(sequence)
        placed[stay.tensor][stay.first : stay.last + 1] = [offset] * (stay.last + 1 - stay.first)
    return placed


class _TensorReader:
    """Determines the decisions for one tensor from the residencies and copies of a plan. ``between`` says whether the problem
    lets a copy-out free its bytes between two steps."""

    def __init__(
        self,
        tensor: TensorVariables,
        fast_uses: set[int],
        residencies: list[Residency],
        copies: list[tuple[int, Copy]],
        *,
        between: bool,
    ):
        self.tensor = tensor
        self.between = between
        self.sequence = tensor.sequence
        self.was_fast = [access.uses[0] in fast_uses for access in self.sequence.accesses]
        self.residencies = residencies
        self.copies = copies
        self.chosen = TensorDecisions.all_slow(len(self.sequence))
        self.queue: list[tuple[int, CopyKey]] = []

    def read(self) -> TensorDecisions:
        """Return all decisions, and set :attr:`queue` to the copies that remain, with their positions in the plan's queue."""
        for residency in self.residencies:
            self._read_residency(residency)
        return self.chosen

    def _read_residency(self, residency: Residency) -> None:
        """Process a residency, divided into parts at the writes that need no old content (L4)."""
        sequence = self.sequence
        inside = [j for j, access in enumerate(sequence.accesses) if residency.start <= access.step < residency.end]
        copy_in = next(
            ((place, copy) for place, copy in self.copies if copy.direction == "in" and copy.start == residency.start), None
        )
        # A fast write that needs no old content begins a new residency, and the one before it ends.
        part: list[int] = []
        for j in inside:
            if sequence.is_dead(j) and self.was_fast[j]:
                self._read_part(part, residency, copy_in)
                part = []
            part.append(j)
        self._read_part(part, residency, copy_in)

    def _read_part(self, part: list[int], residency: Residency, copy_in: tuple[int, Copy] | None) -> None:
        """Process the accesses ``part`` of a residency, which find the same content or update it in place."""
        sequence, chosen = self.sequence, self.chosen
        is_begun = bool(part) and sequence.may_begin_by_write(part[0])
        if not is_begun and copy_in is not None:
            part = [j for j in part if sequence.accesses[j].step >= copy_in[1].end]
        fast = [j for j in part if self.was_fast[j] and self.tensor.access[j].landed is not None]
        if not fast:
            return
        last = fast[-1]
        while sequence.is_glued(last + 1):
            last += 1
        outs = self._copies_out(part, last)
        for _, _, out in outs:
            last = max([last, *(j for j in part if sequence.accesses[j].step < out.until)])
        for j in part:
            if j <= last:
                variables = self.tensor.access[j]
                chosen.landed[j] = True
                chosen.keep[j] = j > part[0] or (residency.preloaded and j == 0)
                chosen.fast[j] = self.was_fast[j] or variables.fast is variables.landed
        if copy_in is not None and not is_begun:
            chosen.copy_in[part[0]] = copy_in[1].start
            self.queue.append((copy_in[0], CopyKey(sequence.tensor, "in", part[0])))
        for place, write, out in outs:
            chosen.copy_out[write] = out
            self.queue.append((place, CopyKey(sequence.tensor, "out", write)))

    def _copies_out(self, part: list[int], last: int) -> list[tuple[int, int, CopyOut]]:
        """For each fast write whose content slow memory needs, the copy-out of this content that ends first.

        Each entry has the copy's position in the queue, the access that writes, and the copy. ``last`` is the last access at
        which the tensor is landed.
        """
        sequence, copies = self.sequence, []
        for write in part:
            if sequence.accesses[write].write is None or not self.was_fast[write]:
                continue
            variables = self.tensor.access[write].copy_out
            following = sequence.next_write(write + 1)
            if variables is None or not self._is_needed(write, following, last):
                continue
            usable = [
                (copy.end, place, copy)
                for place, copy in self.copies
                if copy.direction == "out" and variables.first <= copy.start and copy.end <= variables.limit
            ]
            if not usable:
                continue
            end, place, copy = min(usable, key=lambda item: item[:2])
            until = end if copy.start < end or self.between else int(sequence.copy.next[end + 1])
            if until <= variables.limit:
                copies.append((place, write, CopyOut(copy.start, until)))
        return copies

    def _is_needed(self, write: int, following: int, last: int) -> bool:
        """Whether the content of ``write`` is needed in slow memory: by a later access, or as an output of the program."""
        sequence = self.sequence
        if following == len(sequence) and sequence.is_output:
            return True
        return any(
            sequence.accesses[j].read is not None and (j > last or not self.was_fast[j])
            for j in range(write + 1, min(following + 1, len(sequence)))
        )


def hint_values(
    variables: Variables,
    objective: Objective,
    decisions: Decisions,
    offsets: OffsetVariables | None,
    placed: dict[int, list[int]],
    moments: Moments,
) -> dict[int, int]:
    """Returns the value of every variable by its index.

    Parameters
    ----------
    placed
        For each tensor, the offset in bytes of the residency that covers each of its accesses, or 0. It is ignored if
        ``offsets``, the variables of offsets, is None.
    moments
        The times of boundaries, and of each copy in the queue of ``decisions``.
    """
    values = _Values()
    if not variables.forbidden:
        for times, measured in (
            (variables.reached, moments.reached),
            (variables.open, moments.reached if variables.open is variables.reached else moments.open),
            (variables.left, moments.left),
        ):
            for variable, moment in zip(times, measured, strict=True):
                values.set(variable, moment)
    else:
        for variable, moment in zip(variables.reached, variables.floor_until, strict=True):
            values.set(variable, moment)
    begin = dict(zip(decisions.queue, moments.begin, strict=True))
    for tensor, chosen in zip(variables.tensors, decisions.tensors, strict=True):
        _hint_tensor(values, tensor, chosen, decisions, begin)
    problem = variables.problem
    for step, terms, here in zip(problem.steps, objective.steps, problem.by_step(decisions.fast_uses()), strict=True):
        if terms.value is not None:
            values.set(terms.value, step.latency_ps(here))
        if step.table is not None:
            chosen_row = sum(1 << bit for bit, use in enumerate(step.table.uses) if here[use])
            for mask, row in terms.rows.items():
                values.set(row, mask == chosen_row)
    if offsets is not None:
        for number, columns in enumerate(offsets.access):
            for variable_offset, place in zip(columns, placed[number], strict=True):
                if variable_offset is not None:
                    values.set(variable_offset, place // variables.problem.alignment)
        offsets.hint_sizes(values.by_index)
    return values.by_index


class _Values:
    """Values of variables by the index of the variable; variables that are None are ignored."""

    def __init__(self) -> None:
        self.by_index: dict[int, int] = {}

    def set(self, variable: cp_model.IntVar | None, value: int) -> None:
        """Set the value of a variable; does nothing if the variable is None."""
        if variable is not None:
            self.by_index[variable.index] = int(value)


def _hint_tensor(
    values: _Values, tensor: TensorVariables, chosen: TensorDecisions, decisions: Decisions, begin: dict[CopyKey, int]
) -> None:
    """Set the values of all variables of a tensor."""
    sequence = tensor.sequence
    values.set(tensor.uniform, any(chosen.landed))
    count = len(sequence)
    for j, here in enumerate(tensor.access):
        keeps = j < count and chosen.keep[j]
        if j < count:
            if here.begun is not None:
                values.set(here.begun, chosen.landed[j])
            values.set(here.keep, keeps or (sequence.is_glued(j) and chosen.landed[j]))
            values.set(here.landed, chosen.landed[j])
            values.set(here.fast, chosen.fast[j])
            _hint_copy_in(values, here, chosen, CopyKey(sequence.tensor, "in", j), begin)
            _hint_copy_out(values, tensor, chosen, CopyKey(sequence.tensor, "out", j), decisions, begin)
        values.set(here.lingers, j > 0 and chosen.landed[j - 1] and not keeps)


def _hint_copy_in(
    values: _Values, here: AccessVariables, chosen: TensorDecisions, key: CopyKey, begin: dict[CopyKey, int]
) -> None:
    """Set the values of the variables of a copy into fast memory."""
    copy = here.copy_in
    if copy is None:
        return
    start = chosen.copy_in.get(key.access)
    for step, literal in copy.resident.items():
        values.set(literal, start is not None and start <= step)
    values.set(copy.is_made, start is not None)
    values.set(copy.begin, begin.get(key, _lowest(copy.begin)))


def _hint_copy_out(
    values: _Values,
    tensor: TensorVariables,
    chosen: TensorDecisions,
    key: CopyKey,
    decisions: Decisions,
    begin: dict[CopyKey, int],
) -> None:
    """Set the values of the variables of a copy out of fast memory."""
    copy = tensor.access[key.access].copy_out
    if copy is None:
        return
    sequence, out = tensor.sequence, chosen.copy_out.get(key.access)
    for step, literal in copy.needs.items():
        values.set(literal, out is not None and step < out.until)
    values.set(copy.is_made, out is not None)
    values.set(copy.begin, begin.get(key, _lowest(copy.begin)))
    for step, literal in copy.extends.items():
        # The step is in the gap before the first access at the step or after it.
        j = next((j for j, access in enumerate(sequence.accesses) if access.step >= step), len(sequence))
        keeps = j < len(sequence) and chosen.keep[j]
        values.set(literal, out is not None and step < out.until and not keeps)
    for j, literal in copy.at_once.items():
        boundary = int(sequence.copy.prev[sequence.accesses[j].step])
        is_empty = out is not None and decisions.window(key).start == boundary and boundary < out.until
        values.set(literal, is_empty and chosen.fast[key.access] and not chosen.fast[j])


def _lowest(variable: cp_model.IntVar) -> int:
    """The smallest value in the domain of a variable."""
    return int(variable.proto.domain[0])
