"""Meshes and partitions, as they are written down and as they arrive in another process; no TPU and no libtpu needed."""

from __future__ import annotations

import base64
from types import SimpleNamespace
from typing import Any

import pytest

from stowplan.backends.xla import workload
from stowplan.backends.xla.sharding import MeshAxes, Partition, build_mesh, dumps, loads, one_mesh, read_mesh, read_partitions
from stowplan.backends.xla.workload import ArrayShape, LoweredFunction, by_name, of_function, shapes_of
from stowplan.errors import UsageError

BOTH = MeshAxes(("data", "model"), (2, 2), ("Auto", "Auto"))


def test_a_mesh() -> None:
    assert read_mesh("data=2, model=2") == BOTH
    assert str(BOTH) == "data=2,model=2"


@pytest.mark.parametrize("text", ["", "4", "data", "data=0", "data=2,", "data=2 model=2", "d=2,d=2", "2d=2", "d=-1"])
def test_what_is_no_mesh(text: str) -> None:
    with pytest.raises(UsageError, match="expected names and sizes of axes, for example data=2,model=2"):
        read_mesh(text)


def test_partitions() -> None:
    found: list[Partition] = [(("data",), ()), ((), ("model", "data")), ()]
    assert read_partitions("data,- -,model+data -") == (found, [])
    assert read_partitions(" data -> - data") == ([(("data",),)], [(), (("data",),)])
    assert read_partitions("") == ([], [])


@pytest.mark.parametrize("text", ["data,", ",data", "data;x", "d -> e -> f", "+d", "d-", "--", "d[0]"])
def test_what_is_no_partition(text: str) -> None:
    with pytest.raises(UsageError, match="expected axes or - for each dimension, for example data,-,model"):
        read_partitions(text)


def test_by_name() -> None:
    found = by_name("m:f", ["f32[8,2]", "s32[]"], mesh="data=2,model=2", partition="data,- - -> data")
    assert found.mesh == BOTH
    assert found.shapes == (ArrayShape("float32", (8, 2), (("data",), ())), ArrayShape("int32", (), ()))
    assert found.outputs == ((("data",),),)
    assert by_name("m:f", ["f32[8]"], mesh="d=4").shapes == (ArrayShape("float32", (8,)),)
    with pytest.raises(UsageError, match="found a partition and no mesh"):
        by_name("m:f", ["f32[8]"], partition="d")
    with pytest.raises(UsageError, match="found partitions of 1 arguments, expected one for each of 2 shapes"):
        by_name("m:f", ["f32[8]", "f32[8]"], mesh="d=4", partition="d")


def test_one_mesh() -> None:
    assert one_mesh([]) is None
    assert one_mesh([BOTH, BOTH]) == BOTH
    with pytest.raises(UsageError, match="found meshes data=2,model=2 and x=4, expected one"):
        one_mesh([BOTH, read_mesh("x=4")])


@pytest.fixture
def sharding(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``jax.sharding``, with meshes of two axes."""
    jax = pytest.importorskip("jax", reason="needs jax: pip install '.[xla]'")
    pytest.importorskip("cloudpickle", reason="needs cloudpickle: pip install '.[xla]'")
    monkeypatch.setattr(workload, "versions", dict)
    return jax.sharding


def abstract(sharding: Any, axes: MeshAxes = BOTH) -> Any:
    types = tuple(sharding.AxisType[name] for name in axes.types)
    return sharding.AbstractMesh(axes.sizes, axes.names, axis_types=types)


def struct(sharding: Any, *spec: Any, **options: Any) -> Any:
    import jax

    placed = sharding.NamedSharding(abstract(sharding), sharding.PartitionSpec(*spec), **options)
    return jax.ShapeDtypeStruct((8, 8), "float32", sharding=placed)


def test_shardings_of_arguments(sharding: Any) -> None:
    import numpy as np

    arguments = {"x": struct(sharding, None, "data"), "y": struct(sharding, ("model", "data")), "z": np.zeros(2, np.float32)}
    shapes, mesh = shapes_of(arguments)
    assert mesh == BOTH
    assert [shapes[name].partition for name in "xyz"] == [((), ("data",)), (("model", "data"),), None]
    # What is sent is read as it is.
    assert shapes_of(shapes) == (shapes, None)


def test_shardings_that_cannot_be_sent(sharding: Any) -> None:
    import jax

    other = sharding.NamedSharding(abstract(sharding, read_mesh("x=4")), sharding.PartitionSpec("x"))
    with pytest.raises(UsageError, match="found meshes data=2,model=2 and x=4, expected one"):
        shapes_of((struct(sharding, "data"), jax.ShapeDtypeStruct((8,), "float32", sharding=other)))
    with pytest.raises(UsageError, match="expected axes, or None, for each dimension"):
        shapes_of(struct(sharding, sharding.PartitionSpec.UNCONSTRAINED))
    odd = SimpleNamespace(shape=(2,), dtype="float32", sharding="by hand")
    with pytest.raises(UsageError, match="found an argument with by hand, expected a NamedSharding"):
        shapes_of(odd)


def test_a_mesh_is_built_of_other_devices(sharding: Any) -> None:
    """Wherever it stands: in a closure, in a sharding, with or without devices of its own."""
    import jax

    (device,) = devices = jax.devices()[:1]
    mesh = jax.make_mesh((1,), ("d",), (sharding.AxisType.Auto,), devices=devices)
    placed = sharding.NamedSharding(mesh, sharding.PartitionSpec("d"))
    data, met = dumps((lambda: placed, mesh.abstract_mesh))
    assert {*met} == {MeshAxes(("d",), (1,), ("Auto",))}
    assert str(device).encode() not in data
    function, bare = loads(data, devices)
    assert function() == placed
    assert bare == mesh.abstract_mesh


def test_a_mesh_that_does_not_fit(sharding: Any) -> None:
    with pytest.raises(UsageError, match="found mesh x=8 of 8 devices, expected a number that divides the topology's 4"):
        build_mesh(read_mesh("x=8"), [None] * 4)
    with pytest.raises(UsageError, match="found mesh x=3 of 3 devices, expected a number that divides the topology's 4"):
        build_mesh(read_mesh("x=3"), [None] * 4)


def test_the_mesh_of_a_function_at_hand(sharding: Any) -> None:
    """That of its arguments, else one that it closes over, else none; the function and what it closes over arrive."""
    import jax
    import numpy as np

    four = read_mesh("x=4")
    closed = sharding.NamedSharding(abstract(sharding, four), sharding.PartitionSpec("x"))
    plain = np.zeros((8, 8), np.float32)
    assert of_function(lambda x: x, struct(sharding, "data")).mesh == BOTH
    assert of_function(lambda x: (closed, x)[1], struct(sharding, "data")).mesh == BOTH
    assert of_function(lambda x: (closed, x)[1], plain).mesh == four
    assert of_function(lambda x: x, plain, out_shardings=closed).mesh == four
    sent = of_function(lambda x: x, plain)
    assert sent.mesh is None
    function, shapes, out_shardings = loads(base64.b64decode(sent.pickled), jax.devices())
    assert (type(function), shapes, out_shardings) == (LoweredFunction, (ArrayShape("float32", (8, 8)),), None)
