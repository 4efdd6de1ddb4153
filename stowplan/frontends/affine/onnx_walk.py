"""The state of a walk through an ONNX graph, which adds operators to an affine program.

Handlers of nodes (:mod:`stowplan.frontends.affine.onnx_graph`) receive a :class:`Walk`. A
:class:`~stowplan.frontends.affine.access.Variable` stands for a tensor of the program.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from stowplan.errors import InputError
from stowplan.frontends.affine.access import Variable
from stowplan.frontends.affine.builder import Builder
from stowplan.frontends.onnx_file import OnnxFile, is_external, missing_text
from stowplan.hardware.affine import rules
from stowplan.hardware.affine.program import Load, Option
from stowplan.log import warn_unmodelled

#: Names of ONNX's floating-point types.
_FLOATS = re.compile("FLOAT|BFLOAT16|DOUBLE")

#: A function that adds a node with these attributes to the program. It raises InputError, which names the node, if operands or
#: attributes do not fit the operator.
Handler: TypeAlias = "Callable[[Walk, Any, dict[str, Any]], None]"


class Walk:
    """The state of one walk through a graph whose shapes have been inferred: the program so far, which is in ``builder``.

    ``float_bytes`` is the size of all floating-point numbers in bytes; None for that of the file.
    """

    def __init__(self, file: OnnxFile, float_bytes: int | None):
        self.file, self.onnx = file, file.onnx
        self._float_bytes = float_bytes
        self.builder = Builder(file.name)
        self.values: dict[str, Variable] = {}
        """The tensors of the values so far, by name."""
        self._arrays: dict[str, Any] = {}
        """Arrays of the constants that have been read so far, by name; None for one whose numbers are not in the file."""
        for tensor in file.graph.sparse_initializer:
            # The stored values are fewer than the elements of the sparse tensor, so their shape is not that of the value.
            file.shapes[tensor.values.name] = None

    def _item_bytes(self, name: str) -> int:
        """Bytes of an element of a value, at least 1."""
        bits = self.file.bits(name)
        if self._float_bytes is not None and _FLOATS.match(self.onnx.TensorProto.DataType.Name(self.file.types[name])):
            return self._float_bytes
        if bits < 8:
            warn_unmodelled("its elements of less than a byte take one each: it may be smaller", f"value {name}")
        return -(-bits // 8)

    def keep(self, name: str, array: Any) -> None:
        """Records the array of a constant, and its shape."""
        self._arrays[name], self.file.shapes[name] = array, array.shape

    def numbers(self, name: str) -> Any:
        """The array of a constant; None if its numbers are not in the file, such as those of stripped or external weights."""
        if name not in self._arrays:
            tensor = self.file.stored.get(name)
            try:
                is_missing = tensor is None or is_external(tensor, self.onnx)
                self._arrays[name] = None if is_missing else self.onnx.numpy_helper.to_array(tensor)
            except (TypeError, ValueError, AttributeError, KeyError):
                self._arrays[name] = None
        return self._arrays[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Sizes of a value; raises InputError if a size is not fixed, or is 0."""
        shape = self.file.shape(name, f"value {name}")
        if any(size < 1 for size in shape):
            raise InputError(f"found the shape {list(shape)}, expected sizes of at least 1", place=f"value {name}")
        return shape

    def variable(self, name: str) -> Variable:
        """The tensor of a value; it becomes an input of the program if no operator has written it. Raises InputError as
        :meth:`shape` does."""
        variable = self.values.get(name)
        if variable is None:
            # The value is an input of the graph, a weight or a constant.
            variable = self.values[name] = self.builder.input(name, self.shape(name), self._item_bytes(name))
        return variable

    def integers(self, node: Any, at: int, attribute: Any = None) -> list[int]:
        """A list of integers: that of an attribute if there is one, otherwise that of the constant operand at position ``at``.

        Raises
        ------
        InputError
            The operand is not a constant in the file, or not a list of integers.
        """
        if attribute is not None:
            return self.whole(node, attribute)
        name = node.input[at] if self.has(node, at) else ""
        constant = self.numbers(name)
        if constant is None:
            message = f"found {node.op_type} by numbers that are not in the file (input {name!r}), expected constants"
            only = {name: self.file.missing[name]} if name in self.file.missing else {}
            raise InputError(message + missing_text(only), place=self._place(node))
        return self.whole(node, constant.reshape(-1).tolist())

    def whole(self, node: Any, given: Any) -> list[int]:
        """Returns ``given``, an attribute or the numbers of a constant, as a list. Raises InputError if it is not a sequence of
        integers."""
        if not isinstance(given, Iterable) or isinstance(given, bytes) or not all(isinstance(number, int) for number in given):
            raise InputError(f"found {given!r}, expected whole numbers", place=self._place(node))
        return list(given)

    def ints(
        self, node: Any, options: dict[str, Any], name: str, count: int, default: Sequence[int] | None = None
    ) -> list[int]:
        """The integers of the attribute ``name``, or ``default`` if the node does not have it.

        Raises InputError if there are not exactly ``count``, if one is no integer, or if there is neither an attribute nor a
        default.
        """
        given = options.get(name, default)
        if given is None:
            raise InputError(f"found no {name}, expected {count} numbers", place=self._place(node))
        numbers = self.whole(node, given)
        if len(numbers) != count:
            raise InputError(f"found {name} {numbers}, expected {count} numbers", place=self._place(node))
        return numbers

    def axis(self, node: Any, axis: Any, rank: int) -> int:
        """The dimension with the number ``axis``, which counts from the end if it is negative.

        Raises
        ------
        InputError
            ``axis`` is no integer, or is not in ``[-rank, rank)``.
        """
        if not isinstance(axis, int) or not -rank <= axis < rank:
            raise InputError(f"found the axis {axis!r}, expected -{rank} to {rank - 1}", place=self._place(node))
        return axis % rank

    def has(self, node: Any, at: int) -> bool:
        """Whether a node has an operand at this position."""
        return len(node.input) > at and bool(node.input[at])

    def inputs(self, node: Any, least: int) -> list[Variable]:
        """The first ``least`` operands, which the operator requires; raises InputError if one of them is missing."""
        if len(node.input) < least or not all(node.input[:least]):
            named = [name for name in node.input if name]
            raise InputError(f"found {len(named)} inputs, expected {least} or more", place=self._place(node))
        return [self.variable(name) for name in node.input[:least]]

    def expect(self, node: Any, holds: bool, found: object, expected: str) -> None:
        """Raises InputError, which names the node and says what was found and expected, if ``holds`` is False."""
        if not holds:
            raise InputError(f"found {found}, expected {expected}", place=self._place(node))

    def _place(self, node: Any) -> str:
        """Words for a node in error messages."""
        return f"operator {next((name for name in node.output if name), node.name)}"

    def operator(
        self,
        node: Any,
        operands: Sequence[Variable | Load],
        options: Sequence[Option],
        *,
        op: str = "",
        attributes: dict[str, Any] | None = None,
        restricted: bool = False,
        dynamic: Sequence[int] = (),
    ) -> None:
        """Adds an operator whose results are those of the node.

        The parameters are those of :meth:`~stowplan.frontends.affine.builder.Builder.operator`, but each of ``options`` has one
        entry for all results. Raises InputError if the shape of a result is not fixed.
        """
        names = [name for name in node.output if name]
        # Results that only training needs may have no shape, and are left out, because nothing reads them.
        names = [name for name in names if self.file.shapes.get(name) is not None] or names[:1]
        count = len(names)
        results = self.builder.operator(
            op or node.op_type,
            operands,
            [self.shape(name) for name in names],
            [(*way, *(way[-1],) * (count - 1)) for way in options] if count > 1 else options,
            attributes=attributes,
            restricted=restricted,
            name=names[0],
            dynamic=dynamic,
            item_bytes=[self._item_bytes(name) for name in names],
        )
        self.values.update(zip(names, results, strict=True))

    def opaque(self, node: Any) -> None:
        """Adds an operator about which nothing is known, so that each of its arrays must be in one bank, with a warning."""
        warn_unmodelled(f"a {node.op_type} is not modelled: what it reads and writes stands in one bank", self._place(node))
        operands = [self.variable(name) for name in node.input if name]
        self.operator(node, operands, rules.unspread(len(operands), 1), dynamic=tuple(range(len(operands))))
