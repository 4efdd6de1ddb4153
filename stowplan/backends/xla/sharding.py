"""Programs over several devices: reads meshes and partitions from text, sends them to another process, and rebuilds them there.

A *mesh* is jax's array of devices with named axes. A *partition* says over which axes each dimension of an array is divided. A
mesh is sent as the names and sizes of its axes. A mesh may occur in the sharding of an argument or in the closure of a
function. The compiling process builds the same mesh from the devices of its own *topology*, the arrangement of chips for which
it compiles.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from stowplan.errors import UsageError

#: For each dimension of an array, the axes of the mesh over which it is partitioned; further dimensions are not partitioned.
Partition = tuple[tuple[str, ...], ...]

#: An axis of a mesh, such as ``data=2``; and the partition of one array, such as ``-,model+data``.
_AXIS = re.compile(r"([^\W\d]\w*)=([1-9]\d{0,8})")
_PARTITION = re.compile(r"(-|\w+(\+\w+)*)(,(-|\w+(\+\w+)*))*")


class MeshAxes(msgspec.Struct, frozen=True):
    """The axes of a mesh; all fields have the same length."""

    names: tuple[str, ...]
    """Names of the axes."""
    sizes: tuple[int, ...]
    """How many devices lie along each axis."""
    types: tuple[str, ...]
    """Names of ``jax.sharding.AxisType``, such as ``Auto`` or ``Explicit``."""

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in zip(self.names, self.sizes, strict=True))


def read_mesh(text: str) -> MeshAxes:
    """Reads a mesh from text such as ``data=2,model=2``; all axes have the type ``Auto``.

    Raises
    ------
    UsageError
        The text has another form, or an axis occurs twice.
    """
    axes = [_AXIS.fullmatch(part.strip()) for part in text.split(",")]
    names = tuple(axis[1] for axis in axes if axis)
    if None in axes or len({*names}) < len(names):
        raise UsageError(f"found mesh {text!r}, expected names and sizes of axes, for example data=2,model=2")
    return MeshAxes(names, tuple(int(axis[2]) for axis in axes if axis), ("Auto",) * len(names))


def read_partitions(text: str) -> tuple[list[Partition], list[Partition]]:
    """Reads partitions of arguments and, after an arrow, of results, from text such as ``data,- -,model+data -> data``.

    Spaces separate arrays, and commas separate their dimensions; ``+`` joins several axes of one dimension, and ``-`` stands
    for no axis.

    Raises
    ------
    UsageError
        The text has another form.
    """
    halves: list[list[Partition]] = []
    for half in text.partition("->")[::2]:
        halves.append([])
        for array in half.split():
            if not _PARTITION.fullmatch(array):
                raise UsageError(f"found partition {array!r}, expected axes or - for each dimension, for example data,-,model")
            axes = [] if array == "-" else array.split(",")
            halves[-1].append(tuple(tuple(re.findall(r"\w+", axis)) for axis in axes))
    return halves[0], halves[1]


def axes_of(mesh: Any) -> MeshAxes:
    """Returns the axes of a ``jax.sharding.Mesh`` or ``AbstractMesh``."""
    return MeshAxes(
        tuple(mesh.axis_names), tuple(map(int, mesh.shape.values())), tuple(axis_type.name for axis_type in mesh.axis_types)
    )


def partition_of(array: Any) -> tuple[Partition | None, MeshAxes | None]:
    """Returns the partition of an array and its mesh; both are None if the array has no sharding or is on a single device.

    Raises
    ------
    UsageError
        The sharding is no ``NamedSharding``, leaves a dimension to the compiler, or is in the memory of the host.
    """
    import jax

    sharding = getattr(array, "sharding", None)
    if sharding is None or isinstance(sharding, jax.sharding.SingleDeviceSharding):
        return None, None
    if not isinstance(sharding, jax.sharding.NamedSharding) or sharding.memory_kind == "pinned_host":
        raise UsageError(f"found an argument with {sharding}, expected a NamedSharding in the memory of the devices")
    if jax.sharding.PartitionSpec.UNCONSTRAINED in sharding.spec:
        raise UsageError(f"found an argument with {sharding.spec}, expected axes, or None, for each dimension")
    spec = (() if axes is None else (axes,) if isinstance(axes, str) else tuple(axes) for axes in sharding.spec)
    return tuple(spec), axes_of(sharding.mesh)


def one_mesh(meshes: Sequence[MeshAxes]) -> MeshAxes | None:
    """Returns the mesh if all meshes are the same, and None if there are none; raises UsageError if some differ."""
    different = sorted({*map(str, meshes)})
    if len(different) > 1:
        raise UsageError(f"found meshes {' and '.join(different)}, expected one")
    return meshes[0] if meshes else None


def build_mesh(axes: MeshAxes, devices: Sequence[Any]) -> Any:
    """Builds a mesh of the first devices.

    Raises
    ------
    UsageError
        The number of devices of the mesh does not divide that of the topology.
    """
    import jax
    import numpy as np

    count = math.prod(axes.sizes)
    if count > len(devices) or len(devices) % count:
        raise UsageError(f"found mesh {axes} of {count} devices, expected a number that divides the topology's {len(devices)}")
    types = tuple(jax.sharding.AxisType[name] for name in axes.types)
    try:
        return jax.make_mesh(axes.sizes, axes.names, types, devices=devices[:count])
    except (AssertionError, NotImplementedError):
        # Jax finds no order of the devices that suits the links between them, or the devices are cores of one chip.
        return jax.sharding.Mesh(np.reshape(devices[:count], axes.sizes), axes.names, types)


def dumps(value: Any) -> tuple[bytes, list[MeshAxes]]:
    """Pickles a value that may contain functions; returns the pickle and the axes of the meshes in it.

    Each mesh is replaced by its axes. If the value has no mesh, the axes of the context's mesh (``jax.set_mesh``) are returned;
    the list is empty if there is none either. Errors of pickling are raised, of whatever type they are.
    """
    import cloudpickle
    import jax

    meshes: list[MeshAxes] = []

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def persistent_id(self, item: Any) -> tuple[MeshAxes, bool] | None:
            if not isinstance(item, jax.sharding.Mesh | jax.sharding.AbstractMesh) or item.empty:
                return None
            meshes.append(axes_of(item))
            return meshes[-1], isinstance(item, jax.sharding.AbstractMesh)

    file, context_mesh = io.BytesIO(), jax.sharding.get_abstract_mesh()
    Pickler(file).dump(value)
    return file.getvalue(), meshes or ([axes_of(context_mesh)] if context_mesh.size else [])


def loads(data: bytes, devices: Sequence[Any]) -> Any:
    """Restores a value that :func:`dumps` has pickled; its meshes are built from these devices.

    Raises UsageError as :func:`build_mesh` does; errors of unpickling are raised as well.
    """

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, saved: tuple[MeshAxes, bool]) -> Any:
            mesh = build_mesh(saved[0], devices)
            return mesh.abstract_mesh if saved[1] else mesh

    return Unpickler(io.BytesIO(data)).load()
