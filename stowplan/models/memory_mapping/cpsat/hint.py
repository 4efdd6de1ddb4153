"""Values of all variables for given decisions: a complete hint."""

from __future__ import annotations

from ortools.sat.python import cp_model

from stowplan.models.memory_mapping.copy_engine import Moments
from stowplan.models.memory_mapping.cpsat.decisions import CopyKey, Decisions, TensorDecisions
from stowplan.models.memory_mapping.cpsat.objective import Objective
from stowplan.models.memory_mapping.cpsat.offsets import OffsetVariables
from stowplan.models.memory_mapping.cpsat.variables import AccessVariables, TensorVariables, Variables


def hint_values(
    variables: Variables,
    objective: Objective,
    decisions: Decisions,
    offsets: OffsetVariables | None,
    placed: dict[int, list[int]],
    moments: Moments,
) -> dict[int, int]:
    """Value of every variable, by its index.

    Parameters
    ----------
    placed
        For each tensor, and each of its accesses, the offset in bytes of the residency it lies in, or 0; used with ``offsets``
        only.
    moments
        The run, with a begin for each copy in the queue of ``decisions``.
    """
    values = _Values()
    if not variables.forbidden:
        for times, found in (
            (variables.reached, moments.reached),
            (variables.open, moments.reached if variables.open is variables.reached else moments.open),
            (variables.left, moments.left),
        ):
            for variable, moment in zip(times, found, strict=True):
                values.set(variable, moment)
    else:
        for variable, moment in zip(variables.reached, variables.floor_until, strict=True):
            values.set(variable, moment)
    begin = dict(zip(decisions.queue, moments.begin, strict=True))
    for tensor, chosen in zip(variables.tensors, decisions.tensors, strict=True):
        _hint_tensor(values, tensor, chosen, decisions, begin)
    fast = decisions.fast_uses()
    number = 0
    for step, terms in zip(variables.problem.steps, objective.steps, strict=True):
        here = fast[number : number + len(step.uses)]
        number += len(step.uses)
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
        offsets.hint_sizes(values.found)
    return values.found


class _Values:
    def __init__(self) -> None:
        self.found: dict[int, int] = {}

    def set(self, variable: cp_model.IntVar | None, value: int) -> None:
        if variable is not None:
            self.found[variable.index] = int(value)


def _hint_tensor(
    values: _Values, tensor: TensorVariables, chosen: TensorDecisions, decisions: Decisions, begin: dict[CopyKey, int]
) -> None:
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
    copy = tensor.access[key.access].copy_out
    if copy is None:
        return
    sequence, out = tensor.sequence, chosen.copy_out.get(key.access)
    for step, literal in copy.needs.items():
        values.set(literal, out is not None and step < out.until)
    values.set(copy.is_made, out is not None)
    values.set(copy.begin, begin.get(key, _lowest(copy.begin)))
    for step, literal in copy.extends.items():
        # The gap that the step lies in is the one before the first access at or after it.
        j = next((j for j, access in enumerate(sequence.accesses) if access.step >= step), len(sequence))
        keeps = j < len(sequence) and chosen.keep[j]
        values.set(literal, out is not None and step < out.until and not keeps)
    for j, literal in copy.at_once.items():
        boundary = int(sequence.copy.prev[sequence.accesses[j].step])
        is_empty = out is not None and decisions.window(key).start == boundary and boundary < out.until
        values.set(literal, is_empty and chosen.fast[key.access] and not chosen.fast[j])


def _lowest(variable: cp_model.IntVar) -> int:
    return int(variable.proto.domain[0])
