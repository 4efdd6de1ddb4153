"""What is to be compiled: a JAX function with the shapes of its arguments, in a form that a child process can rebuild.

To compile it the user's machine needs jax and libtpu, which the package neither brings nor imports itself.
"""

from __future__ import annotations

import base64
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from stowplan.errors import MissingDependencyError, UsageError

#: Packages of the extra ``xla`` that compile; what a result is made by.
PACKAGES = ("jax", "jaxlib", "libtpu")

#: Variables with flags of the compiler; a user's own stay in force, and belong to what a result is made by.
FLAGS = ("LIBTPU_INIT_ARGS", "XLA_FLAGS")


def versions() -> dict[str, str]:
    """Installed versions of :data:`PACKAGES`, and those of :data:`FLAGS` that are set.

    Raises
    ------
    MissingDependencyError
        Naming what is missing and the extra that brings it.
    """
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependencyError(
            f"compiling for XLA needs {' and '.join(missing)}, not installed here: pip install 'stowplan[xla]'"
        )
    installed = {name: importlib.metadata.version(name) for name in PACKAGES}
    return installed | {name: os.environ[name] for name in FLAGS if os.environ.get(name, "").strip()}


_SHAPE = re.compile(r"(?P<type>[a-z]+[0-9]*(?:[a-z0-9_]*))\[(?P<dims>[0-9]*(?:,[0-9]+)*)\]")

#: HLO's names of types, and NumPy's.
TYPES = {
    "pred": "bool",
    **{f"s{bits}": f"int{bits}" for bits in (4, 8, 16, 32, 64)},
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (4, 8, 16, 32, 64)},
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
}


class ArrayShape(msgspec.Struct, frozen=True):
    """Type (NumPy's name) and dimensions of an array."""

    dtype: str
    dims: tuple[int, ...]


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A function to compile, and how a child process comes by it. Make one by :func:`by_name` or :func:`of_function`."""

    name: str
    """For people and file names."""
    reference: str = ""
    """``module:attribute`` of the function, or of what makes it."""
    factory: bool = False
    """Whether ``reference`` makes the function: called with ``factory_arguments`` it returns (function, arguments, donated)."""
    factory_arguments: tuple[str, ...] = ()
    shapes: tuple[ArrayShape, ...] = ()
    """Arguments of the function, where they are plain arrays."""
    arguments: str = ""
    """``module:attribute`` of the arguments: a tuple, or a function that returns one; leaves have a shape and a dtype."""
    donated: tuple[int, ...] = ()
    """Positions of arguments whose memory the result may take."""
    pickled: str = ""
    """Function and arguments, pickled and in base64, where there is no reference."""
    search_path: tuple[str, ...] = ()
    """Folders to import from, before the usual ones."""


def by_name(
    reference: str,
    shapes: Sequence[str] = (),
    *,
    arguments: str = "",
    donated: Sequence[int] = (),
    factory: bool = False,
    factory_arguments: Sequence[str] = (),
    search_path: Sequence[str] = (),
    name: str = "",
) -> Workload:
    """A workload that is imported: nothing of it runs in this process.

    Parameters
    ----------
    reference
        ``module:function``; the module is looked for in the current folder, too.
    shapes
        Arguments, as ``f32[32,128]``; a type alone with ``[]`` is a scalar.
    arguments
        ``module:name`` of a tuple of arguments, instead of ``shapes``; any tree of things with a shape and a dtype.
    donated
        Positions of donated arguments.
    factory, factory_arguments
        ``reference`` is called with these strings and returns function, arguments and donated positions.

    Raises
    ------
    UsageError
        A reference or shape that cannot be read, or arguments given twice.
    """
    for each in (reference, arguments):
        if each and not re.fullmatch(r"[\w.]+:[\w.]+", each):
            raise UsageError(f"found {each!r}, expected MODULE:NAME, for example my_module:step")
    if bool(shapes) + bool(arguments) + factory > 1:
        raise UsageError("found more than one of shapes, arguments and a factory, expected one way to say the arguments")
    return Workload(
        name=name or re.sub(r"\W+", "_", "_".join((reference.rpartition(":")[2], *factory_arguments))),
        reference=reference,
        factory=factory,
        factory_arguments=tuple(factory_arguments),
        shapes=tuple(map(read_shape, shapes)),
        arguments=arguments,
        donated=tuple(donated),
        search_path=(*map(os.path.abspath, search_path), os.getcwd()),
    )


def of_function(function: Callable[..., Any], *arguments: Any, donated: Sequence[int] = (), name: str = "") -> Workload:
    """A workload of a function at hand, which may be a closure.

    Parameters
    ----------
    function
        What ``jax.jit`` takes; not yet jitted.
    arguments
        Trees of arrays or of ``jax.ShapeDtypeStruct``; only shapes and types count.
    donated
        Positions of donated arguments.

    Raises
    ------
    MissingDependencyError
        Without jax, libtpu or cloudpickle.
    UsageError
        A function that cannot be sent to another process, or an argument that is no array.
    """
    versions()
    try:
        import cloudpickle
    except ImportError as error:
        raise MissingDependencyError(
            "sending a function to the compiling process needs cloudpickle, not installed here: pip install 'stowplan[xla]'"
        ) from error
    import jax

    shapes = jax.tree.map(_shape_of, arguments)
    try:
        pickled = cloudpickle.dumps((function, shapes))
    except Exception as error:
        raise UsageError(f"the function cannot be sent to the compiling process: {type(error).__name__}: {error}") from error
    return Workload(
        name=name or re.sub(r"\W+", "_", getattr(function, "__name__", "function")).strip("_") or "function",
        donated=tuple(donated),
        pickled=base64.b64encode(pickled).decode(),
        search_path=tuple(path or os.getcwd() for path in sys.path),
    )


def _shape_of(leaf: Any) -> ArrayShape:
    if not hasattr(leaf, "dtype") or not hasattr(leaf, "shape"):
        raise UsageError(f"found an argument of type {type(leaf).__name__}, expected arrays or jax.ShapeDtypeStruct")
    return ArrayShape(str(leaf.dtype), tuple(leaf.shape))


def read_shape(text: str) -> ArrayShape:
    """An array's shape from HLO's short form, ``bf16[8,128]``.

    Raises
    ------
    UsageError
        Text of another form, or an unknown type.
    """
    match = _SHAPE.fullmatch(text.replace(" ", ""))
    if match is None:
        raise UsageError(f"found shape {text!r}, expected a type and dimensions, for example f32[32,128]")
    if match["type"] not in TYPES:
        raise UsageError(f"found shape {text!r} of an unknown type, expected one of {', '.join(TYPES)}")
    return ArrayShape(TYPES[match["type"]], tuple(int(each) for each in match["dims"].split(",") if each))
