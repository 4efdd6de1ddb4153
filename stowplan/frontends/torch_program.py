"""Nodes, arguments and tensors of ``torch.fx`` graphs; all front ends for programs of ``torch.export`` use this module.

A *storage* is the bytes that a tensor shares with its views. A *fake tensor* has a shape, a type and a storage, but no data. A
*higher-order* operator, such as ``cond``, runs graphs that are its arguments. Torch is imported only when a model or program is
read.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from stowplan.errors import InputError, MissingDependencyError, first_line, to_install
from stowplan.frontends import load_facts
from stowplan.log import warn_unmodelled

_KNOWN = load_facts("torch")["programs"]
#: Namespaces of operators that need no significant memory besides their operands and results.
_NAMESPACES = frozenset(_KNOWN["namespaces"].split())
#: Names of the schemas of ATen operators that run as several other operators if no kernel fuses them.
_SEVERAL = frozenset(f"aten::{name}" for name in _KNOWN["several"].split())


def import_torch(what: str) -> Any:
    """Imports torch and returns it. If it is not installed, raises MissingDependencyError with a message that says that reading
    ``what``, such as ``a PyTorch model``, needs it."""
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(f"reading {what} needs torch: {to_install('learned')}") from error
    return torch


def stored_inputs(program: Any) -> set[str]:
    """Names of the placeholders of an exported program that are parameters, buffers and other constants."""
    signature = program.graph_signature
    return {
        *signature.inputs_to_parameters,
        *signature.inputs_to_buffers,
        *getattr(signature, "inputs_to_lifted_tensor_constants", {}),
        *getattr(signature, "inputs_to_lifted_custom_objs", {}),
    }


#: The key of a storage that represents the state of the random number generator. Operators that draw numbers overwrite it. Keys
#: of other storages (:func:`storage_key`) are addresses, which are not negative.
RANDOM = -1


def static_shape(tensor: Any, place: str) -> tuple[int, ...]:
    """Sizes of a tensor; raises InputError, which names ``place``, if a size is not known before the program runs."""
    if not all(type(extent) is int for extent in tensor.shape):
        shape = [str(extent) for extent in tensor.shape]
        raise InputError(f"found the shape {shape}, expected a static one: export without dynamic shapes", place=place)
    return tuple(tensor.shape)


class UpperBounds:
    """Upper bounds of symbolic sizes in a program, which is planned for its largest sizes, as in ExecuTorch.

    Parameters
    ----------
    program
        A ``torch.export.ExportedProgram``.
    dims
        Bounds that the user gives instead of the program's own, by the names of symbolic sizes; None for no such bounds.

    Raises
    ------
    InputError
        The program has no symbolic size of a name in ``dims``, or a bound is outside of the range that the program allows.
    """

    def __init__(self, program: Any, dims: Mapping[str, int] | None = None):
        ranges = dict(program.range_constraints)
        names = {str(symbol): symbol for symbol in ranges}
        for name, bound in (dims or {}).items():
            if name not in names:
                expected = f"an open size of the program: {', '.join(sorted(names))}" if names else "none: no size is open"
                raise InputError(f"found --dim {name}, expected {expected}")
            old_range = ranges[names[name]]
            if not old_range.lower <= bound <= old_range.upper:
                raise InputError(
                    f"found --dim {name}={bound}, expected {old_range.lower} to {old_range.upper}, as in the program"
                )
            ranges[names[name]] = type(old_range)(old_range.lower, bound)
        self._ranges, self._user_names = ranges, set(dims or ())

    def of(self, extent: Any, place: str) -> int:
        """The largest value of a size, which is an integer or a ``torch.SymInt``.

        A warning names each bound of the program that is used because the user gave none. Raises InputError, which names
        ``place`` and has an example of the missing options, if the size has no bound.
        """
        if type(extent) is int:
            return extent
        expression = getattr(getattr(extent, "node", None), "expr", None)
        names = {str(symbol) for symbol in getattr(expression, "free_symbols", ())}
        if expression is None or not names <= {str(symbol) for symbol in self._ranges}:
            raise InputError(f"found the size {extent}, expected one whose bounds the program has", place=place)
        if (bound := self._upper(expression)) is None:
            # All sizes of inputs without a bound are reported together; sizes that depend on data are reported one by one.
            missing = {str(symbol) for symbol in self._ranges if self._upper(symbol) is None}
            typed = " ".join(f"--dim {name}=128" for name in sorted(missing) if name in names or name.startswith("s"))
            raise InputError(f"found no upper bound of the size {extent}, expected one, for example: {typed}", place=place)
        for name in sorted(names - self._user_names):
            (upper,) = (self._upper(symbol) for symbol in self._ranges if str(symbol) == name)
            warn_unmodelled(f"planned for the largest size {name}, {upper} (--dim {name}=SIZE tells a smaller bound)", "sizes")
        return bound

    def number(self, number: Any, place: str) -> Any:
        """The largest value of an integer in the program; ``number`` itself if it has no bound. No error is raised."""
        try:
            return self.of(number, place)
        except InputError:
            return number

    def bytes(self, tensor: Any, place: str) -> int:
        """The largest number of bytes of a tensor's elements; raises InputError if a size has no bound."""
        return math.prod(self.of(extent, place) for extent in tensor.shape) * int(tensor.element_size())

    def _upper(self, expression: Any) -> int | None:
        """The upper bound of an expression of symbolic sizes; None if there is none."""
        from torch.utils._sympy.value_ranges import bound_sympy

        upper = bound_sympy(expression, self._ranges).upper
        # Older exports use the largest integer if there is no bound.
        return int(upper) if upper.is_Integer and upper < 1 << 60 else None


def arguments(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yields pairs of an argument of the schema and its value in a node, in the order of the schema.

    There are none if the operator has no schema. The value is None if the node does not give the argument, also if the schema
    has a default for it.
    """
    for at, argument in enumerate(getattr(schema_of(node), "arguments", ())):
        yield argument, node.args[at] if at < len(node.args) else node.kwargs.get(argument.name)


def schema_of(node: Any) -> Any:
    """The schema of a node's operator; None if it has none."""
    # An operator of ExecuTorch's edge dialect is a wrapper of one of torch.
    return getattr(node.target, "_schema", None) or getattr(getattr(node.target, "_op", None), "_schema", None)


def is_written(argument: Any) -> bool:
    """Whether an operator overwrites this argument of its schema."""
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


class FakeRun:
    """Runs the nodes of a graph one by one on fake tensors, which have no data.

    Two fake tensors share a storage exactly if the tensors of a real run do. The schema of an operator does not suffice to know
    this: an operator whose result may be a view copies if strides, types or conjugation require it, and some operators return
    an operand although their schema does not say so. After ``torch.export.load``, the values in ``meta["val"]`` of the nodes do
    not suffice either, because they never share storages. Results of higher-order operators are always new, because torch does
    not let them return an operand.

    Parameters
    ----------
    module
        The module with ``graph``, and with the submodules and constants that its nodes name.
    mode
        The fake tensor mode; by default a new one.
    bounds
        Upper bounds of symbolic sizes, with which the graph is run; None if there are no symbolic sizes.
    """

    def __init__(self, module: Any, mode: Any = None, bounds: UpperBounds | None = None):
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        self._torch, self._module, self.bounds = torch, module, bounds
        self.mode = mode or FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
        self.values: dict[Any, Any] = {}
        """The value of each node that has run. Keys of storages are unique because all values are held here."""

    def run(self, node: Any) -> Any:
        """Runs a node whose arguments have run, and returns its value. A placeholder gets a new value.

        Raises
        ------
        InputError
            The node cannot run although its result may be a view; a tensor is not strided, for example a sparse one; or a
            symbolic size has no upper bound, or is found without ``bounds``.
        """
        torch = self._torch
        if node.op == "get_attr":
            value = operator.attrgetter(node.target)(self._module)
            value = self.mode.from_tensor(value) if isinstance(value, torch.Tensor) else value
        elif node.op == "call_function" and not is_higher_order(node):
            value = self._call(node)
            sizes = (size for leaf in leaves(value) for size in getattr(leaf, "shape", [leaf]))
            if self.bounds is not None and any(isinstance(size, torch.SymInt) for size in sizes):
                # The result depends on data, which fake tensors do not have.
                value = self._fresh(node)
        else:
            value = self._fresh(node)
        for tensor in tensors_of(value):
            if tensor.layout is not torch.strided:
                raise InputError(f"found the layout {tensor.layout}, expected a strided tensor", place=f"operator {node.name}")
        self.values[node] = value
        return value

    def view(self, node: Any, viewed: Any) -> Any:
        """Runs a node that copies the elements of the node ``viewed``, and returns its value as a view of that node's storage.

        Raises InputError as :meth:`run` does.
        """
        copy, base = self.run(node), self.values[viewed]
        with self.mode:
            view = self._torch.as_strided(base, copy.shape, copy.stride(), base.storage_offset())
        self.values[node] = view
        return view

    def with_values(self, arguments: Any) -> Any:
        """The arguments of a node, with the values of nodes in place of the nodes; raises KeyError if a node has not run."""
        return self._torch.fx.node.map_arg(arguments, self.values.__getitem__)

    def _call(self, node: Any) -> Any:
        """The value of a node's operator on fake tensors.

        If the operator cannot run, the value is a fresh one, or InputError is raised if the schema does not rule out views and
        overwritten operands.
        """
        args, keywords = self.with_values((node.args, node.kwargs))
        try:
            with self.mode, self._torch.no_grad():
                return node.target(*args, **keywords)
        except Exception as error:
            # Torch raises errors of many types here.
            schema = schema_of(node)
            if schema is None or any(part.alias_info is not None for part in (*schema.arguments, *schema.returns)):
                message = f"torch cannot run {node.target} without data: {first_line(error)}"
                raise InputError(message, place=f"operator {node.name}") from error
            return self._fresh(node)

    def _fresh(self, node: Any) -> Any:
        """A value like the one in the node's ``meta``, in which each tensor has a storage of its own."""
        torch = self._torch

        def like(tensor: Any) -> Any:
            if tensor.layout is not torch.strided:
                return tensor
            shape, stride = tensor.shape, tensor.stride()
            if self.bounds is None:
                static_shape(tensor, place)
            else:
                shape, stride = ([self.bounds.of(size, place) for size in sizes] for sizes in (shape, stride))
            return torch.empty_strided(shape, stride, dtype=tensor.dtype, device=tensor.device)

        bounds, place = self.bounds, f"operator {node.name}"
        value = node.meta.get("val")
        if bounds is not None:
            value = torch.utils._pytree.tree_map_only(torch.SymInt, lambda number: bounds.number(number, place), value)
        with self.mode:
            return torch.utils._pytree.tree_map_only(torch.Tensor, like, value)


def is_higher_order(node: Any) -> bool:
    """Whether a node's operator runs graphs or operators that are its arguments."""
    import torch

    return isinstance(node.target, torch._ops.HigherOrderOperator)


def warn_of_unknown(target: Any, place: str) -> None:
    """Warns of an operator that may need memory that is not counted.

    The operator is of an unknown namespace, or it may run as several operators. There is no warning for all others. ``target``
    is the ``target`` of the operator's node, and ``place`` names the node in the warning.
    """
    if getattr(target, "namespace", "aten") not in _NAMESPACES:
        warn_unmodelled(f"what {target} allocates beside its results is not counted", place)
    elif getattr(getattr(target, "_schema", None), "name", "") in _SEVERAL:
        warn_unmodelled(f"{target} may run as several operators: what these hold between them is not counted", place)


def leaves(value: Any) -> list[Any]:
    """The leaves of a value in order. The value may be nested tuples, lists and dictionaries, as torch's ``pytree`` has them; a
    value that is none of these is its own only leaf."""
    import torch

    return list(torch.utils._pytree.tree_leaves(value))


def tensors_of(value: Any) -> list[Any]:
    """The tensors among the leaves of a value."""
    return [leaf for leaf in leaves(value) if hasattr(leaf, "element_size")]


def storage_key(tensor: Any) -> int:
    """A key of a tensor's storage. Two tensors that exist at the same time have the same key exactly if they share a
    storage."""
    return int(tensor.untyped_storage()._cdata)


class EffectOrder:
    """Collects precedences, which are pairs of operators that must run in this order.

    They keep the reads and writes of each storage that is overwritten in the order of the graph.

    Attributes
    ----------
    precedences
        Pairs of operator numbers; the first operator runs before the second. The dictionary is used as an ordered set, and its
        values are None.
    overwritten
        Keys of the storages (:func:`storage_key`) that some operator overwrites.
    """

    def __init__(self) -> None:
        self.precedences: dict[tuple[int, int], None] = {}
        self.overwritten: set[int] = set()
        self._touching: dict[int, list[int]] = {}
        """For each storage, by its key, the last operator that overwrote it and the operators that have used it since then."""

    def add(self, number: int, touched: Iterable[int], overwritten: Collection[int]) -> None:
        """Adds the next operator of the graph.

        Parameters
        ----------
        number
            Number of the operator.
        touched
            Keys of the storages that it uses, including those that it overwrites.
        overwritten
            Keys of the storages that it overwrites.
        """
        for key in touched:
            others = self._touching.setdefault(key, [])
            if key in overwritten:
                self.precedences.update(((other, number), None) for other in others)
                others.clear()
                self.overwritten.add(key)
            elif key in self.overwritten:
                self.precedences[others[0], number] = None
            others.append(number)


def is_random(node: Any) -> bool:
    """Whether two runs of a node may give different values, because its operator draws random numbers.

    Attention does not count if it has no dropout.
    """
    import torch

    # An operator of ExecuTorch's edge dialect is a wrapper of one of torch.
    tags = (*getattr(node.target, "tags", ()), *getattr(getattr(node.target, "_op", None), "tags", ()))
    if torch.Tag.nondeterministic_seeded not in tags:
        return False
    return not any(argument.name == "dropout_p" and given in (0, None) for argument, given in arguments(node))
