"""Programs over several devices: meshes and partitions as text, as they are sent to another process, and as they arrive there.

A mesh is sent as the names and sizes of its axes. Wherever one stood, in the sharding of an argument or in what a function
closes over, the compiling process puts the same mesh of devices of its own topology.
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

#: Axes of the mesh that each dimension of an array is partitioned over; dimensions beyond are not partitioned.
Partition = tuple[tuple[str, ...], ...]

_AXIS = re.compile(r"([^\W\d]\w*)=([1-9]\d{0,8})")
_PARTITION = re.compile(r"(-|\w+(\+\w+)*)(,(-|\w+(\+\w+)*))*")


class MeshAxes(msgspec.Struct, frozen=True):
    """Names and sizes of a mesh's axes, and their types: ``Auto`` or ``Explicit``, as in ``jax.sharding.AxisType``."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    types: tuple[str, ...]

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in zip(self.names, self.sizes, strict=True))


def read_mesh(text: str) -> MeshAxes:
    """A mesh from its short form, ``data=2,model=2``; the compiler chooses what is not said of its axes (``Auto``).

    Raises
    ------
    UsageError
        Text of another form, or an axis twice.
    """
    axes = [_AXIS.fullmatch(part.strip()) for part in text.split(",")]
    names = tuple(axis[1] for axis in axes if axis)
    if None in axes or len({*names}) < len(names):
        raise UsageError(f"found mesh {text!r}, expected names and sizes of axes, for example data=2,model=2")
    return MeshAxes(names, tuple(int(axis[2]) for axis in axes if axis), ("Auto",) * len(names))


def read_partitions(text: str) -> tuple[list[Partition], list[Partition]]:
    """Partitions of arguments, and after an arrow of results, from their short form: ``data,- -,model+data -> data``.

    Arrays are parted by spaces and their dimensions by commas; ``+`` joins several axes of one dimension, ``-`` is none.

    Raises
    ------
    UsageError
        Text of another form.
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
    """Axes of a ``jax.sharding.Mesh`` or ``AbstractMesh``."""
    return MeshAxes(
        tuple(mesh.axis_names), tuple(map(int, mesh.shape.values())), tuple(axis_type.name for axis_type in mesh.axis_types)
    )


def partition_of(array: Any) -> tuple[Partition | None, MeshAxes | None]:
    """How an array is partitioned, and over which mesh; None where its sharding does not say, as that of one device does not.

    Raises
    ------
    UsageError
        It is spread over several devices in another way, by the compiler's choice, or in another memory than the devices'.
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
    """The mesh that all are; None without any. Raises UsageError where they differ."""
    different = sorted({*map(str, meshes)})
    if len(different) > 1:
        raise UsageError(f"found meshes {' and '.join(different)}, expected one")
    return meshes[0] if meshes else None


def build_mesh(axes: MeshAxes, devices: Sequence[Any]) -> Any:
    """A mesh of devices, the first ones where there are more.

    Raises
    ------
    UsageError
        No whole part of the devices is as many.
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
        # jax knows no order that suits the links, or the devices are cores of one chip.
        return jax.sharding.Mesh(np.reshape(devices[:count], axes.sizes), axes.names, types)


def dumps(value: Any) -> tuple[bytes, list[MeshAxes]]:
    """A pickle of a value that may hold functions, with the axes of its meshes in their place; and those axes.

    Where it has none, they are those of the mesh around (``jax.set_mesh``), if there is one.
    """
    import cloudpickle
    import jax

    met: list[MeshAxes] = []

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def persistent_id(self, item: Any) -> tuple[MeshAxes, bool] | None:
            if not isinstance(item, jax.sharding.Mesh | jax.sharding.AbstractMesh) or item.empty:
                return None
            met.append(axes_of(item))
            return met[-1], isinstance(item, jax.sharding.AbstractMesh)

    file, around = io.BytesIO(), jax.sharding.get_abstract_mesh()
    Pickler(file).dump(value)
    return file.getvalue(), met or ([axes_of(around)] if around.size else [])


def loads(data: bytes, devices: Sequence[Any]) -> Any:
    """What :func:`dumps` pickled, with its meshes built of these devices."""

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, saved: tuple[MeshAxes, bool]) -> Any:
            mesh = build_mesh(saved[0], devices)
            return mesh.abstract_mesh if saved[1] else mesh

    return Unpickler(io.BytesIO(data)).load()
