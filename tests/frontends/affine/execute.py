"""Runs affine programs with NumPy, in double precision: what a rewrite must not change.

Operators either run as what they are, or as stand-ins that turn equal operands into equal noise and different ones into
different noise (``stand_in=True``): whole networks then run in seconds, and any operand that changed shows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stowplan.errors import UsageError
from stowplan.hardware.affine.check import grid, which_piece
from stowplan.hardware.affine.expression import evaluate
from stowplan.hardware.affine.program import Copy, Load, Operator, Program
from tests.frontends.affine.operators import FUNCTIONS

Array = NDArray[np.float64]


def run(program: Program, inputs: Mapping[str, Array], *, stand_in: bool = False) -> dict[str, Array]:
    """Outputs of a program by name.

    Parameters
    ----------
    inputs
        An array of the tensor's shape for every input.
    stand_in
        Compute noise instead of what operators compute.

    Raises
    ------
    UsageError
        An operator that can only be stood in for.
    """
    values: dict[str, Array] = {name: np.asarray(inputs[name], np.float64) for name in program.inputs}
    last_use = {name: number for number, each in enumerate(program.statements) for load in each.loads for name in load.tensors}
    kept = {*program.outputs}
    for number, statement in enumerate(program.statements):
        operands = [gather(load, values) for load in statement.loads]
        if isinstance(statement, Copy):
            tensor = program.tensors[statement.store.tensor]
            array = values.setdefault(tensor.name, np.full(tensor.shape, np.nan))
            points = grid(statement.extents)
            array[tuple(evaluate(each, points) for each in statement.store.index)] = operands[0]
        else:
            results = _noise(program, statement, operands) if stand_in else _compute(statement, operands)
            for name, array in zip(statement.outputs, results, strict=True):
                shape = program.tensors[name].shape
                values[name] = np.array(np.broadcast_to(np.asarray(array, np.float64), shape))
        for name in {name for load in statement.loads for name in load.tensors}:
            if last_use[name] == number and name not in kept:
                del values[name]
    return {name: values[name] for name in program.outputs}


def gather(load: Load, values: Mapping[str, Array]) -> Array:
    """[extents] what a load reads."""
    points = grid(load.extents)
    if len(load.pieces) == 1 and not load.pieces[0].domain:
        return _take(load, 0, values, points)
    chosen = which_piece(load)
    found = np.full(load.extents, np.nan)
    for number in range(len(load.pieces)):
        mask = chosen == number
        if mask.any():
            found[mask] = _take(load, number, values, [np.broadcast_to(each, load.extents)[mask] for each in points], mask)
    return found


def _take(load: Load, number: int, values: Mapping[str, Array], points: list[Any], mask: Any = None) -> Array:
    piece = load.pieces[number]
    shape = load.extents if mask is None else (int(mask.sum()),)
    if piece.tensor is None:
        return np.full(shape, piece.fill)
    return np.broadcast_to(values[piece.tensor][tuple(evaluate(each, points) for each in piece.index)], shape)


def _compute(operator: Operator, operands: list[Array]) -> list[Array]:
    function = FUNCTIONS.get(operator.op)
    if function is None:
        raise UsageError(f"operator {operator.name}: cannot run {operator.op!r}, only stand in for it")
    found = function(operands, operator.attributes)
    return found if isinstance(found, list) else [found]


def _noise(program: Program, operator: Operator, operands: list[Array]) -> list[Array]:
    digest = hashlib.blake2b(repr((operator.name, operator.op)).encode(), digest_size=16)
    for array in operands:
        digest.update(np.ascontiguousarray(array).data)
    chance = np.random.Generator(np.random.SFC64(int.from_bytes(digest.digest(), "little")))
    return [chance.random(program.tensors[name].shape) for name in operator.outputs]
