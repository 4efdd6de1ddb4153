"""Reads TensorFlow Lite models: the tensors of all subgraphs for which TensorFlow Lite Micro allocates memory, and their live
ranges.

The module reads only the tables of the flatbuffer (schema version 3) that it needs for this. *The runtime* is TensorFlow Lite
Micro. It numbers the tensors of all subgraphs in one list, and counts time in *scopes*: scope 0 is the start of the first
subgraph, and each operator and each subgraph that an operator calls begins a new scope. A tensor lives from the scope that
writes it to the last one that uses it, both included; inputs live from the start of their subgraph, and outputs to its end.

A file may have an *offline plan*, which gives offsets to some tensors; the runtime places all other tensors.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from msgspec import UNSET

from stowplan import files
from stowplan.deadline import check_reading
from stowplan.errors import InputError, naming
from stowplan.frontends import load_facts
from stowplan.frontends.options import named_inputs
from stowplan.frontends.tflite.flatbuffer import FlatBuffer
from stowplan.frontends.tflite.result_shapes import result_shape
from stowplan.log import warn_unmodelled
from stowplan.models.packing.problem import Buffer, Part, Problem

#: The bytes ``[4, 8)`` of every TensorFlow Lite file.
IDENTIFIER = b"TFL3"

#: TensorFlow Lite Micro aligns tensors to multiples of this many bytes.
ALIGNMENT = 16

_KNOWN = load_facts("tflite")
#: By the number of an element type in the schema: in ``TYPES`` its name, and in ``_BYTES`` the bytes of an element.
TYPES: dict[int, str] = {kind["number"]: name for name, kind in _KNOWN["types"].items()}
_BYTES: dict[int, int] = {kind["number"]: kind["bytes"] for kind in _KNOWN["types"].values()}

#: Numbers of builtin operators that are read in a special way. Three tables of operators follow:
#:
#: - ``_CALLING``: operators that call subgraphs, with the fields of their options that name the subgraphs
#: - ``_REFUSED``: operators that are refused because they call other code, with words for messages
#: - ``_MODELLED``: operators that are modelled; 127 is a placeholder in the schema, which no operator has
#:
#: All other operators cause a warning.
CUSTOM, VAR_HANDLE, CALL_ONCE, IF, WHILE = 32, 142, 129, 118, 119
_CALLING = {IF: (0, 1), WHILE: (0, 1), CALL_ONCE: (0,)}
_REFUSED = {31: "CALL", 51: "DELEGATE", 200: "a loop", 209: "a choice"}
_MODELLED = frozenset(range(_KNOWN["operators"]["builtin_end"])) - {CUSTOM, 127}

#: Custom operators of TensorFlow Lite Micro whose kernels use only their tensors and scratch memory.
KNOWN_CUSTOM = frozenset(_KNOWN["operators"]["known_custom"].split())
#: Names, by their numbers, of builtin operators of whose kernel (the code that runs them) more is known: either a model of the
#: order in which it reads and writes bytes, or the shape that it computes for its result.
OPERATORS: dict[int, str] = {number: name for name, number in _KNOWN["operators"]["numbers"].items()}

#: Limits on the nesting of subgraph calls, and on the number of scopes, after which a model is refused. A small file may exceed
#: them, since a subgraph may be called many times.
_DEEPEST, _MOST_SCOPES = 12, 1_000_000

#: Name of the metadata with a plan: version, number of subgraphs, number of tensors, and an offset for each tensor.
OFFLINE_PLAN = "OfflineMemoryAllocation"
#: The offset of a tensor that the runtime places.
AT_RUNTIME = -1

#: Fields of tables, by their numbers in the schema.
_MODEL_CODES, MODEL_SUBGRAPHS, MODEL_BUFFERS, MODEL_METADATA = 1, 2, 4, 6
_CODE_OLD_NUMBER, _CODE_NAME, _CODE_NUMBER = 0, 1, 3
METADATA_NAME, METADATA_BUFFER = 0, 1
GRAPH_TENSORS, GRAPH_INPUTS, GRAPH_OUTPUTS, GRAPH_OPERATORS = 0, 1, 2, 3
TENSOR_SHAPE, _TENSOR_TYPE, TENSOR_BUFFER, _TENSOR_NAME, _TENSOR_IS_VARIABLE = 0, 1, 2, 3, 5
#: Fields of tensors whose values are not stored contiguously in the file: sparse ones, variants, and those in other files.
_TENSOR_ELSEWHERE = (6, 9, 10)
_OPERATOR_CODE, OPERATOR_INPUTS, OPERATOR_OUTPUTS, OPERATOR_OPTIONS, OPERATOR_INTERMEDIATES = 0, 1, 2, 4, 8
BUFFER_DATA, BUFFER_OFFSET, _BUFFER_SIZE = 0, 1, 2

#: A range of time and bytes: the first scope, the first byte, the scope after the last one, and the byte after the last one.
_Box: TypeAlias = tuple[int, int, int, int]


@dataclass(frozen=True)
class TfliteTensor:
    """A tensor of any subgraph."""

    name: str
    """Its number, followed by its name in the model, if it has one."""
    shape: tuple[int, ...]
    """Its shape at run time (:mod:`stowplan.frontends.tflite.result_shapes`)."""
    kind: int
    """Number of its element type in the schema."""
    size: int
    """Bytes in the arena, rounded up as the runtime does."""
    is_planned: bool
    """Whether the runtime's planner places it. It does not place constants, variables and resource handles."""
    is_variable: bool
    """Whether it is a variable, which outlives an inference."""
    is_resized: bool = False
    """Whether the file declares another shape than that at run time."""

    @property
    def own_name(self) -> str:
        """Its name in the model; its number if it has none."""
        return self.name.partition(" ")[2] or self.name

    @property
    def content(self) -> int:
        """Bytes of its elements, not rounded."""
        return math.prod(self.shape) * _BYTES[self.kind]


@dataclass(frozen=True)
class Operator:
    """One operator. Tensors are given by their indices over all subgraphs; omitted operands are not included."""

    code: int
    """Number of the builtin operator."""
    custom: str
    """Name of a custom operator; empty for a builtin operator."""
    reads: tuple[int, ...]
    """The tensors that it reads."""
    writes: tuple[int, ...]
    """The tensors that it writes, including intermediate ones."""
    calls: tuple[int, ...]
    """Indices of the subgraphs that it may run, in the order of their scopes."""
    table: int
    """Position of its table in the file."""

    @property
    def what(self) -> str:
        """A description for messages."""
        return f"the custom operator {self.custom!r}" if self.code == CUSTOM else f"operator code {self.code}"

    @property
    def is_opaque(self) -> bool:
        """Whether its kernel is unknown, so that it may need memory of its own, or its tensors may share bytes."""
        return self.custom not in KNOWN_CUSTOM if self.code == CUSTOM else self.code not in _MODELLED


@dataclass(frozen=True)
class Subgraph:
    """One subgraph. Tensors are given by their indices over all subgraphs."""

    tensors: range
    """The tensors of this subgraph."""
    inputs: tuple[int, ...]
    """The tensors that its caller writes before it runs."""
    outputs: tuple[int, ...]
    """The tensors that its caller reads after it has run."""
    operators: tuple[Operator, ...]
    """The operators in the order in which they run."""


@dataclass(frozen=True)
class TfliteModel:
    """A model as TensorFlow Lite Micro sees it."""

    name: str
    """Name of the file without its extension."""
    tensors: tuple[TfliteTensor, ...]
    """The tensors of all subgraphs."""
    subgraphs: tuple[Subgraph, ...]
    """The subgraphs; the first one is the program."""
    offsets: tuple[int, ...]
    """For each tensor, its offset in bytes in the file's offline plan; :data:`AT_RUNTIME` if the runtime places the tensor, or
    if there is no such plan."""
    fixed: frozenset[int]
    """Tensors that keep their offsets of the offline plan."""
    data: bytes
    """The contents of the file."""
    problem: Problem
    """The packing problem of the planned tensors, with the operators in the order of the file."""
    planned: tuple[int, ...]
    """For each of the first buffers of the problem, the index of its tensor. The buffers after these are for tensors whose
    offsets are fixed."""


@dataclass(frozen=True)
class Scopes:
    """The scopes in which tensors live and operators run, as the runtime counts them; both ends are included."""

    first: tuple[int, ...]
    """The first scope of each tensor; -1 if no operator writes it and it is no input or output."""
    last: tuple[int, ...]
    """The last scope of each tensor; -1 if it is not used."""
    operators: dict[tuple[int, int], tuple[int, int]]
    """The first and the last scope of each operator, including the subgraphs that it calls. The key is the index of its
    subgraph and its position there."""
    unwritten: frozenset[int]
    """Tensors that an operator reads before they are written, including constants."""


def is_tflite(path: str | Path) -> bool:
    """Whether a file is a TensorFlow Lite model, judging by its name."""
    return Path(path).name.lower().endswith(".tflite")


def read_tflite(
    path: str | Path, capacity: int | None = None, replace_offline_plan: bool = False, keep: Sequence[str] = ()
) -> TfliteModel:
    """Reads a model, and makes the packing problem of its tensors that need memory.

    Parameters
    ----------
    path
        Path of the model file.
    capacity
        Bytes of the arena; None asks for the smallest arena.
    replace_offline_plan
        Whether tensors with an offset in the file are planned as well, except those of unknown operators, which may depend on
        their offsets.
    keep
        Names of inputs that must live to the end.

    Raises
    ------
    InputError
        In one of these cases:

        - The file cannot be read, is no TensorFlow Lite model, or is damaged.
        - A shape or type has no fixed size.
        - An operator is refused, or reads a tensor that is never written.
        - A subgraph calls itself, or calls are nested too deeply or are too many.
        - The offline plan does not fit the tensors.
        - ``keep`` names an input that the model does not have, or a name that several inputs have.
    TimeLimitError
        The time limit for reading inputs is over.
    """
    data = files.read_bytes(path)
    if data[4:8] != IDENTIFIER:
        raise InputError(
            f"bytes 4 to 7: found {data[4:8]!r}, expected {IDENTIFIER!r}: this is no TensorFlow Lite model", source=path
        )
    try:
        with naming(path):
            return _Reader(data, Path(path).name.partition(".")[0]).read(capacity, replace_offline_plan, keep)
    except (OverflowError, MemoryError) as error:
        raise InputError(f"not a whole TensorFlow Lite model: {error}", source=path) from error


def scopes(tensors: int, subgraphs: Sequence[Subgraph]) -> Scopes:
    """Computes the live ranges of a model's tensors.

    Parameters
    ----------
    tensors
        Number of tensors of all subgraphs.
    subgraphs
        The subgraphs, of which there is at least one; the first one is the program.

    Raises
    ------
    InputError
        A subgraph calls itself, calls are nested more than 12 deep, or there are more than 1,000,000 scopes.
    TimeLimitError
        The time limit for reading inputs is over.
    """
    first, last = [-1] * tensors, [-1] * tensors
    spans: dict[tuple[int, int], tuple[int, int]] = {}
    unwritten: set[int] = set()
    count = 0

    def use(numbers: Sequence[int], *, makes: bool = True, ends: bool = True) -> None:
        """Records a use of tensors in the current scope, as a first write if ``makes``, and as a last use if ``ends``."""
        for number in numbers:
            if makes and first[number] < 0:
                first[number] = count
            if ends:
                last[number] = count

    def run(graph: int, callers: tuple[int, ...]) -> None:
        """Records the uses in a subgraph that the subgraphs ``callers`` call."""
        nonlocal count
        if graph in callers:
            raise InputError(f"found subgraph {graph} inside itself, expected subgraphs that end", place="subgraphs")
        if len(callers) > _DEEPEST:
            raise InputError(f"found subgraphs in {len(callers)} others, expected at most {_DEEPEST}", place="subgraphs")
        use(subgraphs[graph].inputs)
        for position, operator in enumerate(subgraphs[graph].operators):
            count += 1
            if count > _MOST_SCOPES:
                raise InputError(f"found more than {_MOST_SCOPES} scopes, expected fewer calls", place="subgraphs")
            begin = count
            use(operator.writes, ends=False)
            for called in operator.calls:
                check_reading()
                count += 1
                run(called, (*callers, graph))
            unwritten.update(number for number in operator.reads if first[number] < 0 or first[number] > begin)
            use(operator.reads, makes=False)
            use(operator.writes)
            spans[graph, position] = spans.get((graph, position), (begin, 0))[0], count
        use(subgraphs[graph].outputs)

    run(0, ())
    return Scopes(tuple(first), tuple(last), spans, frozenset(unwritten))


class _Reader:
    """Reads the tables of one file."""

    def __init__(self, data: bytes, name: str):
        self._name = name
        self._buffer = FlatBuffer(data)
        self._model = self._buffer.follow(0)
        buffers = self._buffer.tables(self._model, MODEL_BUFFERS)
        self._stored = [_has_data(self._buffer, buffer) for buffer in buffers]
        self._codes = self._buffer.tables(self._model, _MODEL_CODES)
        self._graphs = self._buffer.tables(self._model, MODEL_SUBGRAPHS)
        self._tensors = [tensor for graph in self._graphs for tensor in self._buffer.tables(graph, GRAPH_TENSORS)]
        self._touched: dict[int, str] = {}
        """The operator or subgraph that is the first to use each tensor, in words for messages."""

    def read(self, capacity: int | None, replace_offline_plan: bool, keep: Sequence[str]) -> TfliteModel:
        """Reads the model; see :func:`read_tflite`."""
        if not self._graphs:
            raise InputError("found none, expected one or more", place="subgraphs")
        subgraphs = []
        begin = 0
        for number, graph in enumerate(self._graphs):
            subgraphs.append(self._subgraph(number, graph, begin))
            begin += self._buffer.vector(graph, GRAPH_TENSORS)[1]
        operators = [operator for graph in subgraphs for operator in graph.operators]
        handles = {number for operator in operators if operator.code == VAR_HANDLE for number in operator.writes}
        shapes = self._shapes(subgraphs)
        tensors = tuple(self._tensor(number, shape, number in handles) for number, shape in enumerate(shapes))
        lives = scopes(len(tensors), subgraphs)
        written = {number for operator in operators for number in operator.writes}
        of_opaque = {number for operator in operators if operator.is_opaque for number in (*operator.reads, *operator.writes)}
        for number, place in self._touched.items():
            # A tensor with stored contents that an operator writes later must be written as well before it is read.
            is_made = tensors[number].is_planned or (number in written and not tensors[number].is_variable)
            if is_made and number in lives.unwritten and number not in of_opaque:
                message = f"found nothing that writes what {place} reads, expected it"
                raise InputError(message, place=f"tensors[{number}]")
        offsets = self._offline_plan(len(tensors))
        may_stay = of_opaque if replace_offline_plan else range(len(tensors))
        fixed = frozenset(number for number in may_stay if offsets[number] != AT_RUNTIME and tensors[number].is_planned)
        if fixed:
            stay = f"{len(fixed)} tensors stay where the file has them, unchecked for what they share"
            warn_unmodelled(f"{stay}; --set replace_offline_plan=yes frees those of no custom operator", OFFLINE_PLAN)
        if keep:
            preserved = named_inputs(keep, ((tensors[number].own_name, number) for number in subgraphs[0].inputs))
            end = max(lives.last)
            last = tuple(end if number in preserved else scope for number, scope in enumerate(lives.last))
            lives = dataclasses.replace(lives, last=last)
        planned, buffers = _buffers(tensors, lives, offsets, fixed)
        outputs = subgraphs[0].outputs
        parts = [_part(tensors[number], offsets[number], buffers) for number in dict.fromkeys(outputs) if number not in planned]
        results = tuple(tensors[number].name for number in outputs)
        problem = Problem(name=self._name, buffers=buffers, capacity=capacity, parts=tuple(parts) or UNSET, results=results)
        return TfliteModel(self._name, tensors, tuple(subgraphs), offsets, fixed, self._buffer.data, problem, planned)

    def _subgraph(self, number: int, graph: int, begin: int) -> Subgraph:
        """The subgraph whose table is at ``graph``; its first tensor has the index ``begin`` among those of all subgraphs."""
        buffer, count = self._buffer, self._buffer.vector(graph, GRAPH_TENSORS)[1]

        def numbers(table: int, field: int, place: str) -> tuple[int, ...]:
            """Indices of the tensors in a vector of the file; -1, which stands for an omitted operand, is left out."""
            present = [tensor for tensor in buffer.integers(table, field) if tensor != -1]
            for tensor in present:
                if not 0 <= tensor < count:
                    raise InputError(f"found tensor {tensor}, expected 0 to {count - 1}", place=place)
                self._touched.setdefault(begin + tensor, place)
            return tuple(begin + tensor for tensor in present)

        name = "" if number == 0 else f" of subgraph {number}"
        operators = []
        for position, table in enumerate(buffer.tables(graph, GRAPH_OPERATORS)):
            place = f"operator {position}{name}"
            code, custom = self._code(table, place)
            operator = Operator(
                code,
                custom,
                numbers(table, OPERATOR_INPUTS, place),
                (*numbers(table, OPERATOR_OUTPUTS, place), *numbers(table, OPERATOR_INTERMEDIATES, place)),
                self._calls(table, code, place),
                table,
            )
            if operator.is_opaque:
                text = "is not known: memory of its own, and bytes that its tensors share, are not planned"
                warn_unmodelled(f"{operator.what} {text}", place)
            operators.append(operator)
        inputs, outputs = (numbers(graph, field, f"subgraph {number}") for field in (GRAPH_INPUTS, GRAPH_OUTPUTS))
        return Subgraph(range(begin, begin + count), inputs, outputs, tuple(operators))

    def _code(self, table: int, place: str) -> tuple[int, str]:
        """The number of an operator, and the name of a custom one; raises InputError for operators that are refused."""
        number = self._buffer.number(table, _OPERATOR_CODE, "I")
        if number >= len(self._codes):
            raise InputError(f"found operator code {number}, expected 0 to {len(self._codes) - 1}", place=place)
        entry = self._codes[number]
        # Old files store the number in one byte; newer files have a second field for numbers that do not fit.
        code = max(self._buffer.number(entry, _CODE_OLD_NUMBER, "b"), self._buffer.number(entry, _CODE_NUMBER, "i"))
        if code in _REFUSED:
            raise InputError(f"found {_REFUSED[code]}, expected an operator that calls no other", place=place)
        return code, self._buffer.text(entry, _CODE_NAME) if code == CUSTOM else ""

    def _calls(self, table: int, code: int, place: str) -> tuple[int, ...]:
        """Indices of the subgraphs that an operator calls; raises InputError if there is no such subgraph."""
        called: list[int] = []
        for field in _CALLING.get(code, ()):
            at = self._buffer.field(table, OPERATOR_OPTIONS)
            graph = -1 if at is None else self._buffer.number(self._buffer.follow(at), field, "i")
            if not 0 <= graph < len(self._graphs):
                raise InputError(f"found subgraph {graph}, expected 0 to {len(self._graphs) - 1}", place=place)
            called.append(graph)
        return tuple(called)

    def _shapes(self, subgraphs: Sequence[Subgraph]) -> list[tuple[int, ...]]:
        """The shape of each tensor at run time, computed operator by operator in the order of the file. Raises InputError as
        :func:`~stowplan.frontends.tflite.result_shapes.result_shape` does."""
        buffer = self._buffer
        shapes = [tuple(buffer.integers(table, TENSOR_SHAPE)) for table in self._tensors]
        for operator in (operator for subgraph in subgraphs for operator in subgraph.operators):
            if len(operator.writes) != 1:
                continue
            (result,), at = operator.writes, buffer.field(operator.table, OPERATOR_OPTIONS)
            options = None if at is None else buffer.follow(at)
            name, declared, place = OPERATORS.get(operator.code, ""), shapes[result], f"tensors[{result}]"
            operands = [shapes[number] for number in operator.reads]
            shapes[result] = result_shape(name, declared, operands, functools.partial(buffer.option, options), place)
            if -1 not in declared and math.prod(shapes[result]) != math.prod(declared):
                text = f"{name} works out the shape {[*shapes[result]]} of its result, which is planned instead of the declared"
                warn_unmodelled(f"{text} {[*declared]}", place)
        return shapes

    def _tensor(self, number: int, shape: tuple[int, ...], is_handle: bool) -> TfliteTensor:
        """The tensor with this index; raises InputError if it is used and its size is not fixed."""
        buffer, table, place = self._buffer, self._tensors[number], f"tensors[{number}]"
        where = buffer.number(table, TENSOR_BUFFER, "I")
        if where >= len(self._stored):
            raise InputError(f"found buffer {where}, expected 0 to {len(self._stored) - 1}", place=place)
        kind = buffer.number(table, _TENSOR_TYPE, "b")
        is_variable = bool(buffer.number(table, _TENSOR_IS_VARIABLE, "B"))
        # The runtime allocates variables, which outlive an inference, and resource handles separately.
        is_planned = not (self._stored[where] or is_variable or is_handle)
        size = 0
        if is_planned:
            is_elsewhere = any(buffer.field(table, field) is not None for field in _TENSOR_ELSEWHERE)
            is_sized = kind in _BYTES and not is_elsewhere and all(extent >= 0 for extent in shape)
            if is_sized:
                # The runtime rounds sizes up to the alignment.
                size = -(-math.prod(shape) * _BYTES[kind] // ALIGNMENT) * ALIGNMENT
            elif number in self._touched:
                what = "a sparse, variant or external tensor" if is_elsewhere else f"shape {[*shape]} of type {kind}"
                raise InputError(f"found {what}, expected a fixed size", place=place)
        name = f"{number} {buffer.text(table, _TENSOR_NAME)}".strip()
        is_resized = [*shape] != buffer.integers(table, TENSOR_SHAPE)
        return TfliteTensor(name, shape, kind, size, is_planned and size > 0, is_variable, is_resized)

    def _offline_plan(self, tensors: int) -> tuple[int, ...]:
        """The offset of each tensor in the offline plan; ``AT_RUNTIME`` for all tensors if there is no plan. Raises InputError
        if the plan is not for this number of tensors, or if an offset is less than -1."""
        buffer, offsets = self._buffer, [AT_RUNTIME] * tensors
        holders = buffer.tables(self._model, MODEL_BUFFERS)
        for entry in buffer.tables(self._model, MODEL_METADATA):
            if buffer.text(entry, METADATA_NAME) != OFFLINE_PLAN:
                continue
            number = buffer.number(entry, METADATA_BUFFER, "I")
            start, count = buffer.vector(holders[number], BUFFER_DATA) if number < len(holders) else (0, 0)
            _, _, tensor_count, *offsets = (
                struct.unpack_from(f"<{count // 4}i", buffer.data, start) if count >= 12 else (0, 0, 0)
            )
            if tensor_count != tensors or len(offsets) < tensors or min(offsets, default=0) < AT_RUNTIME:
                message = (
                    f"found {len(offsets)} offsets for {tensor_count} tensors, expected one of -1 or more for each of {tensors}"
                )
                raise InputError(message, place=OFFLINE_PLAN)
        return tuple(offsets[:tensors])


def _buffers(
    tensors: Sequence[TfliteTensor], lives: Scopes, offsets: Sequence[int], fixed: frozenset[int]
) -> tuple[tuple[int, ...], tuple[Buffer, ...]]:
    """Returns the indices of the used tensors whose offsets are not fixed, and the buffers of the packing problem.

    The first buffers are those of the returned indices, in their order. They are followed by buffers at fixed offsets for the
    tensors in ``fixed``.
    """
    planned, buffers, placed = [], [], []
    for number, tensor in enumerate(tensors):
        lower, upper = lives.first[number], lives.last[number] + 1
        if number in fixed:
            placed.append((lower, offsets[number], max(upper, lower + 1), offsets[number] + tensor.size))
        elif tensor.is_planned and upper > 0:
            planned.append(number)
            buffers.append(Buffer(id=tensor.name, lower=lower, upper=upper, size=tensor.size, alignment=ALIGNMENT))
    return tuple(planned), (*buffers, *_obstacles(placed))


def _part(tensor: TfliteTensor, offset: int, buffers: Sequence[Buffer]) -> Part:
    """Says where an output of the program is that is not among the planned tensors.

    It is a part of a buffer at a fixed offset, or in no buffer if the file stores it. ``offset`` is its offset in the offline
    plan.
    """
    size = tensor.size if tensor.is_planned else 0
    candidates = [box for box in buffers if box.offset is not None and box.offset <= offset <= box.offset + box.size - size]
    if size == 0 or not candidates:
        return Part(id=tensor.name, size=tensor.content if tensor.kind in _BYTES else 0)
    box = max(candidates, key=lambda box: box.upper)
    return Part(id=tensor.name, buffer=box.id, offset=offset - (box.offset or 0), size=size)


def _obstacles(placed: Sequence[_Box]) -> list[Buffer]:
    """Buffers at fixed offsets for tensors with fixed offsets.

    Tensors that overlap in time and bytes become one buffer that encloses them, because an accelerator may address its operands
    as parts of its scratch memory.
    """
    boxes: list[_Box] = []
    for box in placed:
        check_reading()
        while touching := [old for old in boxes if all(max(box[at], old[at]) < min(box[at + 2], old[at + 2]) for at in (0, 1))]:
            boxes = [other for other in boxes if other not in touching]
            starts, lows, ends, highs = zip(box, *touching, strict=True)
            box = (min(starts), min(lows), max(ends), max(highs))
        boxes.append(box)
    every = enumerate(boxes)
    return [Buffer(id=f"placed {at}", lower=box[0], upper=box[2], size=box[3] - box[1], offset=box[1]) for at, box in every]


def _has_data(buffer: FlatBuffer, table: int) -> bool:
    """Whether a buffer of the file has contents, which are in the flatbuffer or after it."""
    outside = buffer.number(table, BUFFER_OFFSET, "Q") > 1 and buffer.number(table, _BUFFER_SIZE, "Q") > 0
    return outside or buffer.vector(table, BUFFER_DATA)[1] > 0
