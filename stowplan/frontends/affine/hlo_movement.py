"""HLO instructions that move data, as loop nests."""

from __future__ import annotations

from stowplan.frontends.affine.access import Variable
from stowplan.frontends.affine.hlo_walk import Handler, Walk, dims, expect_one_for_each, first_operand
from stowplan.frontends.hlo import Instruction
from stowplan.frontends.hlo.attributes import number, numbers, padding, ranges


def _broadcast(walk: Walk, each: Instruction, operands: list[Variable]) -> Variable:
    source = first_operand(each, operands)
    dimensions = numbers(each, "dimensions", below=len(dims(each)))
    expect_one_for_each(each, "dimensions", dimensions, source)
    return walk.builder.broadcast(source, dims(each), dimensions, each.name)


def _reshape(walk: Walk, each: Instruction, operands: list[Variable]) -> Variable:
    return walk.builder.reshape(first_operand(each, operands), dims(each), each.name)


def _transpose(walk: Walk, each: Instruction, operands: list[Variable]) -> Variable:
    source = first_operand(each, operands)
    dimensions = numbers(each, "dimensions", below=len(source.shape))
    expect_one_for_each(each, "dimensions", dimensions, source)
    return walk.builder.transpose(source, dimensions, each.name)


def _slice(walk: Walk, each: Instruction, operands: list[Variable]) -> Variable:
    source = first_operand(each, operands)
    parts = ranges(each, len(source.shape))
    starts, ends, steps = [part[0] for part in parts], [part[1] for part in parts], [part[2] for part in parts]
    return walk.builder.slice(source, starts, ends, steps, each.name)


def _reverse(walk: Walk, each: Instruction, operands: list[Variable]) -> Variable:
    source = first_operand(each, operands)
    return walk.builder.reverse(source, numbers(each, "dimensions", below=len(source.shape)), each.name)


def _concatenate(walk: Walk, each: Instruction, operands: list[Variable]) -> Variable:
    rank = len(first_operand(each, operands, None).shape)
    if any(len(operand.shape) != rank for operand in operands):
        raise each.error("found operands of different ranks, expected one rank")
    return walk.builder.concatenate(operands, number(each, "dimensions", below=rank), each.name)


def _pad(walk: Walk, each: Instruction, operands: list[Variable]) -> Variable:
    source = first_operand(each, operands, 2)
    sides = padding(each, len(source.shape))
    low, high, interior = [side[0] for side in sides], [side[1] for side in sides], [side[2] for side in sides]
    if operands[1].shape:
        raise each.error(f"found a value of shape {list(operands[1].shape)} to pad with, expected a single one")
    return walk.builder.pad(source, low, high, interior, operands[1], each.name)


MOVEMENT: dict[str, Handler] = {
    "broadcast": _broadcast,
    "reshape": _reshape,
    "bitcast": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "reverse": _reverse,
    "concatenate": _concatenate,
    "pad": _pad,
}
