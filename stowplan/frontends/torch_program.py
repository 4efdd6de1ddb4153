"""Programs of ``torch.export``, as every front end for them begins: torch itself, its nodes' values and arguments.

Torch is imported when a model or program is read, never before.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from stowplan.errors import InputError, MissingDependencyError, first_line, to_install
from stowplan.frontends import known
from stowplan.log import warn_unmodelled

_KNOWN = known("torch")["programs"]
#: Namespaces of operators that hold what they read and write, and nothing that matters beside.
_NAMESPACES = frozenset(_KNOWN["namespaces"].split())
#: Operators of ATen that run as several others where no kernel fuses these, by the names of their schemas.
_SEVERAL = frozenset(f"aten::{name}" for name in _KNOWN["several"].split())


def import_torch(what: str) -> Any:
    """Torch; raises MissingDependencyError saying ``what`` needs it, where it is not installed."""
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


#: Stands among the keys of storages for the state of random numbers, which operators that draw some write over.
RANDOM = -1


def static_shape(tensor: Any, place: str) -> tuple[int, ...]:
    """Sizes of a tensor; raises InputError naming ``place`` where one is not known before the program runs."""
    if not all(type(extent) is int for extent in tensor.shape):
        shape = [str(extent) for extent in tensor.shape]
        raise InputError(f"found the shape {shape}, expected a static one: export without dynamic shapes", place=place)
    return tuple(tensor.shape)


class UpperBounds:
    """Of sizes that a program leaves open: it is planned for the largest, as ExecuTorch does.

    Parameters
    ----------
    program
        A ``torch.export.ExportedProgram``.
    dims
        Bounds by the names of such sizes, in place of the program's own; none is larger.

    Raises
    ------
    InputError
        A name that the program has not, or a bound that it forbids.
    """

    def __init__(self, program: Any, dims: Mapping[str, int] | None = None):
        ranges = dict(program.range_constraints)
        names = {str(symbol): symbol for symbol in ranges}
        for name, bound in (dims or {}).items():
            if name not in names:
                expected = f"an open size of the program: {', '.join(sorted(names))}" if names else "none: no size is open"
                raise InputError(f"found --dim {name}, expected {expected}")
            own = ranges[names[name]]
            if not own.lower <= bound <= own.upper:
                raise InputError(f"found --dim {name}={bound}, expected {own.lower} to {own.upper}, as in the program")
            ranges[names[name]] = type(own)(own.lower, bound)
        self._ranges, self._told = ranges, set(dims or ())

    def of(self, extent: Any, place: str) -> int:
        """The largest that a size can be; raises InputError where it has no bound, with what may be typed."""
        if type(extent) is int:
            return extent
        expression = getattr(getattr(extent, "node", None), "expr", None)
        names = {str(symbol) for symbol in getattr(expression, "free_symbols", ())}
        if expression is None or not names <= {str(symbol) for symbol in self._ranges}:
            raise InputError(f"found the size {extent}, expected one whose bounds the program has", place=place)
        if (bound := self._upper(expression)) is None:
            # Those of inputs at once; those that depend on values where they turn up.
            missing = {str(symbol) for symbol in self._ranges if self._upper(symbol) is None}
            typed = " ".join(f"--dim {name}=128" for name in sorted(missing) if name in names or name.startswith("s"))
            raise InputError(f"found no upper bound of the size {extent}, expected one, for example: {typed}", place=place)
        for name in sorted(names - self._told):
            (upper,) = (self._upper(symbol) for symbol in self._ranges if str(symbol) == name)
            warn_unmodelled(f"planned for the largest size {name}, {upper} (--dim {name}=SIZE tells a smaller bound)", "sizes")
        return bound

    def number(self, number: Any, place: str) -> Any:
        """The largest that a whole number of the program can be; the number itself where it has no bound."""
        try:
            return self.of(number, place)
        except InputError:
            return number

    def bytes(self, tensor: Any, place: str) -> int:
        """The most bytes that a tensor's elements take."""
        return math.prod(self.of(extent, place) for extent in tensor.shape) * int(tensor.element_size())

    def _upper(self, expression: Any) -> int | None:
        from torch.utils._sympy.value_ranges import bound_sympy

        upper = bound_sympy(expression, self._ranges).upper
        # Older exports have the largest number there is for none.
        return int(upper) if upper.is_Integer and upper < 1 << 60 else None


def arguments(node: Any) -> Iterator[tuple[Any, Any]]:
    """(argument, what it is given) of an operator, in the order of its schema; nothing of what has none."""
    for at, argument in enumerate(getattr(schema_of(node), "arguments", ())):
        yield argument, node.args[at] if at < len(node.args) else node.kwargs.get(argument.name)


def schema_of(node: Any) -> Any:
    """The schema of a node's operator, None where it has none."""
    # Operators of executorch's edge dialect have torch's own inside.
    return getattr(node.target, "_schema", None) or getattr(getattr(node.target, "_op", None), "_schema", None)


def is_written(argument: Any) -> bool:
    """Whether an operator writes over this argument of its schema."""
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


class FakeRun:
    """Runs the nodes of a graph on tensors without data, one after the other.

    Tensors of its values share a storage exactly where those of a real run do: an operator whose schema says that its result
    may be a view copies where strides, types or conjugation demand it, and some that return what they are given say nothing of
    it. What ``meta["val"]`` holds after ``torch.export.load`` shares nothing. Results of higher-order operators are new: torch
    lets none of them return what it was given.

    Parameters
    ----------
    module
        With ``graph``, and the submodules and constants that its nodes name.
    mode
        Of the tensors; a new one where None.
    bounds
        Of sizes that the program leaves open, for a run with the largest; None where none is.
    """

    def __init__(self, module: Any, mode: Any = None, bounds: UpperBounds | None = None):
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        self._torch, self._module, self.bounds = torch, module, bounds
        self.mode = mode or FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
        self.values: dict[Any, Any] = {}
        """Of the nodes that ran. While they are held, no two storages have one key."""

    def run(self, node: Any) -> Any:
        """The value of a node whose arguments have run.

        Raises
        ------
        InputError
            It does not run, and what it returns may be a view; or a tensor has no storage of its own, as sparse ones have none.
        """
        torch = self._torch
        if node.op == "get_attr":
            value = operator.attrgetter(node.target)(self._module)
            value = self.mode.from_tensor(value) if isinstance(value, torch.Tensor) else value
        elif node.op == "call_function" and not is_higher_order(node):
            value = self._call(node)
            sizes = (size for leaf in leaves(value) for size in getattr(leaf, "shape", [leaf]))
            if self.bounds is not None and any(isinstance(size, torch.SymInt) for size in sizes):
                # It depends on values.
                value = self._fresh(node)
        else:
            value = self._fresh(node)
        for tensor in tensors_of(value):
            if tensor.layout is not torch.strided:
                raise InputError(f"found the layout {tensor.layout}, expected a strided tensor", place=f"operator {node.name}")
        self.values[node] = value
        return value

    def view(self, node: Any, viewed: Any) -> Any:
        """The value of a node that copies another's elements, as a view of them: its shape, and the storage of the other."""
        copy, base = self.run(node), self.values[viewed]
        with self.mode:
            view = self._torch.as_strided(base, copy.shape, copy.stride(), base.storage_offset())
        self.values[node] = view
        return view

    def taken(self, given: Any) -> Any:
        """Arguments of a node, with values in place of the nodes that they are given by."""
        return self._torch.fx.node.map_arg(given, self.values.__getitem__)

    def _call(self, node: Any) -> Any:
        args, keywords = self.taken((node.args, node.kwargs))
        try:
            with self.mode, self._torch.no_grad():
                return node.target(*args, **keywords)
        except Exception as error:
            # What torch raises here has no common type.
            schema = schema_of(node)
            if schema is None or any(part.alias_info is not None for part in (*schema.arguments, *schema.returns)):
                message = f"torch cannot run {node.target} without data: {first_line(error)}"
                raise InputError(message, place=f"operator {node.name}") from error
            return self._fresh(node)

    def _fresh(self, node: Any) -> Any:
        """What torch knows of a node's value, each tensor with a storage of its own."""
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
    """Whether a node's operator runs graphs, or operators, that it is given."""
    import torch

    return isinstance(node.target, torch._ops.HigherOrderOperator)


def warn_of_unknown(target: Any, place: str) -> None:
    """Say of an operator that may hold more than is counted that it may: a custom one, one that runs graphs, one of several."""
    if getattr(target, "namespace", "aten") not in _NAMESPACES:
        warn_unmodelled(f"what {target} allocates beside its results is not counted", place)
    elif getattr(getattr(target, "_schema", None), "name", "") in _SEVERAL:
        warn_unmodelled(f"{target} may run as several operators: what these hold between them is not counted", place)


def leaves(value: Any) -> list[Any]:
    """What a value is made of, in order, however deep its lists are."""
    import torch

    return list(torch.utils._pytree.tree_leaves(value))


def tensors_of(value: Any) -> list[Any]:
    """The tensors among the leaves of a value."""
    return [leaf for leaf in leaves(value) if hasattr(leaf, "element_size")]


def storage_key(tensor: Any) -> int:
    """What two tensors have in common that share a storage, while both are held."""
    return int(tensor.untyped_storage()._cdata)


class EffectOrder:
    """Who touches what is written over does so before, or after, as in the graph.

    Attributes
    ----------
    precedences
        Pairs of operators, the first of which runs before the second.
    overwritten
        Keys of storages that were written over.
    """

    def __init__(self) -> None:
        self.precedences: dict[tuple[int, int], None] = {}
        self.overwritten: set[int] = set()
        self._touching: dict[int, list[int]] = {}
        """Operators that touched a storage from the last that wrote over it."""

    def add(self, number: int, touched: Iterable[int], overwritten: Collection[int]) -> None:
        """The next operator of the graph, with the keys of what it touches, and of what it writes over among them."""
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
    """Whether two runs of a node give different values. Attention without dropout draws no random numbers."""
    import torch

    # Operators of executorch's edge dialect have torch's own inside.
    tags = (*getattr(node.target, "tags", ()), *getattr(getattr(node.target, "_op", None), "tags", ()))
    if torch.Tag.nondeterministic_seeded not in tags:
        return False
    return not any(argument.name == "dropout_p" and given in (0, None) for argument, given in arguments(node))
