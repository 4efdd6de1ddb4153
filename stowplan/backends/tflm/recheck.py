"""Checks a plan in a JSON file against its model, for ``stowplan verify MODEL PLAN``.

A plan has the offset of each tensor in the runtime's memory, the *arena*, and the order of the operators. A *kernel* is the
code of an operator, a *scratch buffer* is its temporary memory, and the *head* is the part of the arena that is planned. The
model is written with the plan's offsets and orders, and :mod:`stowplan.backends.tflm.check` reads it back, in the same way as
when the plan was made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from stowplan import files
from stowplan.backends.tflm.arena import Arena
from stowplan.backends.tflm.check import faults
from stowplan.backends.tflm.greedy import without_tensors
from stowplan.backends.tflm.order import OperatorOrder
from stowplan.backends.tflm.overlap import overlaps
from stowplan.backends.tflm.planning import FORMAT, Summary
from stowplan.backends.tflm.scratch import operator_at
from stowplan.backends.tflm.write import with_offsets, with_orders
from stowplan.errors import InputError, brief
from stowplan.frontends.tflite.model import AT_RUNTIME, read_tflite, scopes

#: Sizes and offsets of the runtime are smaller than this number of bytes.
_END = 1 << 31


def read_summary(path: str | Path) -> Summary:
    """Reads a plan that ``stowplan tflm -o plan.json`` has written.

    Raises
    ------
    InputError
        The file cannot be read, or is no plan of this kind.
    """
    data = files.read_bytes(path)
    try:
        values: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
        # The file also has the measurements of the runtime, which depend on the machine and are not checked.
        summary_values = {name: value for name, value in values.items() if name in Summary.__struct_fields__}
        return msgspec.convert(summary_values, Summary, strict=False)
    except msgspec.MsgspecError as error:
        raise InputError(f"not a plan of {FORMAT}: {error}", source=path) from error


def recheck(model_path: str | Path, summary: Summary) -> list[str]:
    """Checks a plan against its model.

    Returns
    -------
    list of str
        A line for each fault; empty if the plan is valid.

    Raises
    ------
    InputError
        The model cannot be read, or the plan cannot be written into it, for example because an offset is 2 GiB or more, or less
        than -1.
    UsageError
        The plan names a set of kernels that does not exist.
    """
    source = read_tflite(model_path, replace_offline_plan=True)
    counts = [len(source.tensors), sum(len(graph.operators) for graph in source.subgraphs)]
    expected = [len(summary.offsets), summary.operators]
    if counts != expected or not all(0 <= number < counts[0] for number in summary.keep):
        return [f"the plan is of {expected[0]} tensors and {expected[1]} operators, the model has {counts[0]} and {counts[1]}"]
    for number, steps in summary.orders.items():
        if not 0 <= number < len(source.subgraphs) or sorted(steps) != [*range(len(source.subgraphs[number].operators))]:
            return [f"the order of subgraph {number} does not have each of its operators once"]
    model, order = without_tensors(source, summary.keep), OperatorOrder(summary.orders, 0)
    file_positions = {(graph, to): (graph, at) for graph, steps in order.orders.items() for to, at in enumerate(steps)}
    sizes = {}
    for name, pieces in summary.scratch.items():
        operator = operator_at(source, name)
        if operator is None:
            return [f"scratch: found operator {brief(name, 80)!r}, expected SUBGRAPH:POSITION of one of the model's operators"]
        wrong_sizes = [size for size in pieces if not 0 <= size < _END]
        if wrong_sizes:
            return [f"scratch: found {wrong_sizes[0]} bytes for operator {name}, expected at least 0 and less than 2 GiB"]
        sizes[operator] = pieces
    lives = scopes(len(model.tensors), order.subgraphs(model))
    arena = Arena(model, lives, sizes, file_positions, overlaps(model, summary.kernels))
    planned_offsets = [summary.offsets[number] for number in model.planned]
    placement = arena.place(() if all(at == AT_RUNTIME for at in planned_offsets) else planned_offsets)
    allowed_distances = {(pair.operand, pair.result): pair.distance for pair in placement.pairs}
    data = with_offsets(with_orders(model, order.orders), summary.offsets)
    violations = faults(source.data, data, placement.scratch, source.fixed, allowed_distances, summary.keep)
    ends = [summary.offsets[number] + source.tensors[number].size for number in summary.keep]
    head = max([placement.head, *ends])
    return violations or (
        [] if head == summary.head else [f"the plan says that the head is {summary.head} bytes, it is {head}"]
    )
