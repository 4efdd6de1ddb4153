"""Says what is wrong with a planned model: it is read back and run on paper, each byte owned by the tensor written last.

Shares no code with what reads, orders and plans models, but for the access to fields of a flatbuffer. Which operators have
effects, and which may end an inference before later operators run, is data: the table ``effects`` of ``tflite.toml``.
"""

from __future__ import annotations

import bisect
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stowplan.frontends import known
from stowplan.frontends.arena.flatbuffer import FlatBuffer

#: Bytes of an element by the number of its type.
_WIDTH = {0: 4, 1: 2, 2: 4, 3: 1, 4: 8, 6: 1, 7: 2, 8: 8, 9: 1, 10: 8, 11: 16, 12: 8, 13: 4, 15: 4, 16: 2, 17: 1, 18: 2}
_CUSTOM, _IF, _WHILE, _CALL_ONCE, _PLACEHOLDER, _VAR_HANDLE = 32, 118, 119, 129, 127, 142
_TABLE = known("arena/tflite")
_KNOWN_CUSTOM, _OWN_STATE = _TABLE["operators"]["known_custom"].split(), _TABLE["effects"]["own_state"].split()

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
        self.sizes: list[int] = []
        """Bytes in the arena of each tensor; 0 where it has none."""
        self.contents: list[int] = []
        """Bytes of its elements."""
        self.variables: set[int] = set()
        self.graphs: list[tuple[list[int], list[int], list[_Operator]]] = []
        """Inputs, outputs and operators of each subgraph."""
        for graph in file.tables(root, _SUBGRAPHS):
            begin = len(self.sizes)
            for tensor in file.tables(graph, 0):
                is_variable = file.number(tensor, 5, "B") > 0
                if is_variable:
                    self.variables.add(len(self.sizes))
                is_stored = file.vector(holders[file.number(tensor, 2, "I")], 0)[1] > 0
                bytes_ = math.prod(file.integers(tensor, 0)) * _WIDTH.get(file.number(tensor, 1, "b"), 0)
                self.contents.append(bytes_)
                self.sizes.append(0 if is_stored or is_variable else -(-bytes_ // _UNIT) * _UNIT)
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
                may_end = is_unknown or deciding == [] or any(self.sizes[at] or at in self.variables for at in values)
                effects = is_unknown or code in _TABLE["effects"]["shared"], name in _OWN_STATE
                operators.append(_Operator(table, code, tuple(reads), tuple(writes), tuple(calls), *effects, may_end))
                if code == _VAR_HANDLE:
                    self.sizes[writes[0]] = 0
            ends = ([begin + at for at in file.integers(graph, field)] for field in (1, 2))
            self.graphs.append((*ends, operators))  # type: ignore[arg-type]
        self.plan: list[int] = []
        """The words of the offline plan."""
        for entry in file.tables(root, _METADATA):
            if file.text(entry, 0) == "OfflineMemoryAllocation":
                start, count = file.vector(holders[file.number(entry, 1, "I")], 0)
                self.plan = list(struct.unpack_from(f"<{count // 4}i", data, start))


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
        result.
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
        shares: Mapping[tuple[int, int], int] | None = None,
        kept: Sequence[int] = (),
    ):
        self._shares = shares or {}
        self._model, self._offsets, self._scratch, self._unchecked = model, offsets, scratch, unchecked
        self._shift = shift
        self._callers: tuple[int, ...] = ()
        pieces = [(at, model.sizes[number]) for number, at in enumerate(offsets)]
        top = max((at + size for at, size in [*pieces, *(piece for every in scratch.values() for piece in every)]), default=0)
        self._owner = np.full(-(-max(top, 0) // _UNIT), -1, np.int32)
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

    def _write(self, numbers: Iterable[int], value: object) -> None:
        for number in numbers:
            self._value[number] = value, number
            if (span := self._span(number)) is not None:
                self._owner[span] = number

    def _expect(self, numbers: Iterable[int], when: str) -> None:
        """The tensors hold what was written to them."""
        for number in numbers:
            span = self._span(number)
            if span is None or number in self._unchecked or number not in self._value:
                continue
            if (self._owner[span] != number).any():
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
        self._write(operator.writes, key)
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

    def _is_taken(self, operand: int, operator: _Operator) -> bool:
        """Whether nothing but the operator's result lies in bytes of an operand, no nearer to its begin than it may.

        Who reads the operand later finds it overwritten.
        """
        if operator.calls or len(operator.writes) != 1:
            return False
        (result,) = operator.writes
        distance, span = self._shares.get((operand, result)), self._span(operand)
        if distance is None or span is None or self._span(result) is None or operand == result:
            return False
        if self._offsets[result] + distance > self._offsets[operand] + self._model.contents[operand]:
            return False
        return bool(np.isin(self._owner[span], (operand, result)).all())


def faults(
    source: bytes,
    planned: bytes,
    scratch: Mapping[tuple[int, int], Sequence[tuple[int, int]]],
    unchecked: frozenset[int] = frozenset(),
    shares: Mapping[tuple[int, int], int] | None = None,
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
        share bytes while the operator runs; the end is that of the operand's elements. Others share none.
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
