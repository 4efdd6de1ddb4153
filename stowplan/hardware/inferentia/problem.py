"""From an affine program to a bank-mapping problem: bank rules, said of what operators see, become layouts of tensors.

Element ``i`` of a dimension that is spread stands in bank ``i mod banks``. An operator may want dimension ``v`` of an operand
spread. It can read a tensor as it is where some index of the tensor is equal to loop ``v`` modulo the number of banks. Where
loop ``v`` does not show in the access at all, every bank needs the same data, and reads it from the one bank it is in. In all
other cases it needs a copy of what it reads, a view.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from math import prod

from stowplan.deadline import check_reading
from stowplan.errors import InputError
from stowplan.hardware.affine.expression import Expression, Extents, add, index, modulo
from stowplan.hardware.affine.program import UNSPREAD, Copy, Load, Option, Program, Statement
from stowplan.hardware.inferentia.target import BankTarget
from stowplan.models.bank_mapping.problem import Operator, Problem, Tensor, Tile, View, split

#: Layout of an access that needs a view; the view's own number is given later.
_NEEDS_VIEW = -2


@dataclass(frozen=True)
class Access:
    """One read of one tensor by one statement, as a problem's operators count them."""

    load: int
    """Which of the statement's loads."""
    tensor: str


@dataclass(frozen=True)
class MappedProgram:
    """A program and its problem. Statements and operators have the same numbers."""

    program: Program
    problem: Problem
    accesses: tuple[tuple[Access, ...], ...]
    """For each statement, what its operator's reads are."""
    views: dict[tuple[str, int], tuple[Load, int]]
    """(tensor, view) to the load it materialises, and the loop that is spread."""
    names: tuple[str, ...]
    """For each tensor of the problem, the program's tensor that it is, or is a tile of."""
    tiles: tuple[Tile, ...]
    """For each tensor of the problem, which part of that it is."""


def build_problem(program: Program, target: BankTarget, *, capacity: int | None = None) -> MappedProgram:
    """Problem of mapping a program's tensors to the banks of a target.

    Parameters
    ----------
    program
        Checked (:mod:`stowplan.hardware.affine.check`).
    target
        With its banks and bandwidths.
    capacity
        Bytes, in place of the target's.

    Raises
    ------
    InputError
        Contradictory bank rules, naming the operator; a capacity below the target's stream buffer.
    """
    return _Mapping(program, target, capacity).built()


class _Mapping:
    """State of one translation."""

    def __init__(self, program: Program, target: BankTarget, capacity: int | None):
        self._program, self._target = program, target
        self._capacity = int(target.scratchpad.capacity) if capacity is None else capacity
        used = {name for statement in program.statements for load in statement.loads for name in load.tensors}
        used |= {name for statement in program.statements for name in statement.outputs}
        self._names = [name for name in program.tensors if name in used]
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._views: dict[str, dict[tuple[Load, int], int]] = {}
        self._layouts: dict[tuple[Load, str, int], int] = {}

    def built(self) -> MappedProgram:
        operators, accesses = [], []
        for statement in self._program.statements:
            check_reading()
            operator, reads = self._operator(statement)
            operators.append(operator)
            accesses.append(reads)
        copy_weight, off_chip_weight = self._target.weights
        inputs, outputs = set(self._program.inputs), set(self._program.outputs)
        tensors = []
        for name in self._names:
            tensor = self._program.tensors[name]
            views = tuple(
                View(f"{name}/{number}", self._read_bytes(load, name))
                for (load, _), number in self._views.get(name, {}).items()
            )
            tensors.append(
                Tensor(
                    name=name,
                    bytes=tensor.bytes,
                    shape=tensor.shape,
                    views=views,
                    is_input=name in inputs,
                    is_output=name in outputs,
                )
            )
        problem = Problem(
            banks=self._target.banks,
            capacity=self._capacity,
            tensors=tuple(tensors),
            operators=tuple(operators),
            copy_weight=copy_weight,
            off_chip_weight=off_chip_weight,
            name=self._program.name,
            target=self._target.name,
        )
        views_of = {(name, number): key for name, numbers in self._views.items() for key, number in numbers.items()}
        scratchpad = self._target.scratchpad
        tiled = split(problem, scratchpad.tile, scratchpad.stream_buffer or 0)
        names = tuple(self._names[tile.tensor] for tile in tiled.tiles)
        if len(names) > len(self._names):
            # An operator reads all tiles of what an access reads.
            counts = [sum(1 for _ in group) for _, group in groupby(tile.tensor for tile in tiled.tiles)]
            accesses = [tuple(read for read in reads for _ in range(counts[self._numbers[read.tensor]])) for reads in accesses]
        return MappedProgram(self._program, tiled.problem, tuple(accesses), views_of, names, tiled.tiles)

    def _operator(self, statement: Statement) -> tuple[Operator, tuple[Access, ...]]:
        reads = tuple(Access(number, name) for number, load in enumerate(statement.loads) for name in load.tensors)
        options: dict[tuple[int, ...], None] = {}
        for option in self._options(statement):
            loops = option[: len(statement.loads)]
            layouts = [self._layout(statement.loads[access.load], access.tensor, loops[access.load]) for access in reads]
            for name, dimension in zip(statement.outputs, option[len(statement.loads) :], strict=True):
                layouts.append(_normal(dimension, self._program.tensors[name].shape))
            options[tuple(layouts)] = None
        if not options:
            raise InputError("contradictory bank rules: found no option, expected one", place=f"operator {statement.name}")
        # Spread ways first: a dimension of size 1 is one bank, too.
        ordered = sorted(options, key=lambda layouts: all(layout == UNSPREAD for layout in layouts[len(reads) :]))
        operator = Operator(
            name=statement.name,
            op=statement.op,
            reads=tuple(self._numbers[access.tensor] for access in reads),
            read_bytes=tuple(self._read_bytes(statement.loads[access.load], access.tensor) for access in reads),
            writes=tuple(self._numbers[name] for name in statement.outputs),
            options=tuple(ordered),
            restricted=not isinstance(statement, Copy) and statement.restricted,
        )
        return operator, reads

    def _options(self, statement: Statement) -> Iterator[Option]:
        """Ways to compute it: (loop that is spread, for each load; dimension, for each output)."""
        if not isinstance(statement, Copy):
            yield from statement.options
            return
        for dimension, expression in enumerate(statement.store.index):
            for loop in range(len(statement.extents)):
                if self._follows(expression, loop, statement.extents):
                    yield loop, dimension
        yield UNSPREAD, UNSPREAD

    def _follows(self, expression: Expression, loop: int, extents: Extents) -> bool:
        """Whether an index is equal to a loop modulo the number of banks."""
        difference = add(expression, index(loop), extents, -1)
        return modulo(difference, self._target.banks, extents) == Expression(0)

    def _layout(self, load: Load, name: str, loop: int) -> int:
        """Layout in which a tensor can be read where a loop is spread; views get a number here."""
        if loop == UNSPREAD or load.extents[loop] == 1:
            return UNSPREAD
        key = (load, name, loop)
        layout = self._layouts.get(key)
        if layout is None:
            shape = self._program.tensors[name].shape
            layouts = {
                self._layout_of_piece(piece.index, load.extents, loop, shape) for piece in load.pieces if piece.tensor == name
            }
            layout = layouts.pop()
            if layouts or layout == _NEEDS_VIEW:
                views = self._views.setdefault(name, {})
                layout = len(shape) + views.setdefault((load, loop), len(views))
            self._layouts[key] = layout
        return layout

    def _layout_of_piece(self, indices: tuple[Expression, ...], extents: Extents, loop: int, shape: tuple[int, ...]) -> int:
        shows = False
        for dimension, expression in enumerate(indices):
            if loop in set(expression.indices()):
                shows = True
                if self._follows(expression, loop, extents):
                    return _normal(dimension, shape)
        return _NEEDS_VIEW if shows else UNSPREAD

    def _read_bytes(self, load: Load, name: str) -> int:
        """Bytes of a tensor that an access needs: an element an iteration of the loops that show in it, or all it has."""
        tensor = self._program.tensors[name]
        loops = {
            loop for piece in load.pieces if piece.tensor == name for expression in piece.index for loop in expression.indices()
        }
        return min(prod(load.extents[loop] for loop in loops), tensor.elements) * tensor.item_bytes


def _normal(dimension: int, shape: tuple[int, ...]) -> int:
    """A dimension of one element is in one bank, spread or not."""
    return UNSPREAD if dimension == UNSPREAD or shape[dimension] == 1 else dimension
