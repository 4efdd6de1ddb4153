"""A JAX function with the shapes of its arguments (a *workload*), in a form from which a child process can rebuild it.

Compiling it needs jax and libtpu. Importing this module imports neither of them. A *mesh* is jax's array of devices with named
axes, and a *partition* says over which axes each dimension of an array is divided. A *donated* argument is one whose memory the
results may reuse.
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

#: Packages of the extra ``xla``; their versions are part of the key of a result.
PACKAGES = ("jax", "jaxlib", "libtpu")

#: Environment variables with compiler flags. A user's own flags stay in effect, and are part of the key of a result.
FLAGS = ("LIBTPU_INIT_ARGS", "XLA_FLAGS")


def versions() -> dict[str, str]:
    """Returns the installed versions of :data:`PACKAGES`, and the values of :data:`FLAGS` that are set.

    Raises
    ------
    MissingDependencyError
        A package is missing; the message names it and the extra that installs it.
    """
    require("compiling for XLA", PACKAGES, "xla")
    installed = {name: importlib.metadata.version(name) for name in PACKAGES}
    return installed | {name: os.environ[name] for name in FLAGS if os.environ.get(name, "").strip()}


#: An array's type and dimensions in HLO's short form, such as ``bf16[8,128]``.
_SHAPE = re.compile(r"(?P<type>[a-z]+[0-9]*(?:[a-z0-9_]*))\[(?P<dims>[0-9]*(?:,[0-9]+)*)\]")

#: From HLO's names of types to those of NumPy.
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
    """Type, dimensions and partition of an array."""

    dtype: str
    """NumPy's name of the type."""
    dims: tuple[int, ...]
    """The size of each dimension."""
    partition: Partition | None = None
    """How the array is partitioned over devices; None if it is replicated on each device."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A function to compile, and how a child process gets it. :func:`by_name` and :func:`of_function` construct workloads."""

    name: str
    """Name for messages and files."""
    reference: str = ""
    """``module:attribute`` of the function, or of a factory that makes it."""
    factory_arguments: tuple[str, ...] | None = None
    """If ``reference`` is a factory, its arguments. It is also passed ``mesh`` if there is one, and returns (function,
    arguments, donated)."""
    shapes: tuple[ArrayShape, ...] = ()
    """Arguments of the function, if they are plain arrays."""
    arguments: str = ""
    """``module:attribute`` of the arguments: a tuple, or a function that returns one and is passed ``mesh`` if there is one.
    The leaves have a shape and a dtype, and may have a sharding."""
    donated: tuple[int, ...] = ()
    """Positions of arguments whose memory the result may reuse."""
    pickled: str = ""
    """If there is no reference: the function, its arguments and the shardings of its results, pickled by ``sharding.dumps`` and
    encoded in base64."""
    mesh: MeshAxes | None = None
    """The devices for which to compile; None for one device.

    The mesh is set (``jax.set_mesh``) while the function is traced.
    """
    outputs: tuple[Partition, ...] = ()
    """Partitions of the function's results, or a single one for all of them; if empty, the compiler chooses."""
    search_path: tuple[str, ...] = ()
    """Folders from which modules are imported before the usual ones."""


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
    """Returns a workload that the child process imports; none of its code runs in this process.

    Parameters
    ----------
    reference
        ``module:function``; the module may be in the current folder. A call, such as ``module:make(a,b)`` or ``module:make()``,
        is a factory: it gets the texts in parentheses, and returns the function, its arguments and donated positions.
    shapes
        Arguments such as ``f32[32,128]``; ``f32[]`` is a scalar.
    arguments
        Instead of ``shapes``, ``module:name`` of a tuple of arguments: trees whose leaves have a shape and a dtype.
    donated
        Positions of donated arguments.
    mesh
        Axes of the devices for which to compile, such as ``data=2,model=2``; if empty, one device. The mesh is set while the
        function is traced, and a factory gets it as ``mesh``.
    partition
        For each of ``shapes``, the axes over which its dimensions are partitioned, such as ``data,- -,model``; after ``->`` the
        same for the results.
    search_path
        Folders from which modules are imported before the current folder and the usual ones.
    name
        Name for messages and files; by default it is made of the function's name and the texts in parentheses.

    Raises
    ------
    UsageError
        One of these:

        - a reference, shape, mesh or partition has another form
        - the partition does not match the shapes, or there is no mesh for it
        - arguments are given in several ways
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
    """A function that was lowered before it is sent. It takes and returns the leaves of the original function's trees."""

    program: bytes
    """StableHLO and types, as ``jax.export`` serializes them."""

    def __call__(self, *leaves: Any) -> Any:
        """Call the function with the leaves of its arguments; returns the leaves of its results."""
        from jax import export

        return export.deserialize(bytearray(self.program)).call(*leaves)


def of_function(
    function: Callable[..., Any], *arguments: Any, donated: Sequence[int] = (), out_shardings: Any = None, name: str = ""
) -> Workload:
    """Returns a workload of a function of this process, which may be a closure.

    The function is traced and lowered in this process, and the lowered program is sent. A pickled copy of the function would
    lack everything that the script has registered with jax, such as derivative rules, pytrees and the configuration. If jax
    cannot export the function, for example because it has callbacks, it is pickled nevertheless.

    The workload is compiled for the mesh of its arguments' shardings. If they have none, it is compiled for a mesh in the
    function or in its context, and if there is none either, for one device.

    Parameters
    ----------
    function
        A function for ``jax.jit``, not jitted yet.
    arguments
        Trees of arrays or of ``jax.ShapeDtypeStruct``; only shapes, types and shardings matter, not the devices of their mesh.
    donated
        Positions of donated arguments.
    out_shardings
        As in ``jax.jit``; if None, the compiler chooses.
    name
        Name for messages and files; by default that of the function.

    Raises
    ------
    MissingDependencyError
        Jax, libtpu or cloudpickle is not installed.
    UsageError
        The function cannot be sent to another process, an argument is no array, or shardings use several meshes.
    """
    versions()
    require("sending a function to the compiling process", ("cloudpickle",), "xla")
    import jax

    shapes, mesh = shapes_of(arguments)
    name = name or re.sub(r"\W+", "_", getattr(function, "__name__", "function")).strip("_") or "function"
    pickled, meshes_found, failure = b"", list[MeshAxes](), None
    try:
        pickled, meshes_found = dumps((function, shapes, out_shardings))
    except Exception as error:
        failure = error
    with contextlib.suppress(Exception):
        lowered, donated = _lower(function, arguments, donated, out_shardings)
        pickled, mesh_of_context = dumps((lowered, shapes_of(tuple(jax.tree.leaves(arguments)))[0], None))
        meshes_found = meshes_found or mesh_of_context
    if not pickled:
        text = f"{type(failure).__name__}: {failure}"
        raise UsageError(f"the function cannot be sent to the compiling process: {text}") from failure
    return Workload(
        name=name,
        donated=tuple(donated),
        pickled=base64.b64encode(pickled).decode(),
        mesh=mesh or one_mesh(meshes_found),
        search_path=tuple(path or os.getcwd() for path in sys.path),
    )


def _lower(
    function: Callable[..., Any], arguments: Any, donated: Sequence[int], out_shardings: Any
) -> tuple[LoweredFunction, list[int]]:
    """Lowers a function; returns the program, and the indices of its donated leaves."""
    import jax
    from jax import export
    from jax._src import config

    leaves, tree = jax.tree.flatten(arguments)
    places = [place for place, argument in enumerate(arguments) for _ in jax.tree.leaves(argument)]
    call = jax.jit(lambda *leaves: function(*jax.tree.unflatten(tree, leaves)), out_shardings=out_shardings)
    # The child process has the same version of jax, so that the format need not be compatible with older ones.
    with config.export_ignore_forward_compatibility(True):
        program = export.export(jax.jit(lambda *leaves: jax.tree.leaves(call(*leaves))), platforms=["tpu"])(*leaves)
    return LoweredFunction(bytes(program.serialize())), [leaf for leaf, place in enumerate(places) if place in donated]


def shapes_of(arguments: Any) -> tuple[Any, MeshAxes | None]:
    """Returns the tree with an :class:`ArrayShape` in place of each array, and the mesh of the shardings, None without a mesh.

    Raises
    ------
    UsageError
        A leaf is no array, a sharding cannot be sent, or there are several meshes.
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
    """Reads the shape of an array in HLO's short form, such as ``bf16[8,128]``.

    Raises
    ------
    UsageError
        The text has another form, or the type is unknown.
    """
    match = _SHAPE.fullmatch(text.replace(" ", ""))
    if match is None:
        raise UsageError(f"found shape {text!r}, expected a type and dimensions, for example f32[32,128]")
    if match["type"] not in TYPES:
        raise UsageError(f"found shape {text!r} of an unknown type, expected one of {', '.join(TYPES)}")
    return ArrayShape(TYPES[match["type"]], tuple(int(size) for size in match["dims"].split(",") if size))
