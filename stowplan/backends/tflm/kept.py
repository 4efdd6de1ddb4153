"""Inputs that survive a run: they lie above all else, where nothing is written, and so cost their own bytes and no more.

The runtime does not know of them: it may put scratch memory into the bytes of an input that nobody reads any more, but puts it
into the lowest gap, and never above what is planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from stowplan.errors import InputError
from stowplan.frontends.arena.tflite_file import ALIGNMENT, TfliteModel
from stowplan.frontends.options import named_inputs
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Buffer, Problem


def kept_inputs(model: TfliteModel, names: Sequence[str]) -> list[int]:
    """Numbers of the inputs of these names that have a place in the head.

    Raises
    ------
    InputError
        No such input, or one whose offset in the file stays.
    """
    inputs = {model.tensors[number].own_name: number for number in model.subgraphs[0].inputs}
    kept = dict.fromkeys(named_inputs(names, inputs))
    for number in kept:
        if number in model.fixed:
            raise InputError(f"found --keep {model.tensors[number].own_name}, whose offset stays, expected one that is planned")
    return [number for number in kept if model.tensors[number].is_planned]


def without(model: TfliteModel, kept: Sequence[int]) -> TfliteModel:
    """A model in which these tensors take nothing."""
    tensors = list(model.tensors)
    for number in kept:
        tensors[number] = replace(tensors[number], size=0, is_planned=False)
    numbers = [*model.planned, *[None] * (len(model.problem.buffers) - len(model.planned))]
    buffers = [buffer for number, buffer in zip(numbers, model.problem.buffers, strict=True) if number not in kept]
    problem = msgspec.structs.replace(model.problem, buffers=tuple(buffers))
    planned = tuple(number for number in model.planned if number not in kept)
    return replace(model, tensors=tuple(tensors), planned=planned, problem=problem)


def on_top(model: TfliteModel, kept: Sequence[int], problem: Problem, plan: Plan, head: int) -> tuple[Problem, Plan, list[int]]:
    """A packing and its plan with the kept tensors above a head, and the offsets of these; the last end is the new head."""
    end = max((buffer.upper for buffer in problem.buffers), default=1)
    buffers, offsets, at = list(problem.buffers), list(plan.offsets), -(-head // ALIGNMENT) * ALIGNMENT
    for number in kept:
        tensor = model.tensors[number]
        buffers.append(Buffer(id=tensor.name, lower=0, upper=end, size=tensor.size, alignment=ALIGNMENT))
        offsets.append(at)
        at += tensor.size
    problem = msgspec.structs.replace(problem, buffers=tuple(buffers))
    height = max(offset + buffer.size for offset, buffer in zip(offsets, buffers, strict=True))
    return problem, Plan(problem=problem.digest, objective=height, offsets=tuple(offsets)), offsets[len(plan.offsets) :]
