"""A plan that was written as JSON, checked once more against its model: what ``stowplan verify MODEL PLAN`` does.

The model is written with the plan's offsets and orders, and read back by ``check``, as when the plan was made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from stowplan import files
from stowplan.backends.tflm.arena import Arena
from stowplan.backends.tflm.check import faults
from stowplan.backends.tflm.greedy import without
from stowplan.backends.tflm.order import Ordered
from stowplan.backends.tflm.overlap import overlaps
from stowplan.backends.tflm.planning import FORMAT, Summary
from stowplan.backends.tflm.write import with_offsets, with_orders
from stowplan.errors import InputError
from stowplan.frontends.tflite.model import AT_RUNTIME, read_tflite, scopes


def read_summary(path: str | Path) -> Summary:
    """A plan as ``stowplan tflm -o plan.json`` writes it; InputError where it is none."""
    data = files.read_bytes(path)
    try:
        values: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
        # What the runtime made of the model is of the machine that it ran on.
        own = {name: value for name, value in values.items() if name in Summary.__struct_fields__}
        return msgspec.convert(own, Summary, strict=False)
    except msgspec.MsgspecError as error:
        raise InputError(f"not a plan of {FORMAT}: {error}", source=path) from error


def recheck(model_path: str | Path, summary: Summary) -> list[str]:
    """What is wrong with a plan of a model, one line each; empty where nothing is.

    Raises
    ------
    InputError
        The model cannot be read.
    """
    source = read_tflite(model_path, replace_offline_plan=True)
    counts = [len(source.tensors), sum(len(graph.operators) for graph in source.subgraphs)]
    found = [len(summary.offsets), summary.operators]
    if counts != found or not all(0 <= number < counts[0] for number in summary.keep):
        return [f"the plan is of {found[0]} tensors and {found[1]} operators, the model has {counts[0]} and {counts[1]}"]
    for number, steps in summary.orders.items():
        if not 0 <= number < len(source.subgraphs) or sorted(steps) != [*range(len(source.subgraphs[number].operators))]:
            return [f"the order of subgraph {number} does not have each of its operators once"]
    model, order = without(source, summary.keep), Ordered(summary.orders, 0)
    names = {(graph, to): (graph, at) for graph, steps in order.orders.items() for to, at in enumerate(steps)}
    sizes = {}
    for name, pieces in summary.scratch.items():
        subgraph, _, at = name.partition(":")
        sizes[int(subgraph), int(at)] = pieces
    lives = scopes(len(model.tensors), order.subgraphs(model))
    arena = Arena(model, lives, sizes, names, overlaps(model, summary.kernels))
    own = [summary.offsets[number] for number in model.planned]
    placed = arena.placed(() if all(at == AT_RUNTIME for at in own) else own)
    shares = {(pair.operand, pair.result): pair.distance for pair in placed.pairs}
    data = with_offsets(with_orders(model, order.orders), summary.offsets)
    wrong = faults(source.data, data, placed.scratch, source.fixed, shares, summary.keep)
    ends = [summary.offsets[number] + source.tensors[number].size for number in summary.keep]
    head = max([placed.head, *ends])
    return wrong or ([] if head == summary.head else [f"the plan says that the head is {summary.head} bytes, it is {head}"])
