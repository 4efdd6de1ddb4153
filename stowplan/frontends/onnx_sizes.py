"""Symbolic sizes of an ONNX model's inputs, and the values that the user gives for them.

A dimension whose size is not fixed is called *open*. It may have a name, and all dimensions with the same name have the same
size. A name may be an expression of other names with ``+``, ``-``, ``*`` and ``//``, such as ``past + 1``.

A *declaration* of a value is an entry of a graph's lists ``input``, ``output`` and ``value_info``, with the name, element type
and shape of the value. Graphs, types and nodes are protocol buffers of onnx.
"""

from __future__ import annotations

import ast
import operator
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from stowplan.errors import InputError
from stowplan.frontends.options import UserSizes, as_typed

#: ONNX's numbers of the element types INT32, INT64 and BOOL, with the fields of tensors that contain their values.
_WHOLE = {6: "int32_data", 7: "int64_data", 9: "int32_data"}
_OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}

#: Plausible sizes for examples in messages: by words in the name of a dimension, and by names of a single letter.
_BY_NAME = (
    (("batch", "num_images"), 1),
    (("channel",), 3),
    (("height", "width", "image"), 224),
    (("past",), 127),
    (("sample", "audio", "wave"), 16_000),
    (("seq", "len", "time", "token", "frames"), 128),
)
_BY_LETTER = {"n": 1, "b": 1, "c": 3, "h": 224, "w": 224, "t": 128, "s": 128, "l": 128}


def graphs_of(graph: Any) -> Iterator[Any]:
    """Yields a graph and, recursively, the graphs that its nodes run, such as the branches of an ``If``."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
                yield from graphs_of(body)


def is_fixed(kind: Any) -> bool:
    """Whether a type (a ``TypeProto`` of onnx; None if it is not known) is that of a tensor with a fixed shape."""
    shape = None if kind is None or not kind.tensor_type.HasField("shape") else kind.tensor_type.shape
    return shape is not None and all(size.HasField("dim_value") for size in shape.dim)


def fix_sizes(model: Any, user_sizes: UserSizes) -> None:
    """Writes the sizes that the user gives into a model (a ``ModelProto`` of onnx).

    A shape that the user gives for an intermediate value is written into its declaration, which is added if the graph has none.
    An input that is a single integer becomes a constant if the user gives its value.

    Raises
    ------
    InputError
        In one of these cases:

        - The user gives the size of a dimension or the shape of a value that the model does not have.
        - Sizes contradict the model or each other.
        - A size that is computed from others is less than 1.
        - Inputs still have open dimensions. The message has an example of the missing options.
    """
    graph = model.graph
    for inner in graphs_of(graph):
        for value in (*inner.input, *inner.output, *inner.value_info):
            for size in value.type.tensor_type.shape.dim:
                # A negative size or the name ``?`` marks an open dimension without a name.
                if size.dim_value < 0 or size.dim_param == "?":
                    size.Clear()
    dims = _user_dims(graph, user_sizes, _store_numbers(graph, user_sizes))
    for inner in graphs_of(graph):
        for value in (*inner.input, *inner.output, *inner.value_info):
            for size in value.type.tensor_type.shape.dim:
                if _is_open(size) and (number := _number(size.dim_param, dims)) is not None:
                    if number < 1:
                        message = f"found the size {number} for {size.dim_param!r}, expected at least 1"
                        raise InputError(message, place=f"value {value.name}")
                    size.dim_value = number
    _check_inputs(graph)


def check_user_sizes(graph: Any, user_sizes: UserSizes) -> None:
    """Raises InputError if a shape that the user gives differs from the one that was inferred for the value.

    Values whose inferred shape is not fixed are not checked.
    """
    for value in (*graph.output, *graph.value_info):
        shape = user_sizes.shapes.get(value.name)
        inferred = tuple(size.dim_value for size in value.type.tensor_type.shape.dim)
        if shape is not None and is_fixed(value.type) and inferred != shape:
            message = f"found --shape {as_typed(shape)}, expected {as_typed(inferred)}, which follows from the other sizes"
            raise InputError(message, place=f"value {value.name}")


def _store_numbers(graph: Any, user_sizes: UserSizes) -> set[str]:
    """Turns inputs that are a single integer or truth value into constants of the graph if the user gives their value; returns
    their names."""
    names = set()
    for value in [value for value in graph.input if value.name in user_sizes.dims]:
        kind = value.type.tensor_type
        shape = [size.dim_value for size in kind.shape.dim]
        if kind.HasField("shape") and kind.elem_type in _WHOLE and all(size == 1 for size in shape):
            field, number = _WHOLE[kind.elem_type], user_sizes.dims[value.name]
            graph.initializer.add(name=value.name, data_type=kind.elem_type, dims=shape, **{field: [number]})
            graph.input.remove(value)
            names.add(value.name)
    return names


def _user_dims(graph: Any, user_sizes: UserSizes, numbers: set[str]) -> dict[str, int]:
    """Returns the sizes of all named dimensions that follow from the user's sizes and shapes; writes the shapes into the graph.

    ``numbers`` are the names of inputs that have become constants. Raises InputError if a name is unknown, or if sizes
    contradict the model or each other.
    """
    graphs = list(graphs_of(graph))
    values = [value for inner in graphs for value in (*inner.input, *inner.output, *inner.value_info)]
    open_sizes = (size.dim_param for value in values for size in value.type.tensor_type.shape.dim if _is_open(size))
    names = {part for name in set(open_sizes) if name for part in (name, *_parts(name))}
    for name in user_sizes.dims:
        if name not in names | numbers:
            raise InputError(f"found --dim {name}, expected {_one_of(names, 'an', 'open size')}")
    dims = dict(user_sizes.dims)
    for name, shape in user_sizes.shapes.items():
        places = [value for inner in graphs for value in _values(inner, name)]
        if not places:
            raise InputError(f"found --shape {name}, expected {_one_of([value.name for value in graph.input], 'a', 'value')}")
        for value in places:
            _unify(value, shape, dims)
    for name, size in dims.items():
        computed = _number(name, {other: dims[other] for other in dims if other != name})
        if computed not in (None, size):
            raise InputError(f"found the size {size} for {name!r}, expected {computed}, which follows from the other sizes")
    return dims


def _values(graph: Any, name: str) -> list[Any]:
    """The graph's declarations of a value. If there is none and a node produces the value, a new, empty declaration is added.
    The list is empty if the graph does not have the value."""
    values = [value for value in (*graph.input, *graph.output, *graph.value_info) if value.name == name]
    if not values and any(name in node.output for node in graph.node):
        values = [graph.value_info.add(name=name)]
    return values


def _unify(value: Any, shape: tuple[int, ...], dims: dict[str, int]) -> None:
    """Sets the shape of a value in its declaration, and adds the sizes of its named dimensions to ``dims``.

    Raises
    ------
    InputError
        The shape contradicts the declaration or ``dims``.
    """
    kind, typed = value.type.tensor_type, as_typed(shape)
    place = f"value {value.name}"
    sizes = list(kind.shape.dim) if kind.HasField("shape") else None
    if sizes is not None and len(sizes) != len(shape):
        raise InputError(f"found --shape {typed}, expected {len(sizes)} sizes, as in the model", place=place)
    for size, number in zip(sizes or (), shape, strict=sizes is not None):
        fixed = None if _is_open(size) else size.dim_value
        if fixed is None and size.dim_param:
            fixed = dims.setdefault(size.dim_param, number)
        if fixed is not None and fixed != number:
            what = f" for {size.dim_param!r}" if _is_open(size) else ", as in the model"
            raise InputError(f"found --shape {typed}, expected {fixed}{what} in place of {number}", place=place)
    kind.shape.ClearField("dim")
    for number in shape:
        kind.shape.dim.add(dim_value=number)
    kind.shape.SetInParent()


def _check_inputs(graph: Any) -> None:
    """Raises InputError if inputs have open dimensions; the message has an example of the missing options."""
    stored = {tensor.name for tensor in graph.initializer}
    typed: dict[str, None] = {}
    first = ""
    for value in graph.input:
        kind = value.type.tensor_type
        if value.name in stored or value.type.WhichOneof("value") not in (None, "tensor_type"):
            continue
        sizes = list(kind.shape.dim)
        if kind.HasField("shape") and not any(map(_is_open, sizes)):
            continue
        names = [size.dim_param for size in sizes if _is_open(size)]
        if sizes and all(names):
            for place, size in enumerate(sizes):
                for part in _parts(size.dim_param) or [size.dim_param] if _is_open(size) else ():
                    typed.setdefault("--dim " + shlex.quote(f"{part}={_likely(sizes, place, part)}"))
        else:
            guessed = [_likely(sizes, place) for place in range(len(sizes))] or [1, 3, 224, 224]
            typed["--shape " + shlex.quote(f"{value.name}={as_typed(guessed)}")] = None
        first = first or value.name
    if typed:
        raise InputError(
            f"found open sizes of inputs, expected options that fix them, for example: {' '.join(typed)}",
            place=f"input {first}",
        )


def _likely(sizes: list[Any], place: int, name: str = "") -> int:
    """The size of the dimension at a place in ``sizes``; if it is open, a plausible size for an example."""
    if not _is_open(sizes[place]):
        return int(sizes[place].dim_value)
    is_image = len(sizes) == 4
    channels = 3 if is_image and not _is_open(sizes[3]) and sizes[3].dim_value <= 4 else 1
    return likely(name or sizes[place].dim_param, place, channels if is_image else None)


def _is_open(size: Any) -> bool:
    """Whether a dimension has no size."""
    return not size.HasField("dim_value")


def _one_of(names: Any, article: str, noun: str) -> str:
    """Text that lists up to 20 names of a model for an error message; ``noun`` says what they name, for example ``value``."""
    shown = ", ".join(sorted(names)[:20])
    return f"{article} {noun} of the model: {shown}" if shown else f"no such option: the model has no {noun}s"


def _parts(name: str) -> list[str]:
    """The names in a name that is an expression; none if it is a plain name."""
    tree = _tree(name)
    return [] if tree is None else sorted({node.id for node in ast.walk(tree) if isinstance(node, ast.Name)})


def _tree(name: str) -> ast.expr | None:
    """The syntax tree of a name that is an expression of other names; None for a plain name."""
    try:
        tree = ast.parse(name, mode="eval").body if len(name) < 200 else None
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    return tree if isinstance(tree, ast.BinOp) else None


def _number(name: str, dims: Mapping[str, int]) -> int | None:
    """The size of a named dimension; None if it does not follow from ``dims``."""
    tree = _tree(name)
    if name in dims or tree is None:
        return dims.get(name)

    def value(tree: ast.expr) -> int:
        if isinstance(tree, ast.Name):
            return dims[tree.id]
        if isinstance(tree, ast.Constant) and type(tree.value) is int:
            return tree.value
        if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATIONS:
            return int(_OPERATIONS[type(tree.op)](value(tree.left), value(tree.right)))
        raise KeyError(name)

    try:
        return value(tree)
    except (KeyError, ZeroDivisionError):
        return None


def likely(name: str, place: int, channels: int | None = None) -> int:
    """A plausible size of a dimension for examples: by its name, otherwise by its position in a shape.

    Parameters
    ----------
    name
        Name of the dimension; empty if it has none.
    place
        Position of the dimension in the shape, from 0.
    channels
        Index of the dimension of channels, if the shape is that of an image; otherwise None.
    """
    text = name.lower()
    for words, size in _BY_NAME:
        if any(word in text for word in words):
            return size
    by_place = 1 if place == 0 else 128 if channels is None else 3 if place == channels else 224
    return _BY_LETTER.get(text, by_place)
