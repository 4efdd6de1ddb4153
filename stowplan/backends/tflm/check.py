"""Checks a planned model: reads it back and simulates one inference, that is, one run of the model.

The simulation records for each unit of 16 bytes of the arena which tensor was written to it last. A tensor was overwritten too
early if a unit of its bytes belongs to another tensor when its value is needed. The *value* of a tensor is symbolic: it says
which operator wrote it. Tensors are given by their indices among the tensors of all subgraphs, as the plan in the file counts
them (its *offline plan*). A *kernel* is the code of an operator in the runtime, TensorFlow Lite Micro, and a *scratch buffer*
is temporary memory of a kernel. The *head* of the arena has all tensors and scratch buffers that a plan may place.

This module shares no code with the modules that read, order and plan models, except for access to the fields of a flatbuffer.
The table ``effects`` of ``tflite.toml`` says which operators have side effects, and which may end an inference before later
operators run.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from stowplan.frontends import load_facts
from stowplan.frontends.tflite.flatbuffer import FlatBuffer

#: Bytes of an element, by the number of its type in the TensorFlow Lite schema.
_ITEM_BYTES = {0: 4, 1: 2, 2: 4, 3: 1, 4: 8, 6: 1, 7: 2, 8: 8, 9: 1, 10: 8, 11: 16, 12: 8, 13: 4, 15: 4, 16: 2, 17: 1, 18: 2}
#: Numbers of operators in the schema.
_CUSTOM, _IF, _WHILE, _CALL_ONCE, _PLACEHOLDER, _VAR_HANDLE = 32, 118, 119, 129, 127, 142
_TABLE = load_facts("tflite")
#: Names of custom operators whose effects are known, and of operators whose kernels have a state.
_KNOWN_CUSTOM, _OWN_STATE = _TABLE["operators"]["known_custom"].split(), _TABLE["effects"]["own_state"].split()
#: RESHAPE, SQUEEZE and EXPAND_DIMS copy their first operand.
_COPIES = (22, 43, 70)

#: Offsets and sizes are multiples of this many bytes.
_UNIT = 16

#: Numbers of the fields of a model's root table in the schema.
_BUFFERS, _METADATA, _SUBGRAPHS, _CODES = 4, 6, 2, 1


@dataclass(frozen=True)
class _Operator:
    """An operator of a model file."""

    table: int
    """Position of its table in the file, which identifies it."""
    code: int
    """Number of the operator in the schema."""
    reads: tuple[int, ...]
    """Indices of its operands among the tensors of all subgraphs."""
    writes: tuple[int, ...]
    """Indices of its results among the tensors of all subgraphs."""
    calls: tuple[int, ...]
    """Indices of the subgraphs that it runs."""
    has_shared_effect: bool
    """Whether it must keep its order relative to all other operators with this flag."""
    has_state: bool
    """Whether its kernel keeps a state from one inference to the next."""
    may_end: bool
    """Whether it may end the inference, so that no later operator runs."""


class _Model:
    """The parts of a model file that the runtime reads."""

    def __init__(self, data: bytes):
        file = FlatBuffer(data)
        root = file.follow(0)
        holders = file.tables(root, _BUFFERS)
        codes = file.tables(root, _CODES)
        shapes: list[list[int]] = []
        widths: list[int] = []
        # Tensors that have no bytes in the head of the arena: constants, variables and resource handles.
        elsewhere: set[int] = set()
        self.variables: set[int] = set()
        """Indices of the tensors that keep their values from one inference to the next."""
        self.graphs: list[tuple[list[int], list[int], list[_Operator]]] = []
        """[subgraphs] Inputs, outputs and operators."""
        for graph in file.tables(root, _SUBGRAPHS):
            begin = len(shapes)
            for number, tensor in enumerate(file.tables(graph, 0), begin):
                if file.number(tensor, 5, "B") > 0:
                    self.variables.add(number)
                if number in self.variables or file.vector(holders[file.number(tensor, 2, "I")], 0)[1] > 0:
                    elsewhere.add(number)
                shapes.append(file.integers(tensor, 0))
                widths.append(_ITEM_BYTES.get(file.number(tensor, 1, "b"), 0))
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
                # A tensor that is neither in the head nor a variable has constant values in the file.
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
        """[tensors] Bytes of the elements."""
        sizes = enumerate(-(-content // _UNIT) * _UNIT for content in self.contents)
        self.sizes = [0 if number in elsewhere else size for number, size in sizes]
        """[tensors] Bytes in the arena; 0 for a tensor outside of it."""
        self.plan: list[int] = []
        """The 32-bit words of the offline plan."""
        for entry in file.tables(root, _METADATA):
            if file.text(entry, 0) == "OfflineMemoryAllocation":
                start, count = file.vector(holders[file.number(entry, 1, "I")], 0)
                self.plan = list(file.unpack(start, f"{count // 4}i"))


def _result_shape(code: int, declared: list[int], operands: list[list[int]], option: Callable[[int, str], int]) -> list[int]:
    """Returns the shape of a result. Some kernels compute it and ignore the declared shape; all others use the declared one.

    ``operands`` are the shapes of the operands, and ``option`` reads an option by its field and format.
    """
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


class _Simulation:
    """Simulates one inference and records which values operators read, and each tensor that is overwritten too early.

    Parameters
    ----------
    model
        The model file, original or planned.
    offsets
        [tensors] Offsets in bytes; -1 for a tensor that the runtime places. If empty, overwriting is not checked.
    scratch
        Offsets and sizes in bytes of scratch buffers, by the position of their operator's table in the file.
    unchecked
        Tensors whose contents are not checked, because they may share bytes with one another.
    shift
        Number that is subtracted from positions of tables, so that operators have the same keys in files of different length.
    shares
        The tensors that may share bytes: from (operand, result) to the least number of bytes from the start of the result to
        the end of the operand. None in place of the number means that the result may only have the offset of the operand.
    kept
        Tensors that must be unchanged at the end.
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
        """[units of the arena] The mark (see :meth:`_mark`) of the tensor that was written there last; -1 for none."""
        self._write_count = 0
        self._contents: dict[int, int] = {}
        """From a tensor to the number of the write that gave it its contents; a copy has the number of its original."""
        self._value: dict[int, object] = {}
        """From a tensor to its symbolic value: the operator that wrote it, and which result."""
        self.values_read: dict[tuple[int, ...], list[object]] = {}
        """The values that each operator has read, by the tables of its callers and its own. For a subgraph that has run, the
        values that it has returned, by the tables of its callers and a negative number."""
        self.effects: dict[object, list[tuple[int, ...]]] = {}
        """The operators that use a variable or a state, by the variable or the state, and the operators with shared effects, in
        the order in which they ran."""
        self.effect_groups: list[tuple[tuple[bool, bool], list[tuple[int, ...]]]] = []
        """Operators with effects and operators that may end the inference, in groups; the order of the groups must not
        change."""
        self.violations: list[str] = []
        self._graph(0, "the input")
        self._expect(kept, "before the end of the run")

    def _span(self, number: int) -> slice | None:
        """Returns the units of the arena that a tensor occupies; None if it has no offset or no bytes there."""
        if not self._offsets or self._offsets[number] < 0 or not self._model.sizes[number]:
            return None
        return slice(self._offsets[number] // _UNIT, (self._offsets[number] + self._model.sizes[number]) // _UNIT)

    def _mark(self, number: int, span: slice) -> int:
        """Returns a number that identifies the contents of a tensor together with its position in the arena."""
        return self._contents.get(number, 0) * len(self._owner) + int(span.start)

    def _write(self, numbers: Iterable[int], value: object, copied: int | None = None) -> None:
        """Write a value to tensors; a copy has the same contents as the tensor ``copied``."""
        for number in numbers:
            self._write_count += 1
            self._value[number] = value, number
            self._contents[number] = self._write_count if copied is None else self._contents[copied]
            if (span := self._span(number)) is not None:
                self._owner[span] = self._mark(number, span)

    def _expect(self, numbers: Iterable[int], when: str) -> None:
        """Report each tensor of which a byte was overwritten since it was written."""
        for number in numbers:
            span = self._span(number)
            if span is None or number in self._unchecked or number not in self._value:
                continue
            if (self._owner[span] != self._mark(number, span)).any():
                self.violations.append(f"tensor {number} is overwritten {when}")

    def _graph(self, graph: int, value: object) -> None:
        """Run a subgraph whose inputs have this value."""
        inputs, outputs, operators = self._model.graphs[graph]
        self._write(inputs, value)
        self._expect(inputs, "by another input")
        for operator in operators:
            self._operator(operator)
        self._expect(outputs, f"before the end of subgraph {graph}")
        self.values_read.setdefault((*self._callers, -1 - graph), []).extend(self._value.get(number) for number in outputs)

    def _operator(self, operator: _Operator) -> None:
        """Run an operator, and the subgraphs that it calls."""
        key = operator.table - self._shift
        path, when = (*self._callers, key), f"before or while an operator of code {operator.code} runs"
        self._expect(operator.reads, when)
        self.values_read.setdefault(path, []).extend(self._value.get(number) for number in operator.reads)
        effects: list[object] = [number for number in (*operator.reads, *operator.writes) if number in self._model.variables]
        effects += ["shared"] * operator.has_shared_effect + [("state of", key)] * operator.has_state
        for effect in effects:
            self.effects.setdefault(effect, []).append(path)
        # Within a group the order does not matter, or is checked by the effects above.
        kind = bool(effects), operator.may_end
        if any(kind):
            if not self.effect_groups or kind != self.effect_groups[-1][0] or all(kind):
                self.effect_groups.append((kind, []))
            bisect.insort(self.effect_groups[-1][1], path)
        # A tensor that was never written is private memory of the operator.
        self._write([number for number in operator.reads if number not in self._value and self._model.sizes[number]], key)
        self._write(operator.writes, key, operator.reads[0] if self._is_copy(operator) else None)
        for at, size in self._scratch.get(key, ()):
            self._owner[at // _UNIT : (at + size) // _UNIT] = -1
        overwritable = [number for number in operator.reads if self._may_overwrite(number, operator)]
        self._expect([number for number in (*operator.reads, *operator.writes) if number not in overwritable], when)
        # A loop runs twice here, because the second iteration reads values that the first one has written.
        self._callers = path
        for called in operator.calls * (2 if operator.code == _WHILE else 1):
            self._graph(called, self._callers)
            self._expect((*operator.reads, *operator.writes), f"by subgraph {called}")
        self._callers = self._callers[:-1]

    def _is_copy(self, operator: _Operator) -> bool:
        """Whether the result of an operator equals its first operand byte for byte, and sharing bytes with it is allowed."""
        pairs = [pair for pair in zip(operator.reads[:1], operator.writes, strict=False) if pair in self._shares]
        if operator.code not in _COPIES or len(pairs) != 1:
            return False
        operand, result = (self._span(number) for number in pairs[0])
        if operand is None or result is None or operand.stop - operand.start != result.stop - result.start:
            return False
        return operand == result or operand.stop <= result.start or result.stop <= operand.start

    def _may_overwrite(self, operand: int, operator: _Operator) -> bool:
        """Whether an operator may overwrite an operand with its result: nothing else lies there, and the distance is allowed.

        If a later operator reads the operand, that operator's check reports it as overwritten.
        """
        if operator.calls or len(operator.writes) != 1:
            return False
        (result,) = operator.writes
        span, of_result = self._span(operand), self._span(result)
        if (operand, result) not in self._shares or span is None or of_result is None or operand == result:
            return False
        distance, offset_difference = self._shares[operand, result], self._offsets[operand] - self._offsets[result]
        if offset_difference != 0 if distance is None else distance > offset_difference + self._model.contents[operand]:
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
    """Checks a planned model against the original, and returns a line for each fault; an empty list if the plan is valid.

    Parameters
    ----------
    source
        Contents of the original model file.
    planned
        Contents of the file with offsets, in which operators may have another order.
    scratch
        Offsets and sizes in bytes of scratch buffers, by the subgraph of the operator and its position in ``source``.
    unchecked
        Indices of the tensors whose offsets were fixed in ``source``. They may share bytes with one another.
    shares
        The tensors that may share bytes while an operator runs: from (operand, result) to the least number of bytes from the
        start of the result to the end of the operand's elements. None in place of the number means that the result may only
        have the operand's offset. All other tensors must not share bytes while both are needed.
    kept
        Indices of the inputs that must be preserved until the end of the inference.

    Raises
    ------
    InputError
        A reference in one of the files points beyond its end.
    """
    before, after = _Model(source), _Model(planned)
    words, counts = after.plan, [len(after.graphs), len(after.sizes)]
    if words[1:3] != counts or len(words) != 3 + counts[1]:
        return [f"the plan is of {words[1:3]} subgraphs and tensors, the model has {counts}"]
    if any(at != -1 and (at < 0 or at % _UNIT) for number, at in enumerate(words[3:]) if number not in unchecked):
        return [f"an offset is no multiple of {_UNIT}"]
    # The new file ends with the old one, so that the positions of tables differ by a constant.
    shift = len(planned) - len(source)
    for number, ((_, _, old), (_, _, new)) in enumerate(zip(before.graphs, after.graphs, strict=True)):
        if sorted(operator.table + shift for operator in old) != sorted(operator.table for operator in new):
            return [f"the operators of subgraph {number} are not those that were there"]
    tables = {
        (graph, at): operator.table for graph, (_, _, every) in enumerate(before.graphs) for at, operator in enumerate(every)
    }
    old_run = _Simulation(before, (), {})
    scratch_by_table = {tables[name]: pieces for name, pieces in scratch.items()}
    new_run = _Simulation(after, words[3:], scratch_by_table, unchecked, shift, shares, kept)
    violations = list(dict.fromkeys(new_run.violations))
    if new_run.values_read != old_run.values_read:
        violations.append("an operator reads other values than before")
    if new_run.effects != old_run.effects:
        violations.append("operators with effects run in another sequence")
    if new_run.effect_groups != old_run.effect_groups:
        violations.append("an operator with effects runs on the other side of one that may end the inference")
    return violations
