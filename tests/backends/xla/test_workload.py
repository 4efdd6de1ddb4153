"""What is to be compiled, as it is written down and as it is sent."""

from __future__ import annotations

import base64
import os
import pickle
import sys

import pytest

from stowplan.backends.xla.workload import ArrayShape, LoweredFunction, by_name, of_function, read_shape
from stowplan.errors import MissingDependencyError, UsageError


@pytest.mark.parametrize(
    ("text", "dtype", "dims"),
    [
        ("f32[32,128]", "float32", (32, 128)),
        (" bf16[8, 128] ", "bfloat16", (8, 128)),
        ("s32[]", "int32", ()),
        ("pred[7]", "bool", (7,)),
        ("i64[0]", "int64", (0,)),
    ],
)
def test_shapes(text: str, dtype: str, dims: tuple[int, ...]) -> None:
    assert read_shape(text) == ArrayShape(dtype, dims)


@pytest.mark.parametrize("text", ["", "f32", "f32[", "f32[-1]", "f32[2,]", "f32[a]", "[2]", "f32[2]{1,0}"])
def test_what_is_no_shape(text: str) -> None:
    with pytest.raises(UsageError, match="expected a type and dimensions, for example"):
        read_shape(text)


def test_an_unknown_type() -> None:
    with pytest.raises(UsageError, match=r"'float32\[2\]' of an unknown type, expected one of pred, s4"):
        read_shape("float32[2]")


def test_by_name() -> None:
    workload = by_name("pack.mod:step", ["f32[2]", "s32[]"], donated=[1], search_path=["here"])
    assert (workload.name, workload.reference, workload.donated) == ("step", "pack.mod:step", (1,))
    assert workload.shapes == (ArrayShape("float32", (2,)), ArrayShape("int32", ()))
    assert workload.search_path == (os.path.abspath("here"), os.getcwd())
    made = by_name("m:make(resnet/50, b=2)")
    assert (made.name, made.reference, made.factory_arguments) == ("make_resnet_50_b_2", "m:make", ("resnet/50", "b=2"))
    assert (workload.factory_arguments, by_name("m:make()").factory_arguments) == (None, ())


@pytest.mark.parametrize("reference", ["step", "a:b:c", "a/b:c", ":f", "m:", "m:f(", "m:f()()", "f()"])
def test_what_is_no_reference(reference: str) -> None:
    with pytest.raises(UsageError, match="expected MODULE:NAME"):
        by_name(reference)


def test_arguments_are_said_once() -> None:
    with pytest.raises(UsageError, match="expected one way to say the arguments"):
        by_name("m:f", ["f32[]"], arguments="m:g")
    with pytest.raises(UsageError, match="expected one way to say the arguments"):
        by_name("m:f()", ["f32[]"])


def test_a_function_at_hand() -> None:
    for name in ("jax", "libtpu"):
        pytest.importorskip(name, reason=f"needs {name}: pip install '.[xla]'")
    import numpy as np

    factor = 3

    def scaled(tree: dict[str, np.ndarray], offset: np.ndarray) -> np.ndarray:
        return tree["x"] * factor + offset

    workload = of_function(scaled, {"x": np.zeros((2, 3), np.float32)}, np.int32(1), donated=(0,))
    assert (workload.name, workload.donated) == ("scaled", (0,))
    function, shapes, out_shardings = pickle.loads(base64.b64decode(workload.pickled))
    assert out_shardings is None
    assert isinstance(function, LoweredFunction)
    assert shapes == (ArrayShape("float32", (2, 3)), ArrayShape("int32", ()))
    assert of_function(lambda x: x, np.zeros(2)).name == "lambda"
    # Leaves are donated with the argument that they are in.
    two = {"x": np.zeros((2, 3), np.float32), "y": np.zeros(2)}
    assert of_function(scaled, np.int32(1), two, donated=(1,), name="never traced").donated == (1,)
    assert of_function(lambda one, two: (one, two), np.int32(1), two, donated=(1,)).donated == (1, 2)


def test_a_function_that_jax_does_not_export_is_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("jax", "libtpu"):
        pytest.importorskip(name, reason=f"needs {name}: pip install '.[xla]'")
    import jax
    import numpy as np

    def printing(x: np.ndarray) -> np.ndarray:
        jax.debug.callback(lambda x: None, x)
        return x * factor

    factor = 3
    function, shapes, _ = pickle.loads(base64.b64decode(of_function(printing, np.zeros(2)).pickled))
    assert not isinstance(function, LoweredFunction)
    assert shapes == (ArrayShape("float64", (2,)),)


def test_without_what_sends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stowplan.backends.xla.workload.versions", dict)
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(MissingDependencyError, match=r"needs cloudpickle, not installed here: pip install '\.\[xla\]'"):
        of_function(len)


def test_a_function_that_cannot_be_sent() -> None:
    for name in ("jax", "libtpu"):
        pytest.importorskip(name, reason=f"needs {name}: pip install '.[xla]'")
    import threading

    import numpy as np

    lock = threading.Lock()
    with pytest.raises(UsageError, match="cannot be sent to the compiling process: TypeError: cannot pickle"):
        of_function(lambda x: (lock, x.no_such_name)[1], np.zeros(2))
    # Traced here, it need not be pickled.
    assert of_function(lambda x: (lock, x)[1], np.zeros(2)).pickled
    with pytest.raises(UsageError, match="found an argument of type int, expected arrays"):
        of_function(lambda x: x, 3)
