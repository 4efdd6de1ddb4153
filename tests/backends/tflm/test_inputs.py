"""Inputs for the check by the runtime: numbers that are drawn are valid for what reads them, and users give their own."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stowplan.backends.fallback import UnsupportedError
from stowplan.backends.tflm.inputs import draw_inputs, read_inputs
from stowplan.errors import InputError
from stowplan.frontends.tflite.model import TfliteModel, read_tflite
from tests.backends.tflm.models import CAST, IF, NEG, WHILE, Graph, Step, number, real, save
from tests.frontends.tflite.tflite_models import tensor

#: Operators with an input that says where or how far to read, shapes of their operands and of the result, and which operand
#: that is; options with an axis.
READERS: dict[str, tuple[int, list[list[int]], list[int], int, dict[int, Any]]] = {
    "EMBEDDING_LOOKUP": (7, [[5], [3, 4]], [5, 4], 0, {}),
    "GATHER": (36, [[7, 3], [6]], [7, 6], 1, {0: number(1)}),
    "GATHER from behind": (36, [[7, 3], [6]], [7, 6], 1, {0: number(-1)}),
    "GATHER_ND": (107, [[2, 9, 4], [6, 2]], [6, 4], 1, {}),
    "SLICE begin": (65, [[4, 8], [2], [2]], [2, 5], 1, {}),
    "SLICE size": (65, [[4, 8], [2], [2]], [2, 5], 2, {}),
    "MIRROR_PAD": (100, [[4, 8], [2, 2]], [5, 12], 1, {}),
    "REVERSE_V2": (105, [[4, 8, 2], [2]], [4, 8, 2], 1, {}),
    "CUMSUM": (128, [[4, 8], [1]], [4, 8], 1, {}),
    "ARG_MAX": (56, [[4, 8, 2], [1]], [4, 2], 1, {}),
    "ARG_MIN": (79, [[4, 8, 2], []], [4, 8], 1, {}),
    "SUM": (74, [[4, 8, 2], [2]], [1, 8, 1], 1, {}),
    "MEAN": (40, [[4, 8, 2], [2]], [2], 1, {}),
    "FLOOR_DIV": (90, [[6], [6]], [6], 1, {}),
}


def is_valid(name: str, shapes: list[list[int]], result: list[int], values: np.ndarray[Any, Any]) -> bool:
    """Whether a kernel stays within its tensors, by the operator's definition."""
    shape = shapes[0]
    match name.split()[0]:
        case "EMBEDDING_LOOKUP":
            return bool(((values >= 0) & (values < shapes[1][0])).all())
        case "GATHER":
            return bool(((values >= 0) & (values < shape[1])).all())
        case "GATHER_ND":
            return bool(((values >= 0) & (values < np.array(shape[:2]))).all())
        case "SLICE":
            return [*values] == result if "size" in name else bool(((values >= 0) & (values + result <= shape)).all())
        case "MIRROR_PAD":
            padded = np.pad(np.zeros(shape), values.reshape(-1, 2).tolist(), "reflect")
            return padded.shape == tuple(result)
        case "REVERSE_V2":
            return len({*values}) == len(values) and all(0 <= axis < len(shape) for axis in values)
        case "CUMSUM":
            return 0 <= values[0] < len(shape)
        case "ARG_MAX" | "ARG_MIN":
            return np.zeros(shape).argmax(int(values.reshape(-1)[0])).shape == tuple(result)
        case "SUM" | "MEAN":
            return any(
                np.zeros(shape).sum((*map(int, values),), keepdims=keep).shape == tuple(result) for keep in (True, False)
            )
        case _:
            return bool((values != 0).all())


def reader(path: Path, name: str, way: str) -> TfliteModel:
    """A model with one of the operators, whose input comes directly, or in another way."""
    code, shapes, result, operand, options = READERS[name]
    tensors = [tensor(shape, 2 if at == operand or code == 90 else 0) for at, shape in enumerate(shapes)]
    step = Step(code, [*range(len(shapes))], [len(shapes)], options)
    inputs = [*range(len(shapes))]
    count = int(np.prod(shapes[operand]))
    kind, steps = 2, [step]
    tensors.append(tensor(result, 2 if code in (56, 79, 90) else 0))
    if way in ("a view", "a cast", "both"):
        # A tensor of another shape or type is the input, and what the operator reads is made from it.
        kind = 2 if way == "a view" else 0
        shape = shapes[operand] if way == "a cast" else [count, 1]
        tensors += [tensor(shape, kind), tensor(shapes[operand], kind)]
        first, second = len(tensors) - 2, len(tensors) - 1
        inputs[operand] = first
        steps = [Step(22, [first], [second]), Step(CAST, [second], [operand]), step]
        if way == "a view":
            steps[1:2] = [Step(22, [second], [operand])]
    graphs = [Graph(tensors, inputs, [len(shapes)], steps)]
    if way == "a subgraph":
        main = [*tensors, tensor([], 6)]
        chosen = Step(IF, [len(tensors), *inputs], [len(shapes)], {0: number(1), 1: number(1)})
        graphs.insert(0, Graph(main, [*inputs, len(tensors)], [len(shapes)], [chosen]))
    return read_tflite(save(path, *graphs))


@pytest.mark.parametrize("way", ["directly", "a view", "a cast", "both", "a subgraph"])
@pytest.mark.parametrize("name", READERS)
def test_what_is_drawn_is_valid(name: str, way: str, tmp_path: Path) -> None:
    _, shapes, result, operand, _ = READERS[name]
    model = reader(tmp_path / "reader.tflite", name, way)
    values = draw_inputs(model, 3, 4, [], {})
    assert len(values) == 3 * 4 * len(model.subgraphs[0].inputs)
    seen = set()
    for seed, at in itertools.product(range(3), range(4)):
        array = values[f"{seed}.{at}.{operand}"]
        assert is_valid(name, shapes, result, array.reshape(shapes[operand]).astype(np.int32)), array
        seen.add(array.tobytes())
    # They are drawn all the same, where there is a choice.
    assert len(seen) > 1 or name.split()[0] in (
        "MIRROR_PAD",
        "REVERSE_V2",
        "CUMSUM",
        "ARG_MAX",
        "ARG_MIN",
        "SUM",
        "MEAN",
        "SLICE",
    )


def test_an_input_of_two_readers_is_valid_for_both(tmp_path: Path) -> None:
    tensors = [tensor([50], 2), real(9, 4), real(3, 4), real(50, 4), real(50, 4)]
    steps = [Step(36, [1, 0], [3], {0: number(0)}), Step(7, [0, 2], [4])]
    model = read_tflite(save(tmp_path / "two.tflite", Graph(tensors, [0, 1, 2], [3, 4], steps)))
    indices = draw_inputs(model, 1, 1, [], {})["0.0.0"]
    assert {*indices.tolist()} == {0, 1, 2}


def test_a_loop_hands_indices_to_its_body(tmp_path: Path) -> None:
    main = Graph(
        [tensor([4], 2), real(9), tensor([4], 2), real(9)],
        [0, 1],
        [3],
        [Step(WHILE, [0, 1], [2, 3], {0: number(1), 1: number(2)})],
    )
    condition = Graph([tensor([4], 2), real(9), tensor([1], 6)], [0, 1], [2], [Step(58, [1, 1], [2])])
    body = Graph(
        [tensor([4], 2), real(9), real(4), real(9)],
        [0, 1],
        [0, 3],
        [Step(36, [1, 0], [2], {0: number(0)}), Step(NEG, [1], [3])],
    )
    indices = draw_inputs(read_tflite(save(tmp_path / "loop.tflite", main, condition, body)), 1, 8, [], {})
    assert all(indices[f"0.{at}.0"].min() >= 0 and indices[f"0.{at}.0"].max() < 9 for at in range(8))


@pytest.mark.parametrize("code", [7, 22, 36, 65, 74, 90, 100, 105, 107, 128])
def test_operators_of_odd_shapes_are_left_alone(code: int, tmp_path: Path) -> None:
    for shapes in ([[], []], [[1] * 40, [20], [2]], [[3], [2, 2], [2]], [[0], [0]], []):
        tensors = [tensor(shape, 2) for shape in [*shapes, [2, 3]]]
        every = [*range(len(shapes))]
        path = save(tmp_path / "odd.tflite", Graph(tensors, every, [len(every)], [Step(code, every, [len(every)], {})]))
        try:
            model = read_tflite(path)
        except InputError:
            continue  # the runtime does not take these shapes
        assert len(draw_inputs(model, 1, 1, [], {})) == len(every)


def test_numbers_of_all_types_are_drawn(tmp_path: Path) -> None:
    kinds = [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 12, 15, 16]
    tensors = [tensor([64], kind) for kind in kinds]
    model = read_tflite(save(tmp_path / "types.tflite", Graph(tensors, [*range(len(kinds))], [], [])))
    values = draw_inputs(model, 2, 1, [], {})
    names = [
        "float32",
        "float16",
        "int32",
        "uint8",
        "int64",
        "bool",
        "int16",
        "complex64",
        "int8",
        "float64",
        "uint64",
        "uint32",
        "uint16",
    ]
    assert [values[f"0.0.{at}"].dtype.name for at in range(len(kinds))] == names
    assert all((values[f"0.0.{at}"] != values[f"1.0.{at}"]).any() for at in range(len(kinds)))
    odd = read_tflite(save(tmp_path / "odd.tflite", Graph([tensor([4], 18)], [0], [], [])))
    with pytest.raises(UnsupportedError, match="of type bfloat16, of which no numbers can be drawn"):
        draw_inputs(odd, 1, 1, [], {})


def named(path: Path) -> TfliteModel:
    """Two inputs of the name ``in``, and one of the name ``ids``."""
    tensors = [{**real(4), 3: "in"}, {**real(4), 3: "in"}, {**tensor([2, 3], 2), 3: "ids"}, real(4), real(4)]
    return read_tflite(save(path, Graph(tensors, [0, 1, 2], [4], [Step(0, [0, 1], [3]), Step(NEG, [3], [4])])))


def test_inputs_of_a_user(tmp_path: Path) -> None:
    model, path = named(tmp_path / "named.tflite"), tmp_path / "inputs.npz"
    ids, first = np.arange(12, dtype=np.int32).reshape(2, 2, 3), np.ones(4, np.float32)
    np.savez(path, **{"ids": ids, ":0": first})
    given, inferences = read_inputs(model, path)
    assert inferences == 2
    values = draw_inputs(model, 2, 2, [1], given)
    for seed, at in itertools.product(range(2), range(2)):
        assert (values[f"{seed}.{at}.2"] == ids[at]).all()
        assert (values[f"{seed}.{at}.0"] == first).all()
    # What is not given is drawn, and the same in all inferences where it is kept.
    assert (values["0.0.1"] == values["0.1.1"]).all()
    assert (values["0.0.1"] != values["1.0.1"]).any()
    np.savez(path, ids=ids[0])
    assert read_inputs(model, path)[1] is None


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"idx": np.zeros(4)}, r"found the array idx, expected an input: in, ids$"),
        ({"in": np.zeros(4)}, "found the array in, a name of 2 inputs, expected the array :0 or the array :1, counted from 0"),
        ({":3": np.zeros(4)}, "found the array :3, expected an input: in, ids"),
        (
            {"ids": np.zeros((2, 3))},
            r"ids: found float64 \[2, 3\], expected int32 \[2, 3\], or with the inferences along one more",
        ),
        ({"ids": np.zeros((3, 2), np.int32)}, r"ids: found int32 \[3, 2\], expected int32 \[2, 3\]"),
        ({"ids": np.zeros((0, 2, 3), np.int32)}, r"ids: found int32 \[0, 2, 3\], expected int32 \[2, 3\]"),
        ({"ids": np.zeros((1, 1, 2, 3), np.int32)}, r"ids: found int32 \[1, 1, 2, 3\], expected int32 \[2, 3\]"),
        ({"ids": np.zeros((2, 3), np.int32), ":2": np.zeros((2, 3), np.int32)}, ":2: found a second array of one input"),
        (
            {"ids": np.zeros((2, 2, 3), np.int32), ":0": np.zeros((3, 4), np.float32)},
            "found different numbers of inferences, 2 of ids and 3 of :0, expected one number",
        ),
    ],
)
def test_inputs_that_are_refused(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    model, path = named(tmp_path / "named.tflite"), tmp_path / "inputs.npz"
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=message) as error:
        read_inputs(model, path)
    assert str(path) in str(error.value)


def test_files_that_hold_no_arrays(tmp_path: Path) -> None:
    model, path = named(tmp_path / "named.tflite"), tmp_path / "inputs.npz"
    with pytest.raises(InputError, match=r"inputs\.npz: cannot read"):
        read_inputs(model, path)
    path.write_bytes(b"PK nothing")
    with pytest.raises(InputError, match="found no readable archive of arrays"):
        read_inputs(model, path)
