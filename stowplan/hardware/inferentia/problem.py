"""Turns an affine program into a bank-mapping problem: bank rules of operators become layouts of tensors.

If a dimension of a tensor is spread over the banks, the element with index ``i`` in this dimension is in bank ``i mod banks``.
The *layout* of a tensor says which dimension is spread, or that none is. The *bank rule* of an operator is a list of *options*,
each of which says which dimensions of its operands and outputs are spread. An option may require that dimension ``v`` of an
operand is spread, as the operator sees the operand. In the operator's access to a tensor, this dimension is loop ``v``. There
are three cases:

- An index expression of the access is equal to the index of loop ``v`` modulo the number of banks. Then the operator can read
  the tensor itself, if the tensor is spread along the dimension of this expression.
- Loop ``v`` does not occur in the access. Then every bank needs the same data, and reads it from the one bank that has it.
- Otherwise, the operator needs a *view*, which is a rearranged copy of the data that it reads.
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

#: The layout of an access that needs a view, until the view has its number.
_NEEDS_VIEW = -2


@dataclass(frozen=True)
class Access:
    """One read of one tensor by one statement; operators of problems list their reads in the same way."""

    load: int
    """Number of the load among the statement's loads."""
    tensor: str
    """Name of the tensor."""


@dataclass(frozen=True)
class MappedProgram:
    """A program and its bank-mapping problem. Operator ``i`` of the problem is statement ``i`` of the program."""

    program: Program
    """The affine program."""
    problem: Problem
    """The problem, whose large tensors are split into tiles."""
    accesses: tuple[tuple[Access, ...], ...]
    """The reads of each statement, in the order of its operator's ``reads``."""
    views: dict[tuple[str, int], tuple[Load, int]]
    """The load whose values each view holds, and the loop that is spread, by the name of the tensor and the number of the
    view."""
    names: tuple[str, ...]
    """For each tensor of the problem, the name of the program's tensor of which it is the whole or a tile."""
    tiles: tuple[Tile, ...]
    """For each tensor of the problem, the part of the program's tensor that it is."""


def build_problem(program: Program, target: BankTarget, *, capacity: int | None = None) -> MappedProgram:
    """Builds the problem of mapping a program's tensors to the banks of a target.

    Parameters
    ----------
    program
        A program that :func:`stowplan.hardware.affine.check.check` accepts.
    target
        Description of the chip.
    capacity
        Bytes of on-chip memory; None for the target's capacity.

    Raises
    ------
    InputError
        An operator has no option, or the capacity is smaller than the target's stream buffer.
    TimeLimitError
        The time limit for reading inputs is over.
    """
    return _ProblemBuilder(program, target, capacity).build()


class _ProblemBuilder:
    """Builds one problem, statement by statement, and numbers the views that accesses need."""

    def __init__(self, program: Program, target: BankTarget, capacity: int | None):
        self._program, self._target = program, target
        self._capacity = int(target.scratchpad.capacity) if capacity is None else capacity
        used = {name for statement in program.statements for load in statement.loads for name in load.tensors}
        used |= {name for statement in program.statements for name in statement.outputs}
        self._names = [name for name in program.tensors if name in used]
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._views: dict[str, dict[tuple[Load, int], int]] = {}
        """For each tensor, by name, the number of the view for each load and spread loop."""
        self._layouts: dict[tuple[Load, str, int], int] = {}
        """The layout of a tensor, by name, for each load and spread loop so far."""

    def build(self) -> MappedProgram:
        """Builds the problem, and splits its large tensors into tiles."""
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
            # A tensor was split. In place of a tensor that was split, an operator reads all of its tiles.
            counts = [sum(1 for _ in group) for _, group in groupby(tile.tensor for tile in tiled.tiles)]
            accesses = [tuple(read for read in reads for _ in range(counts[self._numbers[read.tensor]])) for reads in accesses]
        return MappedProgram(self._program, tiled.problem, tuple(accesses), views_of, names, tiled.tiles)

    def _operator(self, statement: Statement) -> tuple[Operator, tuple[Access, ...]]:
        """The operator of a statement, and its reads; raises InputError if the statement has no option."""
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
        # Options with spread outputs come first, and those whose outputs are all unspread come last.
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
        """Yields the options of a statement: the spread loop of each load, followed by the spread dimension of each output."""
        if not isinstance(statement, Copy):
            yield from statement.options
            return
        for dimension, expression in enumerate(statement.store.index):
            for loop in range(len(statement.extents)):
                if self._follows(expression, loop, statement.extents):
                    yield loop, dimension
        yield UNSPREAD, UNSPREAD

    def _follows(self, expression: Expression, loop: int, extents: Extents) -> bool:
        """Whether an index expression is equal to a loop index modulo the number of banks."""
        difference = add(expression, index(loop), extents, -1)
        return modulo(difference, self._target.banks, extents) == Expression(0)

    def _layout(self, load: Load, name: str, loop: int) -> int:
        """The layout in which a load with this spread loop reads a tensor.

        It is the number of a dimension, :data:`UNSPREAD`, or the rank of the tensor plus the number of a view, which is added
        if it is new.
        """
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
        """The layout for one access with this spread loop, or ``_NEEDS_VIEW``; the module's docstring has the three cases."""
        occurs = False
        for dimension, expression in enumerate(indices):
            if loop in set(expression.indices()):
                occurs = True
                if self._follows(expression, loop, extents):
                    return _normal(dimension, shape)
        return _NEEDS_VIEW if occurs else UNSPREAD

    def _read_bytes(self, load: Load, name: str) -> int:
        """Bytes of a tensor that a load reads: an element for each iteration of the loops in its indices, at most the whole
        tensor."""
        tensor = self._program.tensors[name]
        loops = {
            loop for piece in load.pieces if piece.tensor == name for expression in piece.index for loop in expression.indices()
        }
        return min(prod(load.extents[loop] for loop in loops), tensor.elements) * tensor.item_bytes


def _normal(dimension: int, shape: tuple[int, ...]) -> int:
    """The layout with this spread dimension; :data:`UNSPREAD` if the dimension has one element, which is in one bank anyway."""
    return UNSPREAD if dimension == UNSPREAD or shape[dimension] == 1 else dimension
