"""Small models of TensorFlow Lite Micro: several subgraphs, options of operators, floating-point tensors."""

from __future__ import annotations

import math
import random
import struct
from pathlib import Path
from typing import Any, NamedTuple

from tests.frontends.tflite.tflite_models import Number, flatbuffer, tensor

ADD, CONCATENATION, RELU, MUL, NEG, LESS, SUM, ABS = 0, 2, 19, 18, 59, 58, 74, 101
DEPTHWISE, PAD, TRANSPOSE, MEAN, CAST = 4, 34, 39, 40, 53
DEPTH_TO_SPACE, EMBEDDING_LOOKUP, L2_POOL_2D, SPACE_TO_DEPTH, GATHER, GATHER_ND, BATCH_MATMUL = 5, 7, 12, 26, 36, 107, 126
RESHAPE, SQUEEZE, EXPAND_DIMS, DYNAMIC_UPDATE_SLICE = 22, 43, 70, 151
IF, WHILE, CALL_ONCE, VAR_HANDLE, READ_VARIABLE, ASSIGN_VARIABLE = 118, 119, 129, 142, 143, 144

#: Number of an operator's options in the union of all of them.
_OPTIONS = {
    DEPTHWISE: 2,
    MEAN: 27,
    ADD: 11,
    CONCATENATION: 10,
    MUL: 21,
    LESS: 41,
    SUM: 27,
    36: 23,
    IF: 92,
    WHILE: 93,
    CALL_ONCE: 103,
    VAR_HANDLE: 111,
    L2_POOL_2D: 5,
    RESHAPE: 17,
    SPACE_TO_DEPTH: 19,
    GATHER: 23,
    SQUEEZE: 30,
    EXPAND_DIMS: 52,
    GATHER_ND: 83,
    DEPTH_TO_SPACE: 94,
    BATCH_MATMUL: 101,
    DYNAMIC_UPDATE_SLICE: 117,
}


class Step(NamedTuple):
    """An operator of a subgraph."""

    code: int | str
    """Number of a builtin operator, or name of a custom one."""
    reads: list[int]
    writes: list[int]
    options: dict[int, Any] = {}  # noqa: RUF012
    """By their numbers; of a custom operator one, the bytes."""


class Graph(NamedTuple):
    """A subgraph."""

    tensors: list[dict[int, Any]]
    inputs: list[int]
    outputs: list[int]
    steps: list[Step]


def real(*shape: int) -> dict[int, Any]:
    """A tensor of float32."""
    return tensor(list(shape), 0)


def handle() -> dict[int, Any]:
    """A tensor that stands for a variable."""
    return tensor([], 13)


def save(path: Path, *graphs: Graph, custom: str = "mine", buffers: tuple[bytes, ...] = ()) -> Path:
    """A model of subgraphs; buffers from the second on are ``buffers``."""
    codes = sorted({step.code for graph in graphs for step in graph.steps}, key=str)
    tables = []
    for graph in graphs:
        operators = []
        for step in graph.steps:
            fields: dict[int, Any] = {0: Number(codes.index(step.code)), 1: step.reads, 2: step.writes}
            if step.code in _OPTIONS:
                fields |= {3: Number(_OPTIONS[int(step.code)], "B"), 4: step.options}
            elif step.options:
                fields[5] = step.options[0]
            operators.append(fields)
        tables.append({0: graph.tensors, 1: graph.inputs, 2: graph.outputs, 3: operators})
    entries = [(32, code) if isinstance(code, str) else (code, custom) for code in codes]
    names = [{0: Number(min(code, 127), "b"), 1: name, 2: Number(1, "i"), 3: Number(code, "i")} for code, name in entries]
    path.write_bytes(flatbuffer({0: Number(3), 1: names, 2: tables, 4: [{}, *({0: each} for each in buffers)]}))
    return path


def number(value: int) -> Number:
    """A number of 32 bits, with its sign."""
    return Number(value, "i")


def byte(value: int) -> Number:
    """A number of 8 bits, with its sign."""
    return Number(value, "b")


def variable(*shape: int, kind: int = 0) -> dict[int, Any]:
    """A tensor that keeps its values from one inference to the next."""
    return {**tensor(list(shape), kind), 5: Number(1, "B")}


def stored(place: int, *shape: int, kind: int = 2) -> dict[int, Any]:
    """A constant, int32 by default, with the bytes of a buffer."""
    return {**tensor(list(shape), kind), 2: Number(place)}


def chain(path: Path) -> Path:
    """Three element-wise operators."""
    return save(path, Graph([real(64)] * 4, [0], [3], [Step(NEG, [at], [at + 1]) for at in range(3)]))


def branch(path: Path) -> Path:
    """An IF whose branches have tensors of their own."""
    main = Graph(
        [real(64), real(1), real(64), tensor([1], 6), real(64), real(64)],
        [0, 1],
        [5],
        [
            Step(NEG, [0], [2]),
            Step(LESS, [1, 1], [3]),
            Step(IF, [3, 0, 2], [4], {0: number(1), 1: number(2)}),
            Step(ADD, [4, 0], [5]),
        ],
    )
    one = Graph([real(64)] * 4, [0, 1], [3], [Step(MUL, [0, 1], [2]), Step(NEG, [2], [3])])
    two = Graph([real(64)] * 3, [0, 1], [2], [Step(ADD, [0, 1], [2])])
    return save(path, main, one, two)


def loop(path: Path) -> Path:
    """A WHILE that counts to three."""
    three = {**real(1), 2: Number(1)}
    main = Graph(
        [real(1), real(64), real(1), real(64), real(64)],
        [0, 1],
        [4],
        [Step(WHILE, [0, 1], [2, 3], {0: number(1), 1: number(2)}), Step(ADD, [3, 1], [4])],
    )
    condition = Graph([real(1), real(64), three, tensor([1], 6)], [0, 1], [3], [Step(LESS, [0, 2], [3])])
    body = Graph(
        [real(1), real(64), three, real(1), real(64), real(64)],
        [0, 1],
        [3, 5],
        [Step(ADD, [0, 2], [3]), Step(NEG, [1], [4]), Step(MUL, [4, 4], [5])],
    )
    return save(path, main, condition, body, buffers=(struct.pack("<f", 1.0),))


def state(path: Path) -> Path:
    """A variable that sums up inputs, set up by CALL_ONCE; tensor 5 is nobody's."""
    start = Graph(
        [handle(), {**real(64), 2: Number(1)}],
        [],
        [],
        [Step(VAR_HANDLE, [], [0], {1: "sum"}), Step(ASSIGN_VARIABLE, [0, 1], [])],
    )
    main = Graph(
        [real(64), handle(), real(64), real(64), real(64), real(128), real(64)],
        [0],
        [6],
        [
            Step(CALL_ONCE, [], [], {0: number(1)}),
            Step(VAR_HANDLE, [], [1], {1: "sum"}),
            Step(READ_VARIABLE, [1], [2]),
            Step(ADD, [2, 0], [3]),
            Step(ASSIGN_VARIABLE, [1, 3], []),
            Step(NEG, [0], [4]),
            Step(MUL, [4, 3], [6]),
        ],
    )
    return save(path, main, start, buffers=(struct.pack("<64f", *([0.5] * 64)),))


def wide(path: Path) -> Path:
    """Two long vectors made at once and summed one by one: the other order needs less."""
    axis = {**tensor([1], 2), 2: Number(1)}
    main = Graph(
        [real(16), real(128), real(128), axis, real(1), real(1), real(1)],
        [0],
        [6],
        [
            Step(CONCATENATION, [0] * 8, [1]),
            Step(CONCATENATION, [0] * 8, [2]),
            Step(SUM, [1, 3], [4]),
            Step(SUM, [2, 3], [5]),
            Step(ADD, [4, 5], [6]),
        ],
    )
    return save(path, main, buffers=(struct.pack("<i", 0),))


def drawn(path: Path, chance: random.Random, steps: int = 12) -> Path:
    """A graph of element-wise operators and concatenations, drawn at random."""
    sizes, operators = [chance.choice([4, 16, 20]) for _ in range(2)], []
    for _ in range(steps):
        reads = chance.sample(range(len(sizes)), chance.choice([1, 1, 2]))
        code = CONCATENATION if len(reads) == 2 else NEG
        operators.append(Step(code, reads, [len(sizes)]))
        sizes.append(sum(sizes[at] for at in reads))
        if sizes[-1] > 400:
            operators.pop()
            sizes.pop()
    read = {number for step in operators for number in step.reads}
    outputs = [at for at in range(2, len(sizes)) if at not in read][-3:]
    return save(path, Graph([real(size) for size in sizes], [0, 1], outputs, operators))


def drawn_copies(path: Path, chance: random.Random, steps: int = 12) -> Path:
    """A graph of element-wise operators, of those that copy, and of one that writes into a copy, drawn at random."""
    axis, update, start = {**tensor([1], 2), 2: Number(1)}, {**real(4), 2: Number(2)}, {**tensor([1], 2), 2: Number(3)}
    shapes: list[list[int]] = [[16], [32], [], [], []]
    tensors, operators = [real(16), real(32), axis, update, start], list[Step]()
    while len(operators) < steps:
        one = chance.choice([at for at, shape in enumerate(shapes) if shape])
        shape, size = shapes[one], math.prod(shapes[one])
        code = chance.choice([NEG, ADD, RESHAPE, RESHAPE, RESHAPE, SQUEEZE, EXPAND_DIMS, DYNAMIC_UPDATE_SLICE])
        reads, new, declared = [one], shape, None
        if code == ADD:
            reads = [one, chance.choice([at for at, other in enumerate(shapes) if other == shape])]
        elif code == RESHAPE:
            declared = chance.choice([[-1], [2, -1], [1, -1, 4]])
            new = [size // -math.prod(declared) if extent == -1 else extent for extent in declared]
        elif code == SQUEEZE:
            new = [extent for extent in shape if extent != 1]
        elif code == EXPAND_DIMS:
            reads, new = [one, 2], [1, *shape]
        elif code == DYNAMIC_UPDATE_SLICE:
            reads = [one, 3, 4]
        if len(new) > 4 or (code == SQUEEZE and new == shape) or (code == DYNAMIC_UPDATE_SLICE and len(shape) > 1):
            continue
        operators.append(Step(code, reads, [len(shapes)]))
        shapes.append(new)
        tensors.append(real(*(new if declared is None else declared)))
    read = {number for step in operators for number in step.reads}
    # The interpreter of the wheel reads outputs by their declared shapes.
    for at in [at for at in range(5, len(shapes)) if at not in read][-3:]:
        operators.append(Step(NEG, [at], [len(tensors)]))
        tensors.append(real(*shapes[at]))
    outputs = [*range(len(shapes), len(tensors))]
    stored = struct.pack("<i", 0), struct.pack("<4f", 1, 2, 3, 4), struct.pack("<i", 5)
    return save(path, Graph(tensors, [0, 1], outputs, operators), buffers=stored)
