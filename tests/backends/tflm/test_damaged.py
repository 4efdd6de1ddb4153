"""Models that are damaged, and models in which little is there: one line or a plan, and never another error."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from stowplan.backends.tflm.planning import plan_model
from stowplan.backends.tflm.write import write_plan
from stowplan.cli import main
from stowplan.errors import InputError, UsageError
from stowplan.frontends.tflite.flatbuffer import FlatBuffer
from stowplan.frontends.tflite.model import read_tflite
from stowplan.kernel.context import Options
from stowplan.models.packing.plan import Plan
from tests.backends.tflm.models import ADD, NEG, Graph, Step, branch, drawn_copies, loop, real, save, state
from tests.backends.tflm.test_overlap import depthwise
from tests.frontends.tflite.test_result_shapes import CASES, saved
from tests.frontends.tflite.tflite_models import Number

pytestmark = pytest.mark.filterwarnings("ignore::stowplan.log.UnmodelledWarning")


def models(folder: Path) -> list[bytes]:
    """Files with subgraphs, variables, options, stored values, stale shapes, and a plan."""
    files = [make(folder / "model.tflite").read_bytes() for make in (branch, loop, state, depthwise)]
    files += [saved(folder / "model.tflite", case).read_bytes() for case in CASES.values()]
    files.append(drawn_copies(folder / "model.tflite", random.Random(1)).read_bytes())
    return [*files, plan_model(folder / "model.tflite", options=Options(time_limit=0.2)).data]


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Cut off, or with bytes, bits or words changed."""
    if chance.random() < 0.15:
        return data[: chance.randrange(len(data))]
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 3])):
        at = chance.randrange(len(data))
        kind = chance.randrange(3)
        if kind == 0:
            changed[at] = chance.randrange(256)
        elif kind == 1:
            changed[at] ^= 1 << chance.randrange(8)
        else:
            word = chance.choice([0, 1, 2, 3, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, len(data), len(data) - 2])
            struct.pack_into("<I", changed, at // 4 * 4, word)
    return bytes(changed)


@pytest.mark.parametrize("count", [80, pytest.param(4000, marks=pytest.mark.slow)])
def test_damaged_models_are_planned_or_refused_in_one_line(count: int, tmp_path: Path) -> None:
    chance, path = random.Random(count), tmp_path / "damaged.tflite"
    refused = list[str]()
    sound = models(tmp_path)
    for _ in range(count):
        path.write_bytes(damaged(chance.choice(sound), chance))
        kernels = chance.choice(["none", "reference", "cmsis-nn"])
        try:
            plan_model(path, kernels=kernels, replace_offline_plan=chance.random() < 0.5, options=Options(time_limit=0.1))
        except (InputError, UsageError) as told:
            refused.append(str(told))
    assert all("\n" not in told and str(path) in told for told in refused)
    assert len(refused) > count / 4


@pytest.mark.parametrize("field", [1, 2, 4])
def test_every_reference_of_the_root_beyond_the_end_is_one_line(
    field: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = depthwise(tmp_path / "broken.tflite")
    data = bytearray(path.read_bytes())
    file = FlatBuffer(bytes(data))
    at = file.field(file.follow(0), field)
    assert at is not None
    for place in (len(data), 0x7FFFFFFF, len(data) - at - 2):
        struct.pack_into("<I", data, at, place)
        path.write_bytes(data)
        with pytest.raises(SystemExit) as ended:
            main(["tflm", str(path), "--no-run", "-o", str(tmp_path / "planned.tflite")])
        assert ended.value.code == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") <= 1
        assert "broken.tflite: not a whole TensorFlow Lite model: found a reference to" in said.err
        assert not (tmp_path / "planned.tflite").exists()


def test_a_field_that_is_only_copied_beyond_the_end(tmp_path: Path) -> None:
    """The description is not read, but referred to when a plan is written."""
    path = depthwise(tmp_path / "described.tflite")
    data = bytearray(path.read_bytes())
    file = FlatBuffer(bytes(data))
    root = file.follow(0)
    struct.pack_into("<H", data, root - file.scalar(root, "i") + 4 + 2 * 3, 0xFFF0)
    path.write_bytes(data)
    read_tflite(path)
    with pytest.raises(InputError, match=r"described\.tflite: not a whole TensorFlow Lite model: found a reference to 4 bytes"):
        plan_model(path)


def test_a_name_of_metadata_beyond_the_end(tmp_path: Path) -> None:
    path = depthwise(tmp_path / "whole.tflite")
    model = read_tflite(path)
    plan = Plan(problem=model.problem.digest, objective=0, offsets=(0,) * len(model.problem.buffers))
    planned = plan_model(path, options=Options(time_limit=0.2))
    data = bytearray(planned.data)
    file = FlatBuffer(planned.data)
    (entry,) = file.tables(file.follow(0), 6)
    at = file.field(entry, 0)
    assert at is not None
    struct.pack_into("<I", data, at, len(data))
    path.write_bytes(data)
    for call in (lambda: plan_model(path), lambda: write_plan(path, plan, tmp_path / "new.tflite")):
        with pytest.raises(InputError, match=r"whole\.tflite: not a whole TensorFlow Lite model"):
            call()


@pytest.mark.parametrize("kernels", ["none", "reference", "cmsis-nn"])
def test_a_main_subgraph_without_operators(kernels: str, tmp_path: Path) -> None:
    other = Graph([real(64), real(64)], [0], [1], [Step(NEG, [0], [1])])
    path = save(tmp_path / "none.tflite", Graph([real(16), real(32)], [0, 1], [1, 0], []), other)
    summary = plan_model(path, kernels=kernels).summary
    # The runtime has room for tensors of a subgraph that never runs, but not at one time.
    assert (summary.head, summary.bound) == (256, 256)
    path = save(tmp_path / "empty.tflite", Graph([real(16)], [0], [0], []))
    assert plan_model(path, kernels=kernels).summary.head == 64


def test_a_stored_tensor_that_is_written_after_it_was_read(tmp_path: Path) -> None:
    stored = {**real(64), 2: Number(1)}
    steps = [Step(ADD, [0, 1], [2]), Step(NEG, [0], [1])]
    path = save(tmp_path / "stored.tflite", Graph([real(64), stored, real(64)], [0], [2], steps), buffers=(bytes(256),))
    with pytest.raises(InputError, match=r"tensors\[1\]: found nothing that writes what operator 0 reads"):
        plan_model(path)
