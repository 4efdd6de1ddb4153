"""``stowplan tflm``: what it prints and writes, and what it refuses in one line."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from stowplan.backends.tflm import runtime
from stowplan.backends.tflm.runtime import Run
from stowplan.backends.tflm.write import header_text
from stowplan.cli import INTERRUPTED, main
from stowplan.cli import tflm as command
from stowplan.frontends.tflite.model import read_tflite
from tests.backends.tflm.models import NEG, Graph, Step, chain, real, save, wide


def tflm(*arguments: Any) -> int:
    with pytest.raises(SystemExit) as done:
        main(["tflm", *map(str, arguments), "-q"])
    return int(done.value.code or 0)


def test_what_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = wide(tmp_path / "wide.tflite")
    names = [tmp_path / f"planned.{ending}" for ending in ("tflite", "cc", "h", "json")]
    outputs = [each for name in names for each in ("-o", name)]
    assert tflm(path, "--no-run", *outputs, "--png", tmp_path / "arena.svg", "--report", tmp_path / "arena.html") == 0
    said = capsys.readouterr().out
    for part in ("tflm wide: 5 operators", "less than the", "proven: no order and no offsets take less", "nothing was run"):
        assert part in said
    result = json.loads(names[3].read_text(encoding="utf-8"))
    assert (result["format"], result["proven"], result["runtime"]) == ("stowplan.tflm", True, None)
    assert list(read_tflite(names[0], replace_offline_plan=True).offsets) == result["offsets"]
    data = names[0].read_bytes()
    source, header = (name.read_text(encoding="utf-8") for name in names[1:3])
    assert "\nalignas(16) const unsigned char g_planned_model_data[] = {0x" in source
    assert bytes(int(each, 16) for each in source.partition("{")[2].partition("}")[0].split(",")) == data
    assert f"g_planned_model_data_size = {len(data)} }};" in header
    assert f"g_planned_arena_head_size = {result['head']} }};" in header
    if compiler := shutil.which("g++"):
        subprocess.run([compiler, "-std=c++11", "-fsyntax-only", "-I", str(tmp_path), str(names[1])], check=True)
    assert "<svg" in (tmp_path / "arena.svg").read_text(encoding="utf-8")


def test_the_header_is_for_c_and_gives_the_arena_with_or_without_the_runtime(tmp_path: Path) -> None:
    path = wide(tmp_path / "wide.tflite")
    assert tflm(path, "--no-run", "-o", tmp_path / "planned.c", "-o", tmp_path / "planned.h") == 0
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    uses = tmp_path / "uses.c"
    uses.write_text('#include "planned.h"\n_Alignas(16) unsigned char arena[g_planned_arena_size];\n')
    command = [compiler, "-std=c11", "-Wall", "-Werror", "-pedantic", "-fsyntax-only", "-I", str(tmp_path)]
    subprocess.run([*command, str(tmp_path / "planned.c")], check=True)
    # What was not measured is said by whoever knows it.
    assert subprocess.run([*command, str(uses)], capture_output=True, check=False).returncode != 0
    subprocess.run([*command, "-DSTOWPLAN_ARENA_TAIL=1904", str(uses)], check=True)
    measured = header_text("planned", b"model", "wide", 64, 128).decode()
    (tmp_path / "planned.h").write_text(measured)
    subprocess.run([*command, str(uses)], check=True)
    assert "g_planned_arena_head_size = 64 }" in measured
    assert "#define STOWPLAN_ARENA_TAIL 128" in measured


@pytest.mark.parametrize(
    "options", [(), ("--kernels", "reference"), ("--keep-order",), ("--keep", ":0"), ("--scratch", "0=100")]
)
def test_a_plan_in_json_is_verified_against_its_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    def verify(model: Path, plan: Path) -> tuple[int, str]:
        with pytest.raises(SystemExit) as done:
            main(["verify", str(model), str(plan)])
        return int(done.value.code or 0), capsys.readouterr().out

    models, plan = [wide(tmp_path / "wide.tflite"), chain(tmp_path / "chain.tflite")], tmp_path / "plan.json"
    for model in models:
        assert tflm(model, "--no-run", "-o", plan, *options) == 0
        capsys.readouterr()
        values = json.loads(plan.read_text(encoding="utf-8"))
        assert verify(model, plan) == (0, f"valid: the head takes {values['head']:,} bytes\n")
        other = models[1 - models.index(model)]
        assert verify(other, plan)[0] == 4
        at, moved = max((at, number) for number, at in enumerate(values["offsets"]))
        for offset in (at + 16 * 4096, at + 3, *([0] if at else [])):
            changed = [offset if number == moved else old for number, old in enumerate(values["offsets"])]
            plan.write_text(json.dumps(values | {"offsets": changed}))
            assert verify(model, plan)[0] == 4, (model, offset)
        plan.write_text(json.dumps(values | {"head": values["head"] - 16}))
        assert verify(model, plan)[0] == 4


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tflm(wide(tmp_path / "wide.tflite"), "--json", "--no-run") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["not_run"] == "--no-run was given"
    assert result["head"] == result["bound"]
    assert (result["kernels"], result["shared"]) == ("none", 0)


def test_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = chain(tmp_path / "chain.tflite")
    outputs = ["--png", tmp_path / "arena.svg", "--report", tmp_path / "arena.html"]
    assert tflm(path, "--kernels", "reference", "--no-run", *outputs) == 0
    said = capsys.readouterr().out
    assert "shared     768 bytes of operands (reference kernels; 3 of 3 operators are modelled)" in said
    assert "proven: no order and no offsets take less where bytes are shared as reference kernels allow)" in said
    assert tflm(path, "--kernels", "reference", "--no-run", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["head"], result["kernels"], result["shared"], result["any_order"]) == (256, "reference", 768, True)
    assert tflm(path, "--kernels", "cmsis-nn", "--no-run") == 0
    assert "shared     0 bytes of operands (cmsis-nn kernels; 0 of 3 operators are modelled)" in capsys.readouterr().out
    assert tflm(path, "--kernels", "fast", "--no-run") == 2
    assert "--kernels" in capsys.readouterr().err


def test_the_head_has_a_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proof = tmp_path / "proof.json"
    path = chain(tmp_path / "chain.tflite")
    for kernels, head in (("none", 512), ("reference", 256)):
        assert tflm(path, "--no-run", "--kernels", kernels, "--certificate", proof) == 0
        assert f"proof      load: no offsets take less than {head} bytes in this order" in capsys.readouterr().out
        checked = ["verify", tmp_path / "proof.problem.json", tmp_path / "proof.plan.json", "--bound", proof]
        with pytest.raises(SystemExit) as done:
            main([*map(str, checked)])
        assert done.value.code in (0, None)
        assert f"{head} bytes" in capsys.readouterr().out
    assert tflm(path, "--no-run", "--certificate", path) == 2
    assert "chain.tflite" in capsys.readouterr().err


def test_inputs_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = chain(tmp_path / "chain.tflite")
    assert tflm(path, "--keep", "0", "--no-run") == 0
    said = capsys.readouterr().out
    assert "head       768 bytes, 256 more than the 512 of the runtime's own planner" in said
    assert "kept       256 bytes of inputs that survive the run" in said
    assert "proven: no order and no offsets take less" in said
    assert tflm(path, "--keep", "1", "--no-run") == 2
    assert "chain.tflite: found --keep 1, expected an input: 0" in capsys.readouterr().err


def played(**fields: Any) -> Run:
    """What a runtime says that is not installed."""
    sizes = {"head": 512, "tail": 64, "arena": 576, "greedy_head": 512, "greedy_tail": 64, "greedy_arena": 576}
    ends = {"compared": 15, "ended_early": 0, "message": "", "is_undefined": False, "differs": None}
    return msgspec.convert({"version": "1", "seeds": 3, "inferences": 5, **sizes, **ends, **fields}, Run)


@pytest.mark.parametrize(
    ("fields", "code", "lines"),
    [
        ({}, 0, ["outputs    equal bit by bit (inferences: 15, seeds: 3, 1)"]),
        (
            {"ended_early": 12},
            0,
            ["outputs    equal bit by bit", "ended      the runtime ended 12 inferences early; their outputs are not compared"],
        ),
        (
            {"compared": 0, "ended_early": 240, "message": "Node GATHER failed to invoke with status 1"},
            0,
            ["NOT compared: the runtime ended 240 inferences early (Node GATHER failed to invoke with status 1), all that"],
        ),
        ({"is_undefined": True}, 0, ["outputs    NOT compared: they change when no tensors of the model share bytes"]),
        ({"differs": (1, 2)}, 4, ["outputs    NOT equal: seed 1, inference 2; do not use the plan"]),
    ],
)
def test_what_the_runtime_said(
    fields: dict[str, Any],
    code: int,
    lines: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(runtime, "version", lambda: "1")
    monkeypatch.setattr(runtime, "measured", lambda *_, **__: {})
    monkeypatch.setattr(runtime, "run", lambda *_, **__: played(**fields))
    assert tflm(chain(tmp_path / "chain.tflite")) == code
    said = capsys.readouterr().out
    assert all(line in said for line in lines)


def test_inputs_of_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path, inputs, output = chain(tmp_path / "chain.tflite"), tmp_path / "inputs.npz", tmp_path / "planned.tflite"
    given = []
    monkeypatch.setattr(runtime, "version", lambda: "1")
    monkeypatch.setattr(runtime, "measured", lambda *_, **__: {})
    monkeypatch.setattr(runtime, "run", lambda *_, **options: given.append(options["given"]) or played())
    np.savez(inputs, **{"0": np.ones((2, 64), np.float32)})  # type: ignore[arg-type]
    assert tflm(path, "--inputs", inputs) == 0
    ((arrays, inferences),) = given
    assert (arrays[0].shape, inferences) == ((2, 64), 2)
    capsys.readouterr()
    np.savez(inputs, **{"0": np.ones((2, 63), np.float32)})  # type: ignore[arg-type]
    # They are looked at whether the models are run or not, and nothing is written.
    for more in ([], ["--no-run"]):
        assert tflm(path, "--inputs", inputs, "-o", output, *more) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "inputs.npz: 0: found float32 [2, 63], expected float32 [64], or with the inferences along one more axis" in line
    assert not output.exists()
    assert tflm(path, "--inputs", tmp_path / "none.npz") == 2
    assert "none.npz: cannot read" in capsys.readouterr().err


def test_deterministic_runs_write_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = wide(tmp_path / "wide.tflite")
    found = []
    for number, seed in enumerate((0, 0, 3)):
        output = tmp_path / f"planned{number}.tflite"
        arguments = ("--deterministic", "--seed", seed, "--time-limit", 0.3, "--kernels", "reference")
        assert tflm(path, *arguments, "--no-run", "-o", output) == 0
        found.append(output.read_bytes())
    assert found[0] == found[1]
    assert tflm(path, "--time-limit", 0, "--no-run") == 2
    assert "time limit" in capsys.readouterr().err


def test_ctrl_c_keeps_the_best_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def stopped() -> Iterator[threading.Event]:
        event = threading.Event()
        event.set()
        yield event

    monkeypatch.setattr(command, "event_on_interrupt", stopped)
    output = tmp_path / "planned.json"
    assert tflm(wide(tmp_path / "wide.tflite"), "-o", output) == INTERRUPTED
    result = json.loads(output.read_text(encoding="utf-8"))
    assert result["runtime"] is None
    assert result["head"] <= result["greedy"]


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = wide(tmp_path / "wide.tflite")
    cut = tmp_path / "cut.tflite"
    cut.write_bytes(whole.read_bytes()[:700])
    custom = save(tmp_path / "custom.tflite", Graph([real(4)] * 3, [0], [2], [Step(32, [0], [1]), Step(NEG, [1], [2])]))
    planned = tmp_path / "planned.tflite"
    assert tflm(whole, "--no-run", "-o", planned) == 0
    capsys.readouterr()
    for arguments, message in (
        ([cut], "not a whole TensorFlow Lite model"),
        ([custom], "--scratch 0=BYTES says it"),
        ([planned], "--set replace_offline_plan=yes plans anew"),
        ([whole, "-o", tmp_path / "model.bin"], "expected a name that ends in .tflite, .c, .cc, .h, .json"),
        ([whole, "--scratch", tmp_path / "none.json"], "none.json"),
        ([whole, "--png", tmp_path / "arena.jpg"], "expected .png, .svg or .pdf"),
    ):
        assert tflm(*arguments, "--no-run") == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line
    assert tflm(planned, "--no-run", "--set", "replace_offline_plan=yes") == 0
