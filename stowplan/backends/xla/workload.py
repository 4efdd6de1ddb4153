"""What is to be compiled: a JAX function with the shapes of its arguments, in a form that a child process can rebuild.

To compile it the user's machine needs jax and libtpu, which the package neither brings nor imports itself.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.metadata
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from stowplan.backends.fallback import require
from stowplan.backends.xla.sharding import MeshAxes, Partition, dumps, one_mesh, partition_of, read_mesh, read_partitions
from stowplan.errors import UsageError

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
    require("compiling for XLA", PACKAGES, "xla")
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
    """Type (NumPy's name), dimensions and partition of an array."""

    dtype: str
    dims: tuple[int, ...]
    partition: Partition | None = None
    """None where nothing is said: whole on each device."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A function to compile, and how a child process comes by it. Make one by :func:`by_name` or :func:`of_function`."""

    name: str
    """For people and file names."""
    reference: str = ""
    """``module:attribute`` of the function, or of what makes it."""
    factory_arguments: tuple[str, ...] | None = None
    """Where ``reference`` makes the function: called with these, and with ``mesh`` where one is given, it returns (function,
    arguments, donated)."""
    shapes: tuple[ArrayShape, ...] = ()
    """Arguments of the function, where they are plain arrays."""
    arguments: str = ""
    """``module:attribute`` of the arguments: a tuple, or a function that returns one, called with ``mesh`` where one is given;
    leaves have a shape and a dtype, and may have a sharding."""
    donated: tuple[int, ...] = ()
    """Positions of arguments whose memory the result may take."""
    pickled: str = ""
    """Function, arguments and shardings of the result, as ``sharding.dumps`` pickles them and in base64, where there is no
    reference."""
    mesh: MeshAxes | None = None
    """Devices to compile for, one where None. It is set (``jax.set_mesh``) while the function is traced."""
    outputs: tuple[Partition, ...] = ()
    """Partitions of the function's results, of one for all; the compiler's choice where there are none."""
    search_path: tuple[str, ...] = ()
    """Folders to import from, before the usual ones."""


def by_name(
    reference: str,
    shapes: Sequence[str] = (),
    *,
    arguments: str = "",
    donated: Sequence[int] = (),
    mesh: str = "",
    partition: str = "",
    search_path: Sequence[str] = (),
    name: str = "",
) -> Workload:
    """A workload that is imported: nothing of it runs in this process.

    Parameters
    ----------
    reference
        ``module:function``; the module is looked for in the current folder, too. A call, ``module:make(a,b)`` or
        ``module:make()``, makes the function: it is given these texts, and returns function, arguments and donated positions.
    shapes
        Arguments, as ``f32[32,128]``; a type alone with ``[]`` is a scalar.
    arguments
        ``module:name`` of a tuple of arguments, instead of ``shapes``; any tree of things with a shape and a dtype.
    donated
        Positions of donated arguments.
    mesh
        Axes of the devices to compile for, as ``data=2,model=2``; one device where empty. The function finds the mesh in its
        context, and a factory gets it as ``mesh``.
    partition
        For each of ``shapes`` the axes that its dimensions are partitioned over, as ``data,- -,model``; then, after ``->``, the
        same for the results.

    Raises
    ------
    UsageError
        A reference, shape, mesh or partition that cannot be read, or arguments given twice.
    """
    call = re.fullmatch(r"(?P<place>[^()]*)\((?P<texts>[^()]*)\)", reference)
    texts = None if call is None else tuple(re.findall(r"[^\s,]+", call["texts"]))
    place = reference if call is None else call["place"]
    for text in (place, arguments):
        if text and not re.fullmatch(r"[\w.]+:[\w.]+", text):
            raise UsageError(f"found {text!r}, expected MODULE:NAME, for example my_module:step")
    if bool(shapes) + bool(arguments) + (texts is not None) > 1:
        raise UsageError("found more than one of shapes, arguments and a factory, expected one way to say the arguments")
    inputs, outputs = read_partitions(partition)
    if partition and not mesh:
        raise UsageError("found a partition and no mesh, expected the mesh that it is over")
    if partition and len(inputs) != len(shapes):
        raise UsageError(f"found partitions of {len(inputs)} arguments, expected one for each of {len(shapes)} shapes")
    return Workload(
        name=name or re.sub(r"\W+", "_", "_".join((place.rpartition(":")[2], *(texts or ())))),
        reference=place,
        factory_arguments=texts,
        shapes=tuple(
            msgspec.structs.replace(read_shape(shape), partition=inputs[number] if partition else None)
            for number, shape in enumerate(shapes)
        ),
        arguments=arguments,
        mesh=read_mesh(mesh) if mesh else None,
        outputs=tuple(outputs),
        donated=tuple(donated),
        search_path=(*map(os.path.abspath, search_path), os.getcwd()),
    )


@dataclass(frozen=True)
class LoweredFunction:
    """A function that was lowered before it was sent. It takes and returns the leaves of the function's trees."""

    program: bytes
    """StableHLO and types, as ``jax.export`` serializes them."""

    def __call__(self, *leaves: Any) -> Any:
        """The leaves of the results."""
        from jax import export

        return export.deserialize(bytearray(self.program)).call(*leaves)


def of_function(
    function: Callable[..., Any], *arguments: Any, donated: Sequence[int] = (), out_shardings: Any = None, name: str = ""
) -> Workload:
    """A workload of a function that this process has, which may be a closure.

    The function is traced and lowered in this process, and its program is sent: a copy of a function that was pickled by value
    lacks what the script has registered with jax, such as derivative rules, pytrees and the configuration. Where jax cannot
    export the function, as one with callbacks, it is pickled.

    The workload is compiled for the mesh of its arguments' shardings, else for one in the function or its context, else for one
    device.

    Parameters
    ----------
    function
        What ``jax.jit`` takes; not yet jitted.
    arguments
        Trees of arrays or of ``jax.ShapeDtypeStruct``; only shapes, types and shardings count, whatever devices their mesh has.
    donated
        Positions of donated arguments.
    out_shardings
        As in ``jax.jit``; the compiler's choice where None.

    Raises
    ------
    MissingDependencyError
        Without jax, libtpu or cloudpickle.
    UsageError
        A function that cannot be sent to another process, an argument that is no array, or shardings over several meshes.
    """
    versions()
    require("sending a function to the compiling process", ("cloudpickle",), "xla")
    import jax

    shapes, mesh = shapes_of(arguments)
    name = name or re.sub(r"\W+", "_", getattr(function, "__name__", "function")).strip("_") or "function"
    pickled, met, failure = b"", list[MeshAxes](), None
    try:
        pickled, met = dumps((function, shapes, out_shardings))
    except Exception as error:
        failure = error
    with contextlib.suppress(Exception):
        lowered, donated = _lowered(function, arguments, donated, out_shardings)
        pickled, around = dumps((lowered, shapes_of(tuple(jax.tree.leaves(arguments)))[0], None))
        met = met or around
    if not pickled:
        text = f"{type(failure).__name__}: {failure}"
        raise UsageError(f"the function cannot be sent to the compiling process: {text}") from failure
    return Workload(
        name=name,
        donated=tuple(donated),
        pickled=base64.b64encode(pickled).decode(),
        mesh=mesh or one_mesh(met),
        search_path=tuple(path or os.getcwd() for path in sys.path),
    )


def _lowered(
    function: Callable[..., Any], arguments: Any, donated: Sequence[int], out_shardings: Any
) -> tuple[LoweredFunction, list[int]]:
    """A function as a program, and which of its leaves are donated."""
    import jax
    from jax import export
    from jax._src import config

    leaves, tree = jax.tree.flatten(arguments)
    places = [place for place, argument in enumerate(arguments) for _ in jax.tree.leaves(argument)]
    call = jax.jit(lambda *leaves: function(*jax.tree.unflatten(tree, leaves)), out_shardings=out_shardings)
    # The process that reads it has the same jax: nothing is written in the manner of older ones.
    with config.export_ignore_forward_compatibility(True):
        program = export.export(jax.jit(lambda *leaves: jax.tree.leaves(call(*leaves))), platforms=["tpu"])(*leaves)
    return LoweredFunction(bytes(program.serialize())), [leaf for leaf, place in enumerate(places) if place in donated]


def shapes_of(arguments: Any) -> tuple[Any, MeshAxes | None]:
    """The same tree with :class:`ArrayShape` for arrays, and the mesh of their shardings, None without any.

    Raises
    ------
    UsageError
        A leaf that is no array, shardings that cannot be sent, or several meshes.
    """
    import jax

    meshes: list[MeshAxes] = []

    def shape_of(leaf: Any) -> ArrayShape:
        if isinstance(leaf, ArrayShape):
            return leaf
        if not hasattr(leaf, "dtype") or not hasattr(leaf, "shape"):
            raise UsageError(f"found an argument of type {type(leaf).__name__}, expected arrays or jax.ShapeDtypeStruct")
        partition, mesh = partition_of(leaf)
        meshes.extend([mesh] if mesh else [])
        return ArrayShape(str(leaf.dtype), tuple(leaf.shape), partition)

    shapes = jax.tree.map(shape_of, arguments, is_leaf=lambda leaf: isinstance(leaf, ArrayShape))
    return shapes, one_mesh(meshes)


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
    return ArrayShape(TYPES[match["type"]], tuple(int(size) for size in match["dims"].split(",") if size))
