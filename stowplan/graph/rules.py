"""The rules of a valid graph of tensors and operators, and properties that are derived from a graph.

The rules apply to the :class:`~stowplan.graph.graph.Graph` that readers make. They also apply to problems of operator order and
of rematerialization, which are graphs with further fields. Tensors and operators are named by their positions in the fields
``tensors`` and ``ops``, which are called their numbers. A *view* is a tensor that shares the bytes of another one. The *base*
of a tensor is the tensor that owns its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Protocol

from stowplan.checks import expect, expect_range, expect_unique
from stowplan.errors import InputError

#: The sum of all sizes and alignments is less than this, so that the sum of two such sums fits in 64 bits.
LIMIT = 1 << 61


class TensorLike(Protocol):
    """A tensor, which has bytes of its own or is a view of another tensor's bytes."""

    @property
    def id(self) -> str:
        """Name, which no other tensor has."""

    @property
    def size(self) -> int:
        """Bytes. A view takes no memory of its own, whatever its size."""

    @property
    def alignment(self) -> int:
        """Its offset is a multiple of this many bytes."""

    @property
    def alias_of(self) -> int | None:
        """Number of the tensor whose bytes it shares; None if it has bytes of its own."""

    @property
    def start(self) -> int:
        """For a view: bytes from the start of the tensor ``alias_of`` to its own start."""


class OpLike(Protocol):
    """An operator. While it runs, its inputs and outputs are in memory."""

    @property
    def id(self) -> str:
        """Name, which no other operator has."""

    @property
    def kind(self) -> str:
        """Name of the operation, for people."""

    @property
    def reads(self) -> tuple[int, ...]:
        """Numbers of the tensors that it reads."""

    @property
    def writes(self) -> tuple[int, ...]:
        """Numbers of the tensors that it writes."""

    @property
    def in_place(self) -> tuple[tuple[int, int], ...]:
        """Pairs (operand, result) of tensor numbers: the result may overwrite the operand's bytes if no other operator still
        needs the operand."""

    @property
    def has_effects(self) -> bool:
        """Whether it has effects other than its results, or gives other results when it runs again. It then may run only
        once."""


class GraphRules:
    """Base class that validates the fields of a graph and derives properties from them.

    The fields have the meanings that the docstrings of :class:`~stowplan.graph.graph.Graph` give. Tensors in ``inputs`` exist
    from the start, those in ``outputs`` exist until the end, and those in ``results`` are what the program returns.
    ``free_inputs`` says whether the bytes of an input are free after its last reader. The properties are defined for graphs
    that :meth:`check_rules` accepts.
    """

    tensors: tuple[TensorLike, ...]
    ops: tuple[OpLike, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    free_inputs: bool
    precedences: tuple[tuple[int, int], ...]
    name: str
    results: tuple[int, ...] = ()

    def check_rules(self) -> None:
        """Raises :class:`~stowplan.errors.InputError` for the first rule that the graph breaks; the error names the place."""
        _check_tensors(self.tensors)
        _check_numbers(self.inputs, len(self.tensors), "inputs")
        _check_numbers(self.outputs, len(self.tensors), "outputs")
        for number, op in enumerate(self.ops):
            _check_op(self, op, f"ops[{number}] ({op.id})")
        expect_unique((op.id for op in self.ops), "ops")
        _check_writers(self)
        for at, pair in enumerate(self.precedences):
            _check_numbers(pair, len(self.ops), f"precedences[{at}]", "operator")
        sorter = TopologicalSorter(dict(enumerate(self.predecessors)))
        try:
            sorter.prepare()
        except CycleError as error:
            cycle = error.args[1]
            names = " -> ".join(self.ops[number].id for number in cycle[:6]) + (" -> ..." if len(cycle) > 6 else "")
            raise InputError(f"found a cycle of operators, {names}, expected none", place="ops") from None
        _check_numbers(sorted({*self.results}), len(self.tensors), "results")

    @cached_property
    def base(self) -> tuple[int, ...]:
        """For each tensor, the number of the tensor that owns its bytes: itself, or the end of its chain of views."""
        bases: list[int] = []
        for number in range(len(self.tensors)):
            at = number
            while (other := self.tensors[at].alias_of) is not None:
                at = bases[other] if other < len(bases) else other
            bases.append(at)
        return tuple(bases)

    @cached_property
    def base_offset(self) -> tuple[int, ...]:
        """For each tensor, the bytes from the start of its base to its own start."""
        offsets = []
        for tensor in self.tensors:
            offset = 0
            while tensor.alias_of is not None:
                offset, tensor = offset + tensor.start, self.tensors[tensor.alias_of]
            offsets.append(offset)
        return tuple(offsets)

    @cached_property
    def writer(self) -> tuple[int | None, ...]:
        """For each tensor, the number of the operator that writes it. It is None for inputs and unused tensors, and for views
        that exist as soon as the tensor ``alias_of`` does."""
        writers: list[int | None] = [None] * len(self.tensors)
        for number, op in enumerate(self.ops):
            for tensor in op.writes:
                writers[tensor] = number
        return tuple(writers)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """For each operator, the numbers of its predecessors, which must run before it, in ascending order.

        An operator P is a predecessor of an operator Q in these cases:

        - P writes a tensor that Q reads.
        - P writes the tensor of which Q writes a view.
        - ``precedences`` contains the pair (P, Q).

        A view that no operator writes exists as soon as the tensor ``alias_of`` exists. If the tensor in one of the first two
        cases is such a view, P is the writer of its ``alias_of``. If no operator writes that tensor either, P is the writer of
        the next tensor in the chain of views, and so on.
        """
        before: list[set[int]] = [set() for _ in self.ops]
        for number, op in enumerate(self.ops):
            for tensor in (*op.reads, *(tensor for tensor in op.writes if self.tensors[tensor].alias_of is not None)):
                at: int | None = tensor if tensor not in op.writes else self.tensors[tensor].alias_of
                # A view that no operator writes exists as soon as the tensor ``alias_of`` does, so the search goes on there.
                while at is not None and self.writer[at] is None:
                    at = self.tensors[at].alias_of
                producer = None if at is None else self.writer[at]
                if producer is not None:
                    before[number].add(producer)
        for first, second in self.precedences:
            before[second].add(first)
        return tuple(tuple(sorted(others)) for others in before)


def _check_numbers(numbers: Sequence[int], count: int, place: str, what: str = "tensor") -> None:
    """Raises InputError for a number that is not in ``[0, count)`` or that occurs twice.

    ``place`` and ``what`` name the field and the numbered objects in the message.
    """
    for number in numbers:
        expect_range(place, what, number, 0, count)
    if len(set(numbers)) < len(numbers):
        twice = next(number for at, number in enumerate(numbers) if number in numbers[:at])
        raise InputError(f"found {what} {twice} twice, expected each once", place=place)


def _check_tensors(tensors: Sequence[TensorLike]) -> None:
    """Checks sizes, alignments and names, and that every view lies within its base and is not a view of itself."""
    total = 0
    for number, tensor in enumerate(tensors):
        place = f"tensors[{number}] ({tensor.id})"
        expect(0 <= tensor.size < LIMIT, place, f"size {tensor.size}", f"0 to {LIMIT - 1} bytes")
        expect(1 <= tensor.alignment < LIMIT, place, f"alignment {tensor.alignment}", f"1 to {LIMIT - 1} bytes")
        total += tensor.size + tensor.alignment - 1
        if total >= LIMIT:
            raise InputError(f"the sizes and alignments add up to {total} bytes, expected less than {LIMIT}", place=place)
        if tensor.alias_of is not None:
            expect_range(place, "alias_of", tensor.alias_of, 0, len(tensors))
    expect_unique((tensor.id for tensor in tensors), "tensors")
    ends = [False] * len(tensors)
    for number in range(len(tensors)):
        chain, at = [], number
        while not ends[at]:
            chain.append(at)
            ends[at] = True
            other = tensors[at].alias_of
            if other is None:
                break
            expect(other not in chain, f"tensors[{at}].alias_of", "a tensor that is a view of itself", "none")
            view, base = tensors[at], tensors[other]
            most, start = f"at most the {base.size} of {base.id}", view.start
            what = f"a view of {view.size} bytes" + f" at offset {start}" * (start != 0)
            expect(0 <= start <= base.size - view.size, f"tensors[{at}] ({view.id})", what, most)
            at = other


def _check_op(problem: GraphRules, op: OpLike, place: str) -> None:
    """Checks the tensors that one operator reads and writes, and its pairs ``in_place``."""
    count = len(problem.tensors)
    _check_numbers(op.reads, count, f"{place}.reads")
    _check_numbers(op.writes, count, f"{place}.writes")
    both = set(op.reads) & set(op.writes)
    if both:
        name = problem.tensors[min(both)].id
        raise InputError(f"found tensor {name} both read and written, expected two tensors (in_place or alias_of)", place=place)
    paired: set[int] = set()
    for operand, result in op.in_place:
        _check_numbers((operand, result), count, f"{place}.in_place")
        one, other = problem.tensors[operand], problem.tensors[result]
        at, pair = f"{place}.in_place", f"{one.id} -> {other.id}"
        is_own = operand in op.reads and result in op.writes
        expect(is_own, at, pair, "a tensor that the operator reads and one that it writes")
        bases = problem.base[operand], problem.base[result]
        expect(other.alias_of is None, at, f"the view {other.id} as result", "a tensor of its own")
        expect(bases[0] != bases[1], at, f"the operand {one.id}, a view of the result {other.id}", "one with other bytes")
        size = problem.tensors[bases[0]].size
        expect(size == other.size, at, f"{size} and {other.size} bytes", f"the same for {pair}")
        expect(paired.isdisjoint(bases), at, f"the bytes of {one.id} or {other.id} in two pairs", "each in one")
        paired |= set(bases)


def _check_writers(problem: GraphRules) -> None:
    """Checks that each tensor has at most one writer, and an input none; that the base of every operand, result and output is
    an input or has a writer; and that the base of a view that is an input is an input as well."""
    writer: dict[int, int] = {}
    inputs = set(problem.inputs)
    for number, op in enumerate(problem.ops):
        for tensor in op.writes:
            name, place = problem.tensors[tensor].id, f"ops[{number}] ({op.id})"
            if tensor in writer:
                other = problem.ops[writer[tensor]].id
                raise InputError(f"found tensor {name} written twice, first by {other}, expected one writer", place=place)
            expect(tensor not in inputs, place, f"the input {name} written", "it to be there from the start")
            writer[tensor] = number
    available = [
        number in inputs or number in writer or tensor.alias_of is not None for number, tensor in enumerate(problem.tensors)
    ]
    for number, op in enumerate(problem.ops):
        for tensor in (*op.reads, *op.writes):
            if not available[tensor] or not available[problem.base[tensor]]:
                name = problem.tensors[problem.base[tensor]].id
                place = f"ops[{number}] ({op.id})"
                # A tensor with bytes of its own that an operator writes is available.
                does = "reading" if tensor in op.reads else f"writing {problem.tensors[tensor].id}, a view of"
                raise InputError(f"found it {does} tensor {name}, which no operator writes and is no input", place=place)
    for tensor in problem.outputs:
        if not available[problem.base[tensor]]:
            name = problem.tensors[problem.base[tensor]].id
            raise InputError(f"found tensor {name}, which no operator writes and is no input", place="outputs")
    for number, tensor_ in enumerate(problem.tensors):
        if number in inputs and tensor_.alias_of is not None and problem.base[number] not in inputs:
            base = problem.tensors[problem.base[number]].id
            raise InputError(f"found the view {tensor_.id} among them, but not its base {base}, expected both", place="inputs")
