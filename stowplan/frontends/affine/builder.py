"""Builds affine programs in Python, from operators that are called by name and from loop nests that are functions of indices.

An affine program consists of loop nests that copy data and of operators that compute
(:mod:`stowplan.hardware.affine.program`). Tensors are represented by a :class:`~stowplan.frontends.affine.access.Variable`,
which every method that adds an operator returns.

>>> b = Builder("example")
>>> x = b.input("x", (4, 6))
>>> y = b.transpose(x, (1, 0))
>>> z = b.copy("halves", (6, 2), lambda i, j: y[i, 2 * j], (6, 2), lambda i, j: (i, j))
>>> program = b.build(b.elementwise("tanh", z))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from stowplan.errors import InputError
from stowplan.frontends.affine.access import Index, Variable, expressions, reshaped
from stowplan.hardware.affine import rules
from stowplan.hardware.affine.check import check
from stowplan.hardware.affine.expression import Expression, add, constant, floor_divide, index, modulo
from stowplan.hardware.affine.program import (
    Copy,
    Load,
    Operator,
    Option,
    Piece,
    Program,
    Statement,
    Store,
    Tensor,
    identity,
    whole,
)


class Builder:
    """Collects the statements of a program: copies, which are loop nests, and operators. :meth:`build` checks the program.

    Optional parameters ``name`` are the names of the statements that are added; by default, these have the name of the
    operation. A name that is in use gets a number, as in ``slice.2``.

    Methods raise InputError only where their descriptions say so. They do not check the lengths of lists and the numbers of
    dimensions, for which Python may raise ValueError or IndexError; whatever passes is checked by :meth:`build`.

    Parameters
    ----------
    name
        Name of the program.
    item_bytes
        Size of an element in bytes, for tensors that are added without a size of their own.
    """

    def __init__(self, name: str, item_bytes: int = 4):
        self.name, self._item_bytes = name, item_bytes
        self._tensors: dict[str, Tensor] = {}
        self._inputs: list[str] = []
        self._statements: list[Statement] = []
        self._names: set[str] = set()
        self._counts: dict[str, int] = {}

    def build(self, *outputs: Variable) -> Program:
        """The checked program with these outputs.

        Raises InputError, which names the operator, if the program is not valid (:func:`stowplan.hardware.affine.check.check`).
        """
        program = self.program([output.name for output in outputs])
        check(program)
        return program

    def program(self, outputs: Sequence[str]) -> Program:
        """The program so far, without a check; ``outputs`` are names of tensors."""
        return Program(self.name, dict(self._tensors), tuple(self._inputs), tuple(self._statements), tuple(outputs))

    @property
    def size(self) -> int:
        """Number of statements so far."""
        return len(self._statements)

    # Tensors

    def tensor(self, shape: Sequence[int], name: str = "t", item_bytes: int | None = None) -> Variable:
        """Adds a tensor that no statement writes yet. ``item_bytes`` is by default that of the builder."""
        tensor = Tensor(self._unique(name, self._tensors), tuple(shape), item_bytes or self._item_bytes)
        self._tensors[tensor.name] = tensor
        return Variable(tensor)

    def input(self, name: str, shape: Sequence[int], item_bytes: int | None = None) -> Variable:
        """Adds an input of the program. ``item_bytes`` is by default that of the builder."""
        variable = self.tensor(shape, name, item_bytes)
        self._inputs.append(variable.name)
        return variable

    def _unique(self, name: str, used_names: Any) -> str:
        """``name``, with a number if it is in use."""
        unique = name
        while unique in used_names:
            # Counting continues from the last number of this name, so that many equal names take linear time.
            self._counts[name] = self._counts.get(name, 1) + 1
            unique = f"{name}.{self._counts[name]}"
        return unique

    def _statement_name(self, name: str) -> str:
        """A unique name of a statement, which is in use from now on."""
        unique = self._unique(name, self._names)
        self._names.add(unique)
        return unique

    # Loop nests

    def copy(
        self,
        op: str,
        extents: Sequence[int],
        load: Callable[..., tuple[Variable, tuple[Index | int, ...]]],
        into: Variable | Sequence[int],
        store: Callable[..., Sequence[Index | int] | Index | int],
    ) -> Variable:
        """Adds a loop nest that copies elements.

        Parameters
        ----------
        op
            Name of the operation, from which the name of the statement is made.
        extents
            Number of iterations of each loop, outermost first.
        load
            A function of the loop indices that returns the access that is read, such as ``lambda i, j: y[i, 2 * j]``.
        into
            The tensor that is written, or the shape of a new one.
        store
            A function of the loop indices that returns the indices of the element of ``into`` that is written.

        Raises
        ------
        InputError
            An index is not affine.
        """
        name = self._statement_name(op)
        place = f"operator {name}"
        extents = tuple(extents)
        loops = [Index(index(number), extents, place) for number in range(len(extents))]
        source, indices = load(*loops)
        target = into if isinstance(into, Variable) else self.tensor(into, name)
        stored = store(*loops)
        where = tuple(stored) if isinstance(stored, Sequence) else (stored,)
        piece = Piece(source.name, expressions(indices, place))
        return self.nest(name, op, Load(extents, (piece,)), target, expressions(where, place))

    def nest(self, name: str, op: str, load: Load, into: Variable, where: tuple[Expression, ...]) -> Variable:
        """Adds a loop nest that writes the values of ``load`` to ``into``, and returns ``into``.

        ``where`` has one expression over the loop indices for each dimension of ``into``. No other statement may have the same
        ``name``, which :meth:`build` checks.
        """
        self._names.add(name)
        self._statements.append(Copy(name, op, load, Store(into.name, where)))
        return into

    def _gathered(
        self, op: str, source: Variable, shape: Sequence[int], indices: Sequence[Expression], name: str = ""
    ) -> Variable:
        """Adds a tensor whose elements are read from ``source`` at ``indices``, which are functions of the new tensor's
        indices."""
        target = self.tensor(shape, name or op, source.tensor.item_bytes)
        load = Load(target.shape, (Piece(source.name, tuple(indices)),))
        return self.nest(self._statement_name(name or op), op, load, target, identity(len(target.shape)))

    def _scattered(self, op: str, source: Variable, into: Variable, where: Sequence[Expression], name: str = "") -> Variable:
        """Adds a loop nest that writes all elements of ``source`` to ``into``, at the indices ``where``, which are functions of
        the source's indices."""
        return self.nest(self._statement_name(name or op), op, whole(source.tensor), into, tuple(where))

    # Data movement

    def broadcast(self, source: Variable, shape: Sequence[int], dimensions: Sequence[int], name: str = "") -> Variable:
        """Broadcasts a tensor to ``shape``: dimension ``k`` of the source becomes ``dimensions[k]`` of the result. A dimension
        of size 1 is repeated, and so is everything along the other dimensions of the result."""
        indices = [
            constant(0) if size == 1 else index(dimension) for size, dimension in zip(source.shape, dimensions, strict=True)
        ]
        return self._gathered("broadcast", source, shape, indices, name)

    def repeat(self, source: Variable, times: int, axis: int, name: str = "") -> Variable:
        """Repeats every element ``times`` times along ``axis``, so that its copies are neighbours: ``a a b b``."""
        shape = [size * (times if at == axis else 1) for at, size in enumerate(source.shape)]
        indices = [floor_divide(index(at), times, shape) if at == axis else index(at) for at in range(len(shape))]
        return self._gathered("repeat", source, shape, indices, name)

    def tile(self, source: Variable, times: Sequence[int], name: str = "") -> Variable:
        """Repeats the whole tensor ``times[k]`` times along every dimension ``k``: ``a b a b``."""
        shape = [size * many for size, many in zip(source.shape, times, strict=True)]
        indices = [modulo(index(at), size, shape) for at, size in enumerate(source.shape)]
        return self._gathered("tile", source, shape, indices, name)

    def transpose(self, source: Variable, order: Sequence[int], name: str = "") -> Variable:
        """Transposes a tensor: dimension ``k`` of the result is ``order[k]`` of the source."""
        indices = [index(list(order).index(at)) for at in range(len(source.shape))]
        return self._gathered("transpose", source, [source.shape[at] for at in order], indices, name)

    def reverse(self, source: Variable, axes: Sequence[int], name: str = "") -> Variable:
        """Reverses the order of the elements along each of ``axes``."""
        shape = source.shape
        indices = [add(constant(shape[at] - 1), index(at), shape, -1) if at in axes else index(at) for at in range(len(shape))]
        return self._gathered("reverse", source, shape, indices, name)

    def reshape(self, source: Variable, shape: Sequence[int], name: str = "") -> Variable:
        """Gives a tensor another shape; the elements keep their row-major order.

        Raises
        ------
        InputError
            The shape has another number of elements.
        """
        if prod(shape) != source.tensor.elements:
            place = f"operator {name or 'reshape'}"
            raise InputError(
                f"found a reshape of {list(source.shape)} to {list(shape)}, expected as many elements", place=place
            )
        return self._gathered("reshape", source, shape, reshaped(shape, source.shape), name)

    def slice(
        self,
        source: Variable,
        starts: Sequence[int],
        ends: Sequence[int],
        steps: Sequence[int] | None = None,
        name: str = "",
        op: str = "slice",
    ) -> Variable:
        """Selects, in each dimension ``k``, every ``steps[k]``-th element from ``starts[k]`` up to, but not including,
        ``ends[k]``. Steps are at least 1, and are 1 by default."""
        steps = steps or [1] * len(starts)
        shape = [-(-(end - start) // step) for start, end, step in zip(starts, ends, steps, strict=True)]
        indices = [
            add(constant(start), index(at), shape, step) for at, (start, step) in enumerate(zip(starts, steps, strict=True))
        ]
        return self._gathered(op, source, shape, indices, name)

    def split(self, source: Variable, sizes: Sequence[int], axis: int, name: str = "") -> list[Variable]:
        """Splits a tensor along ``axis`` into parts of these sizes, which need not cover all of it."""
        parts = []
        start = 0
        for size in sizes:
            starts = [start if at == axis else 0 for at in range(len(source.shape))]
            ends = [start + size if at == axis else length for at, length in enumerate(source.shape)]
            parts.append(self.slice(source, starts, ends, name=name, op="split"))
            start += size
        return parts

    def concatenate(self, sources: Sequence[Variable], axis: int, name: str = "") -> Variable:
        """Concatenates one or more tensors along ``axis``: one loop nest for each of them copies it into the result."""
        total = sum(source.shape[axis] for source in sources)
        first = sources[0]
        shape = [total if at == axis else size for at, size in enumerate(first.shape)]
        target = self.tensor(shape, name or "concatenate", first.tensor.item_bytes)
        start = 0
        for source in sources:
            where = [add(index(at), constant(start if at == axis else 0), source.shape) for at in range(len(shape))]
            self._scattered("concatenate", source, target, where, name)
            start += source.shape[axis]
        return target

    def pad(
        self,
        source: Variable,
        low: Sequence[int],
        high: Sequence[int],
        interior: Sequence[int] | None = None,
        value: Variable | float = 0.0,
        name: str = "",
    ) -> Variable:
        """Pads a tensor. In dimension ``k``, ``low[k]`` elements come before the source, ``high[k]`` after it, and
        ``interior[k]`` between any two of its elements.

        If ``low[k]`` or ``high[k]`` is negative, so many elements are cut off instead. All new elements have the same value, a
        constant or a scalar tensor. One loop nest fills the result with it, and another one writes the source over it.
        """
        interior = interior or [0] * len(low)
        shape = [
            size + before + after + max(0, size - 1) * inner
            for size, before, after, inner in zip(source.shape, low, high, interior, strict=True)
        ]
        target = self.tensor(shape, name or "pad", source.tensor.item_bytes)
        fill = Piece(None, fill=value) if not isinstance(value, Variable) else Piece(value.name)
        self.nest(self._statement_name(name or "pad"), "pad", Load(target.shape, (fill,)), target, identity(len(shape)))
        # Elements that negative padding cuts off are not copied.
        first = [max(0, -(before // (inner + 1))) if before < 0 else 0 for before, inner in zip(low, interior, strict=True)]
        last = [
            min(size - 1, (total - 1 - before) // (inner + 1))
            for size, total, before, inner in zip(source.shape, shape, low, interior, strict=True)
        ]
        extents = tuple(to - start + 1 for start, to in zip(first, last, strict=True))
        if min(extents, default=1) > 0:
            reads = tuple(add(index(at), constant(start), extents) for at, start in enumerate(first))
            where = tuple(
                add(constant(before + start * (inner + 1)), index(at), extents, inner + 1)
                for at, (before, start, inner) in enumerate(zip(low, first, interior, strict=True))
            )
            load = Load(extents, (Piece(source.name, reads),))
            self.nest(self._statement_name(name or "pad"), "pad", load, target, where)
        return target

    # Operators

    def operator(
        self,
        op: str,
        operands: Sequence[Variable | Load],
        shapes: Sequence[Sequence[int]],
        options: Sequence[Option],
        *,
        attributes: dict[str, Any] | None = None,
        restricted: bool = False,
        name: str = "",
        dynamic: Sequence[int] = (),
        item_bytes: Sequence[int] | None = None,
    ) -> list[Variable]:
        """Adds any operator, and returns its results.

        Parameters
        ----------
        op
            Name of the operation.
        operands
            Tensors, which are read completely in their own shape, or loads of tensors.
        shapes
            Shapes of the results.
        options
            The bank rule: the ways in which operands and results may be spread over banks, the usual one first. Each way has
            the spread dimension of each operand, followed by that of each result, and -1 for those that are not spread.
        attributes
            Parameters of the operation, such as strides.
        restricted
            Whether the hardware's compute unit imposes the bank rule, as for a convolution.
        dynamic
            Positions of the operands from which the operator selects elements at run time. They have no effect on operands that
            are loads, which have a field ``dynamic`` of their own.
        item_bytes
            Size of an element of each result, in bytes; by default that of the builder.
        """
        loads = tuple(
            operand if isinstance(operand, Load) else whole(operand.tensor, dynamic=at in dynamic)
            for at, operand in enumerate(operands)
        )
        unique = self._statement_name(name or op)
        sizes = item_bytes or [self._item_bytes] * len(shapes)
        results = [self.tensor(shape, unique, size) for shape, size in zip(shapes, sizes, strict=True)]
        outputs = tuple(result.name for result in results)
        self._statements.append(Operator(unique, op, loads, outputs, attributes or {}, tuple(options), restricted))
        return results

    def elementwise(self, op: str, *operands: Variable, name: str = "", **attributes: Any) -> Variable:
        """Adds an element-wise operator of one or more operands; raises InputError if these do not have the same shape."""
        shape = operands[0].shape
        for operand in operands:
            if operand.shape != shape:
                place = f"operator {name or op}"
                raise InputError(
                    f"found operands of shapes {list(shape)} and {list(operand.shape)}, expected one shape", place=place
                )
        options = rules.elementwise(len(shape), len(operands))
        return self.operator(op, operands, [shape], options, attributes=attributes, name=name)[0]

    def matmul(
        self,
        left: Variable,
        right: Variable,
        contracting: Sequence[tuple[int, int]] | None = None,
        batch: Sequence[tuple[int, int]] = (),
        name: str = "",
    ) -> Variable:
        """Adds a matrix product; raises InputError if the sizes of two paired dimensions differ.

        Parameters
        ----------
        contracting
            Pairs of dimensions (of the left operand, of the right operand) that are summed over; by default the last dimension
            of the left operand and the first one of the right operand that is not a batch dimension.
        batch
            Pairs of batch dimensions, each index of which has a product of its own.
        """
        contracting = contracting or [(len(left.shape) - 1, len(batch))]
        for one, two in (*contracting, *batch):
            if left.shape[one] != right.shape[two]:
                message = f"found sizes {left.shape[one]} and {right.shape[two]} to multiply, expected equal ones"
                raise InputError(message, place=f"operator {name or 'matmul'}")
        taken_left, taken_right = {one for one, _ in (*contracting, *batch)}, {two for _, two in (*contracting, *batch)}
        shape = [left.shape[one] for one, _ in batch]
        shape += [size for at, size in enumerate(left.shape) if at not in taken_left]
        shape += [size for at, size in enumerate(right.shape) if at not in taken_right]
        options = rules.matmul(len(left.shape), len(right.shape), contracting, batch)
        attributes = {"contracting": tuple(contracting), "batch": tuple(batch)}
        return self.operator("matmul", [left, right], [shape], options, attributes=attributes, restricted=True, name=name)[0]

    def conv2d(
        self,
        data: Variable,
        kernel: Variable,
        strides: Sequence[int] = (1, 1),
        pads: Sequence[tuple[int, int]] = ((0, 0), (0, 0)),
        dilations: Sequence[int] = (1, 1),
        groups: int = 1,
        name: str = "",
    ) -> Variable:
        """Adds a convolution of data ``[batch, channels, height, width]`` with a kernel ``[outputs, channels / groups, height,
        width]``.

        ``strides``, ``pads`` and ``dilations`` have an entry for the height and one for the width; an entry of ``pads`` is a
        pair, the padding before and after the data.
        """
        sizes = [
            (size + low + high - (width - 1) * spread - 1) // step + 1
            for size, width, (low, high), spread, step in zip(
                data.shape[2:], kernel.shape[2:], pads, dilations, strides, strict=True
            )
        ]
        attributes = {
            "layout": ((0, 1, 2, 3),) * 3,
            "strides": tuple(strides),
            "pads": tuple(pads),
            "base": (1, 1),
            "dilations": tuple(dilations),
            "groups": groups,
        }
        shape = (data.shape[0], kernel.shape[0], *sizes)
        options = rules.convolution(1, 1, 1)
        return self.operator(
            "convolution", [data, kernel], [shape], options, attributes=attributes, restricted=True, name=name
        )[0]

    def pool(
        self,
        data: Variable,
        window: Sequence[int],
        strides: Sequence[int],
        pads: Sequence[tuple[int, int]] | None = None,
        kind: str = "maximum",
        name: str = "",
    ) -> Variable:
        """Adds a pooling operator, which reduces each window to one element by ``kind``, such as ``maximum``.

        ``window``, ``strides`` and ``pads`` have an entry for each dimension of the data. An entry of ``pads`` is a pair, the
        padding before and after the data; by default there is none.
        """
        pads = pads or [(0, 0)] * len(window)
        shape = [
            (size + low + high - width) // step + 1
            for size, width, step, (low, high) in zip(data.shape, window, strides, pads, strict=True)
        ]
        attributes = {"window": tuple(window), "strides": tuple(strides), "pads": tuple(pads), "kind": kind}
        options = rules.pool(window)
        return self.operator("pool", [data], [shape], options, attributes=attributes, restricted=True, name=name)[0]

    def reduce(self, data: Variable, dimensions: Sequence[int], kind: str = "add", name: str = "") -> Variable:
        """Adds a reduction by ``kind``, such as ``add`` or ``maximum``. The result does not have the reduced ``dimensions``."""
        shape = [size for at, size in enumerate(data.shape) if at not in dimensions]
        options = rules.reduction(len(data.shape), dimensions)
        attributes = {"dimensions": tuple(dimensions), "kind": kind}
        return self.operator("reduce", [data], [shape], options, attributes=attributes, name=name)[0]
