"""Plans into TensorFlow Lite models: what is written is read again, and the rest of the model stays what it was."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stowplan.backends.tflm import write
from stowplan.cli import main
from stowplan.errors import InputError
from stowplan.frontends.tflite.flatbuffer import FlatBuffer
from stowplan.frontends.tflite.model import AT_RUNTIME, OFFLINE_PLAN, read_tflite
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.verify import verify
from stowplan.portfolio.packing.quick import quick_plan
from tests.frontends.tflite.tflite_models import words
from tests.paths import EXAMPLES

MODEL = EXAMPLES / "branches.tflite"


def a_plan() -> Plan:
    found = quick_plan(read_tflite(MODEL).problem)
    assert found is not None
    return found[1]


def test_offsets_come_back(tmp_path: Path) -> None:
    plan, path = a_plan(), tmp_path / "planned.tflite"
    write.write_plan(MODEL, plan, path)
    data = path.read_bytes()
    assert words(path) == [1, 1, 11, plan.offsets[0], AT_RUNTIME, *plan.offsets[1:]]
    assert set(read_tflite(MODEL).offsets) == {AT_RUNTIME}
    again = read_tflite(path, replace_offline_plan=True)
    assert again.offsets == tuple(words(path)[3:])
    assert again.problem.digest == read_tflite(MODEL).problem.digest
    # What the old file says stands behind the new tables as it was, the other metadata among it.
    assert data.endswith(MODEL.read_bytes())
    old = FlatBuffer(data)
    names = [old.text(each, 0) for each in old.tables(old.follow(0), 6)]
    assert names == ["note", OFFLINE_PLAN]
    assert old.text(old.follow(0), 3) == "branches, for an arena"
    assert old.number(old.follow(0), 0, "I") == 3


def test_a_plan_takes_the_place_of_another(tmp_path: Path) -> None:
    plan, path = a_plan(), tmp_path / "planned.tflite"
    write.write_plan(MODEL, plan, path)
    higher = msgspec.structs.replace(plan, offsets=tuple(at + 64 for at in plan.offsets), objective=plan.objective + 64)
    write.write_plan(path, higher, path)
    data = path.read_bytes()
    found = FlatBuffer(data)
    assert [found.text(each, 0) for each in found.tables(found.follow(0), 6)] == ["note", OFFLINE_PLAN]
    assert words(path)[3:] == write.offsets(read_tflite(MODEL), higher)


def test_a_plan_that_does_not_hold_is_refused(tmp_path: Path) -> None:
    plan = a_plan()
    wrong = msgspec.structs.replace(plan, offsets=(0,) * len(plan.offsets), objective=576)
    with pytest.raises(InputError, match="share bytes"):
        write.write_plan(MODEL, wrong, tmp_path / "no.tflite")
    assert not list(tmp_path.iterdir())


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, out, header = tmp_path / "plan.json", tmp_path / "planned.tflite", tmp_path / "net.h"
    a_plan().save(plan)
    options = ["--target", "arena", "--emit", f"tflite={out}", "--emit", f"c-header={header}"]
    with pytest.raises(SystemExit) as done:
        main(["verify", str(MODEL), str(plan), *options])
    assert done.value.code == 0
    assert words(out)[:3] == [1, 1, 11]
    assert "#define NET_ARENA_BYTES" in header.read_text(encoding="utf-8")
    other = tmp_path / "model.csv"
    other.write_text("id,lower,upper,size\na,0,1,16\n", encoding="utf-8")
    with pytest.raises(SystemExit) as done:
        main(["solve", str(other), "--emit", f"tflite={tmp_path / 'x.tflite'}"])
    assert done.value.code == 2
    assert "expected a TensorFlow Lite model" in capsys.readouterr().err


def test_the_schema_of_another_package_reads_it(tmp_path: Path) -> None:
    """With the tables that are generated of the schema, where they are installed."""
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    path = tmp_path / "planned.tflite"
    write.write_plan(MODEL, a_plan(), path)
    old, new = (schema.ModelT.InitFromPackedBuf(each.read_bytes()) for each in (MODEL, path))
    assert [each.name for each in new.subgraphs[0].tensors] == [each.name for each in old.subgraphs[0].tensors]
    assert [bytes(each.name) for each in new.metadata] == [b"note", OFFLINE_PLAN.encode()]
    assert verify(read_tflite(path, replace_offline_plan=True).problem, a_plan()).ok
