"""Says what is wrong with a planned model: it is read back and run on paper, each byte owned by the tensor written last.

Shares no code with what reads, orders and plans models, but for the access to fields of a flatbuffer. Which operators have
effects, and which may end an inference before later operators run, is data: the table ``effects`` of ``tflite.toml``.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from stowplan.frontends import known
from stowplan.frontends.tflite.flatbuffer import FlatBuffer

#: Bytes of an element by the number of its type.
_WIDTH = {0: 4, 1: 2, 2: 4, 3: 1, 4: 8, 6: 1, 7: 2, 8: 8, 9: 1, 10: 8, 11: 16, 12: 8, 13: 4, 15: 4, 16: 2, 17: 1, 18: 2}
_CUSTOM, _IF, _WHILE, _CALL_ONCE, _PLACEHOLDER, _VAR_HANDLE = 32, 118, 119, 129, 127, 142
_TABLE = known("tflite")
_KNOWN_CUSTOM, _OWN_STATE = _TABLE["operators"]["known_custom"].split(), _TABLE["effects"]["own_state"].split()
#: RESHAPE, SQUEEZE and EXPAND_DIMS copy their first operand.
_COPIES = (22, 43, 70)

#: Offsets and sizes are multiples of this many bytes.
_UNIT = 16

_BUFFERS, _METADATA, _SUBGRAPHS, _CODES = 4, 6, 2, 1


@dataclass(frozen=True)
class _Operator:
    table: int
    code: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    calls: tuple[int, ...]
    has_shared_effect: bool
    """Whether it keeps its sequence with all others of which that is so."""
    has_state: bool
    """Whether its kernel keeps a state of its own."""
    may_end: bool
    """Whether it may end the inference, so that no later operator runs."""


class _Model:
    """What the runtime reads of a file."""

    def __init__(self, data: bytes):
        file = FlatBuffer(data)
        root = file.follow(0)
        holders = file.tables(root, _BUFFERS)
        codes = file.tables(root, _CODES)
        shapes: list[list[int]] = []
        widths: list[int] = []
        elsewhere: set[int] = set()
        self.variables: set[int] = set()
        self.graphs: list[tuple[list[int], list[int], list[_Operator]]] = []
        """Inputs, outputs and operators of each subgraph."""
        for graph in file.tables(root, _SUBGRAPHS):
            begin = len(shapes)
            for number, tensor in enumerate(file.tables(graph, 0), begin):
                if file.number(tensor, 5, "B") > 0:
                    self.variables.add(number)
                if number in self.variables or file.vector(holders[file.number(tensor, 2, "I")], 0)[1] > 0:
                    elsewhere.add(number)
                shapes.append(file.integers(tensor, 0))
                widths.append(_WIDTH.get(file.number(tensor, 1, "b"), 0))
            operators = []
            for table in file.tables(graph, 3):
                entry = codes[file.number(table, 0, "I")]
                code = max(file.number(entry, 0, "b"), file.number(entry, 3, "i"))
                reads, writes = ([begin + at for at in file.integers(table, field) if at >= 0] for field in (1, 2))
                fields = {_IF: (0, 1), _WHILE: (0, 1), _CALL_ONCE: (0,)}.get(code, ())
                calls = [file.number(file.follow(file.field(table, 4) or 0), field, "i") for field in fields]
                name = file.text(entry, 1) if code == _CUSTOM else str(code)
                is_builtin = code < _TABLE["operators"]["builtin_end"] and code not in (_CUSTOM, _PLACEHOLDER)
                is_unknown = not is_builtin and name not in _KNOWN_CUSTOM
                deciding = _TABLE["effects"]["ends"].get(name)
                # What is neither in the arena nor a variable is stored in the file.
                values = [reads[at] for at in deciding or () if at < len(reads)]
                may_end = is_unknown or deciding == [] or any(at not in elsewhere or at in self.variables for at in values)
                effects = is_unknown or code in _TABLE["effects"]["shared"], name in _OWN_STATE
                operators.append(_Operator(table, code, tuple(reads), tuple(writes), tuple(calls), *effects, may_end))
                if code == _VAR_HANDLE:
                    elsewhere.add(writes[0])
                if len(writes) == 1:
                    at = file.field(table, 4)
                    option = partial(file.option, None if at is None else file.follow(at))
                    shapes[writes[0]] = _result_shape(code, shapes[writes[0]], [shapes[number] for number in reads], option)
            ends = ([begin + at for at in file.integers(graph, field)] for field in (1, 2))
            self.graphs.append((*ends, operators))  # type: ignore[arg-type]
        self.contents = [math.prod(shape) * width for shape, width in zip(shapes, widths, strict=True)]
        """Bytes of the elements of each tensor."""
        sizes = enumerate(-(-content // _UNIT) * _UNIT for content in self.contents)
        self.sizes = [0 if number in elsewhere else size for number, size in sizes]
        """Bytes in the arena of each tensor; 0 where it has none."""
        self.plan: list[int] = []
        """The words of the offline plan."""
        for entry in file.tables(root, _METADATA):
            if file.text(entry, 0) == "OfflineMemoryAllocation":
                start, count = file.vector(holders[file.number(entry, 1, "I")], 0)
                self.plan = list(file.unpack(start, f"{count // 4}i"))


def _result_shape(code: int, declared: list[int], operands: list[list[int]], option: Callable[[int, str], int]) -> list[int]:
    """The shape that a kernel writes over the declared one of its result; the declared one of all other kernels."""
    first, second = [*operands, [], []][:2]
    if code == 22:  # RESHAPE
        rest = [extent for extent in declared if extent != -1]
        is_scalar = declared == [0] and len(operands) == 1
        return [] if is_scalar else [math.prod(first) // math.prod(rest) if extent == -1 else extent for extent in declared]
    if code == 36:  # GATHER
        axis, batches = option(0, "i") % len(first), option(1, "i")
        return first[:axis] + second[batches + len(second) * (batches < 0) :] + first[axis + 1 :]
    if code == 107:  # GATHER_ND
        return second[:-1] + first[second[-1] :]
    if code == 7:  # EMBEDDING_LOOKUP
        return first[:1] + second[1:] + declared[len(second) :]
    if code == 126:  # BATCH_MATMUL
        first, second = ([1] * (max(len(first), len(second)) - len(shape)) + shape for shape in (first, second))
        ends = [first[-1 if option(0, "B") else -2], second[-2 if option(1, "B") else -1]]
        return [*map(max, first[:-2], second[:-2]), *ends]
    if code in (5, 26):  # DEPTH_TO_SPACE, SPACE_TO_DEPTH
        block = option(0, "i")
        extents = first[1] * block, first[2] * block, first[3] // block**2
        return [first[0], *(extents if code == 5 else (first[1] // block, first[2] // block, first[3] * block**2))]
    if code == 12:  # L2_POOL_2D
        taps = (option(4, "i"), option(3, "i")) if option(0, "b") else (1, 1)
        return [first[0], *(1 + (first[1 + at] - taps[at]) // option(2 - at, "i") for at in (0, 1)), first[3]]
    return declared


class _Run:
    """One inference on paper.

    Parameters
    ----------
    offsets
        Of each tensor, -1 where the runtime places it; none: nothing is asked of bytes.
    scratch
        Offset and size of each piece of scratch memory, by the table of its operator.
    unchecked
        Tensors that may share bytes with one another.
    shift
        Bytes before the tables of operators that are not counted.
    shares
        Bytes from a result's begin up to an operand's end, at least, where the result may lie in its bytes: by operand and
        result; None where it may only have the operand's offset.
    kept
        Tensors that are as they were at the end.
    """

    def __init__(
        self,
        model: _Model,
        offsets: Sequence[int],
        scratch: Mapping[int, Sequence[tuple[int, int]]],
        unchecked: frozenset[int] = frozenset(),
        shift: int = 0,
        shares: Mapping[tuple[int, int], int | None] | None = None,
        kept: Sequence[int] = (),
    ):
        self._shares = shares or {}
        self._model, self._offsets, self._scratch, self._unchecked = model, offsets, scratch, unchecked
        self._shift = shift
        self._callers: tuple[int, ...] = ()
        pieces = [(at, model.sizes[number]) for number, at in enumerate(offsets)]
        top = max((at + size for at, size in [*pieces, *(piece for every in scratch.values() for piece in every)]), default=0)
        self._owner = np.full(-(-max(top, 0) // _UNIT), -1, np.int64)
        """By :meth:`_mark`, what is there."""
        self._writings = 0
        self._held: dict[int, int] = {}
        """The writing that each tensor holds; of a copy, that of what it was copied from."""
        self._value: dict[int, object] = {}
        """What each tensor holds: the operator that wrote it."""
        self.read: dict[tuple[int, ...], list[object]] = {}
        """What each operator has read, by its table and those of its callers, and what each subgraph has returned."""
        self.effects: dict[object, list[tuple[int, ...]]] = {}
        """Operators that work on each variable and each state, and those with shared effects, in their sequence."""
        self.sides: list[tuple[tuple[bool, bool], list[tuple[int, ...]]]] = []
        """Operators that have effects, and those that may end the inference, in groups of which none changes its place."""
        self.wrong: list[str] = []
        self._graph(0, "the input")
        self._expect(kept, "before the end of the run")

    def _span(self, number: int) -> slice | None:
        if not self._offsets or self._offsets[number] < 0 or not self._model.sizes[number]:
            return None
        return slice(self._offsets[number] // _UNIT, (self._offsets[number] + self._model.sizes[number]) // _UNIT)

    def _mark(self, number: int, span: slice) -> int:
        """What a tensor holds, and where that begins."""
        return self._held.get(number, 0) * len(self._owner) + int(span.start)

    def _write(self, numbers: Iterable[int], value: object, copied: int | None = None) -> None:
        for number in numbers:
            self._writings += 1
            self._value[number] = value, number
            self._held[number] = self._writings if copied is None else self._held[copied]
            if (span := self._span(number)) is not None:
                self._owner[span] = self._mark(number, span)

    def _expect(self, numbers: Iterable[int], when: str) -> None:
        """The tensors hold what was written to them."""
        for number in numbers:
            span = self._span(number)
            if span is None or number in self._unchecked or number not in self._value:
                continue
            if (self._owner[span] != self._mark(number, span)).any():
                self.wrong.append(f"tensor {number} is overwritten {when}")

    def _graph(self, graph: int, value: object) -> None:
        inputs, outputs, operators = self._model.graphs[graph]
        self._write(inputs, value)
        self._expect(inputs, "by another input")
        for operator in operators:
            self._operator(operator)
        self._expect(outputs, f"before the end of subgraph {graph}")
        self.read.setdefault((*self._callers, -1 - graph), []).extend(self._value.get(number) for number in outputs)

    def _operator(self, operator: _Operator) -> None:
        key = operator.table - self._shift
        path, when = (*self._callers, key), f"before or while an operator of code {operator.code} runs"
        self._expect(operator.reads, when)
        self.read.setdefault(path, []).extend(self._value.get(number) for number in operator.reads)
        effects: list[object] = [number for number in (*operator.reads, *operator.writes) if number in self._model.variables]
        effects += ["shared"] * operator.has_shared_effect + [("state of", key)] * operator.has_state
        for effect in effects:
            self.effects.setdefault(effect, []).append(path)
        # Within a group the sequence does not matter, or is that of the effects above.
        kind = bool(effects), operator.may_end
        if any(kind):
            if not self.sides or kind != self.sides[-1][0] or all(kind):
                self.sides.append((kind, []))
            bisect.insort(self.sides[-1][1], path)
        # What nobody has written is memory of the operator's own.
        self._write([number for number in operator.reads if number not in self._value and self._model.sizes[number]], key)
        self._write(operator.writes, key, operator.reads[0] if self._is_copy(operator) else None)
        for at, size in self._scratch.get(key, ()):
            self._owner[at // _UNIT : (at + size) // _UNIT] = -1
        taken = [number for number in operator.reads if self._is_taken(number, operator)]
        self._expect([number for number in (*operator.reads, *operator.writes) if number not in taken], when)
        # A loop runs twice: what it ends with is what it begins with.
        self._callers = path
        for called in operator.calls * (2 if operator.code == _WHILE else 1):
            self._graph(called, self._callers)
            self._expect((*operator.reads, *operator.writes), f"by subgraph {called}")
        self._callers = self._callers[:-1]

    def _is_copy(self, operator: _Operator) -> bool:
        """Whether an operator leaves its result with the bytes of its first operand, which it may do in place."""
        pairs = [pair for pair in zip(operator.reads[:1], operator.writes, strict=False) if pair in self._shares]
        if operator.code not in _COPIES or len(pairs) != 1:
            return False
        operand, result = (self._span(number) for number in pairs[0])
        if operand is None or result is None or operand.stop - operand.start != result.stop - result.start:
            return False
        return operand == result or operand.stop <= result.start or result.stop <= operand.start

    def _is_taken(self, operand: int, operator: _Operator) -> bool:
        """Whether nothing but the operator's result lies in bytes of an operand, no nearer to its begin than it may.

        Who reads the operand later finds it overwritten.
        """
        if operator.calls or len(operator.writes) != 1:
            return False
        (result,) = operator.writes
        span, of_result = self._span(operand), self._span(result)
        if (operand, result) not in self._shares or span is None or of_result is None or operand == result:
            return False
        distance, above = self._shares[operand, result], self._offsets[operand] - self._offsets[result]
        if above != 0 if distance is None else distance > above + self._model.contents[operand]:
            return False
        return bool(np.isin(self._owner[span], (self._mark(operand, span), self._mark(result, of_result))).all())


def faults(
    source: bytes,
    planned: bytes,
    scratch: Mapping[tuple[int, int], Sequence[tuple[int, int]]],
    unchecked: frozenset[int] = frozenset(),
    shares: Mapping[tuple[int, int], int | None] | None = None,
    kept: Sequence[int] = (),
) -> list[str]:
    """What is wrong, one line each; empty where nothing is.

    Parameters
    ----------
    source
        The model as it was.
    planned
        The same with offsets, its operators perhaps in another order.
    scratch
        Offset and size of each piece of scratch memory, by the subgraph and the place in ``source`` of the operator.
    unchecked
        Tensors that stand where they did, and may share bytes with one another.
    shares
        Least bytes from the begin of an operator's result up to the end of its operand, for each (operand, result) that may
        share bytes while the operator runs; the end is that of the operand's elements. None: the result may only have the
        operand's offset, where a copy stays for as long as nothing else is written. Others share none.
    kept
        Inputs that survive the run.
    """
    before, after = _Model(source), _Model(planned)
    words, counts = after.plan, [len(after.graphs), len(after.sizes)]
    if words[1:3] != counts or len(words) != 3 + counts[1]:
        return [f"the plan is of {words[1:3]} subgraphs and tensors, the model has {counts}"]
    if any(at != -1 and (at < 0 or at % _UNIT) for number, at in enumerate(words[3:]) if number not in unchecked):
        return [f"an offset is no multiple of {_UNIT}"]
    # The old file is the end of the new one, so tables keep their places from there.
    shift = len(planned) - len(source)
    for number, ((_, _, old), (_, _, new)) in enumerate(zip(before.graphs, after.graphs, strict=True)):
        if sorted(operator.table + shift for operator in old) != sorted(operator.table for operator in new):
            return [f"the operators of subgraph {number} are not those that were there"]
    tables = {
        (graph, at): operator.table for graph, (_, _, every) in enumerate(before.graphs) for at, operator in enumerate(every)
    }
    old_run = _Run(before, (), {})
    its_scratch = {tables[name]: pieces for name, pieces in scratch.items()}
    new_run = _Run(after, words[3:], its_scratch, unchecked, shift, shares, kept)
    wrong = list(dict.fromkeys(new_run.wrong))
    if new_run.read != old_run.read:
        wrong.append("an operator reads other values than before")
    if new_run.effects != old_run.effects:
        wrong.append("operators with effects run in another sequence")
    if new_run.sides != old_run.sides:
        wrong.append("an operator with effects runs on the other side of one that may end the inference")
    return wrong
