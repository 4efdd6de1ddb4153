"""Plans of models on machines: options that mean what was planned, guard, and what is refused."""

from __future__ import annotations

import random
import shlex
from pathlib import Path

import msgspec
import pytest

from stowplan.backends import llama
from stowplan.backends.llama.emit import emitted
from stowplan.backends.llama.flags import command_of, placement_of, text_of
from stowplan.backends.llama.lowering import Request, problem_of
from stowplan.backends.llama.model import Context, read_model
from stowplan.backends.llama.oracle import Oracle
from stowplan.backends.llama.planning import Summary, lines_of
from stowplan.errors import StowplanError, UsageError
from stowplan.models.llm_placement.plan import plan_of
from stowplan.models.llm_placement.problem import HOST
from tests.backends.llama.cases import DENSE, EXPERTS, WINDOWS, device, machine, write

FAST = device("CUDA0", 12, 800.0)
SLOW = device("CUDA1", 12, 100.0)


def test_options_mean_the_plan(tmp_path: Path) -> None:
    """Random contiguous placements with random spills, read back from the options' text."""
    chance = random.Random(0)
    there = machine(FAST, SLOW, device("CUDA2", 30, 50.0))
    for shape in (DENSE, EXPERTS, WINDOWS):
        model = read_model(write(shape, tmp_path))
        problem = problem_of(model, there, Request(2048, 600, 64))
        for _ in range(60):
            order = chance.sample([1, 2, 3], chance.randint(0, 3))
            cuts = sorted(chance.randint(0, len(problem.layers)) for _ in order)
            memories = [HOST] * (cuts[0] if cuts else len(problem.layers))
            for memory, begin, end in zip(order, cuts, [*cuts[1:], len(problem.layers)][: len(order)], strict=True):
                memories += [memory] * (end - begin)
            spilled = [
                chance.randint(0, len(layer.spillable)) if memory != HOST and chance.random() < 0.4 else 0
                for layer, memory in zip(problem.layers, memories, strict=True)
            ]
            plan = plan_of(problem, memories, spilled, chance.randrange(len(problem.micro_batches)))
            words = command_of(problem, plan, Context(2048))
            found = placement_of(model, words, ["CUDA0", "CUDA1", "CUDA2"], [1, 1, 1])
            names = [memory.name for memory in problem.memories]
            assert found.layers == [names[memory] for memory in memories]
            on_host = sum(
                tensor.bytes for layer in model.layers for tensor in layer.tensors if found.tensors[tensor.name] == "CPU"
            )
            expected = sum(
                sum(part.bytes for part in (layer.spillable[:parts] if memory != HOST else (layer.fixed, *layer.spillable)))
                for layer, memory, parts in zip(problem.layers, memories, spilled, strict=True)
            )
            assert on_host == expected == found.weights["CPU"] - model.input_bytes


def test_the_fast_device_is_used_alone(tmp_path: Path) -> None:
    big = machine(device("CUDA0", 100, 100.0), device("CUDA1", 100, 800.0))
    planned = llama.plan(write(DENSE, tmp_path), big, context=1024, prompt=100, generate=64)
    summary = planned.summary
    assert summary.recommended == "plan"
    assert summary.is_proven
    assert "-dev CUDA1" in text_of(summary.command)
    assert summary.fit_ps is not None
    assert summary.request_ps is not None
    assert summary.fit_ps > 2 * summary.request_ps
    text = "\n".join(lines_of(summary))
    assert "times as fast as what --fit places" in text
    assert summary.command == (*summary.command,)
    assert sum(summary.parts.values()) == summary.request_ps


def test_a_small_gain_is_not_taken(tmp_path: Path) -> None:
    same = machine(device("CUDA0", 6, 100.0), device("CUDA1", 6, 101.0), error=0.2)
    summary = llama.plan(write(DENSE, tmp_path), same, context=256, prompt=100, generate=64).summary
    assert summary.recommended == "fit"
    assert "no more than the error of predictions, 20%" in summary.reason
    assert summary.request_ps == summary.fit_ps


def test_without_speeds_it_is_what_fit_places(tmp_path: Path) -> None:
    row = {"name": "CUDA0", "free_mib": 8, "margin_mib": 0, "compute_mib": 0.5}
    summary = llama.plan(write(DENSE, tmp_path), machine(row), context=256, prompt=100, generate=64).summary
    assert summary.recommended == "fit"
    assert "the speeds of CUDA0 are not known. 'stowplan llm calibrate' measures them" in summary.reason
    # The runtime's own placement, with the margin of the machine, which is not the runtime's default.
    assert text_of(summary.command) == "-c 256 -fa on -ub 512 -np 1 --fit on -fitt 0"
    assert summary.request_ps is None
    assert "CUDA0 has no measured speed" in summary.unknown
    unknown = llama.plan(write(DENSE, tmp_path), machine(FAST, error=None), context=256, prompt=9, generate=9).summary
    assert "the error of predicted request times are not known" in unknown.reason


def test_experts_stay_on_the_host(tmp_path: Path) -> None:
    planned = llama.plan(write(EXPERTS, tmp_path), machine(device("CUDA0", 6, 800.0)), context=512, prompt=64, generate=64)
    assert any(planned.plan.spilled)
    assert "_(ch)?exps" in text_of(command_of(planned.problem, planned.plan, Context(512)))


def test_what_cannot_be(tmp_path: Path) -> None:
    path = write(DENSE, tmp_path)
    with pytest.raises(
        UsageError, match="found a prompt of 900 and an answer of 200 tokens, expected at most the context of 1024"
    ):
        llama.plan(path, machine(FAST), context=1024, prompt=900, generate=200)
    with pytest.raises(UsageError, match="found a context of 8192 tokens, expected at most the 4096"):
        llama.plan(path, machine(FAST), context=8192, prompt=1, generate=1)
    with pytest.raises(UsageError, match="found the cache type 'q9'"):
        llama.plan(path, machine(FAST), context=1024, prompt=1, generate=1, key_type="q9")
    with pytest.raises(StowplanError, match="nothing fits: the model and its caches take"):
        llama.plan(path, machine(device("CUDA0", 1, 8.0), host=1), context=1024, prompt=1, generate=1)
    with pytest.raises(UsageError, match=r"several devices\. They compute it side by side"):
        llama.plan(path, machine(device("CUDA0", 16, 8.0), device("CUDA1", 16, 7.0)), context=4096, prompt=4000, generate=1)
    for words, message in (
        (["-sm", "row"], "found -sm row"),
        (["-dev", "CUDA7"], "found the device 'CUDA7'"),
        (["-ngl", "all"], "found 'all' for layers"),
        (["-ot", "x=CUDA7"], "found the buffer 'CUDA7'"),
        (["-ot", "blk.(=CPU"], r"found the pattern 'blk\.\(' in -ot, expected a regular expression: missing \)"),
        (["-ts", "3,x"], "found '3,x' for -ts, expected numbers of at least 0"),
        (["-ts", "3,nan"], "found '3,nan' for -ts"),
        (["-ts", "-1,2"], "found '-1,2' for -ts"),
        (["-np", "0"], "found 0 for slots, expected at least 1"),
        (["-c", "-1"], "found -1 for context, expected at least 0"),
        (["-ctk", "q9"], "found the key type 'q9' of the cache, expected one of f32, "),
    ):
        with pytest.raises(UsageError, match=message):
            placement_of(read_model(path), words, ["CUDA0"], [1])


def test_a_summary_is_a_document(tmp_path: Path) -> None:
    path = write(DENSE, tmp_path)
    big = machine(device("CUDA0", 100, 100.0), device("CUDA1", 100, 800.0))
    own = llama.plan(path, machine(FAST), context=512, prompt=64, generate=64).summary
    better = llama.plan(path, big, context=512, prompt=64, generate=64).summary
    for summary, lines in (
        (own, [("fit = on\n", "LLAMA_ARG_FIT=on\n"), ("fit-target = 0\n", "LLAMA_ARG_FIT_TARGET=0\n")]),
        (better, [("fit = off\n", "LLAMA_ARG_FIT=off\n"), ("n-gpu-layers = 13\n", "LLAMA_ARG_N_GPU_LAYERS=13\n")]),
    ):
        summary.save(tmp_path / "plan.json")
        assert Summary.load(tmp_path / "plan.json") == summary
        script, preset, variables = (emitted(summary, suffix) for suffix in (".sh", ".ini", ".env"))
        assert f"exec llama-server {text_of(['-m', str(path), *summary.command])} " in script
        for of_preset, variable in lines:
            assert of_preset in preset
            assert variable in variables


def test_paths_that_a_shell_or_a_preset_would_change(tmp_path: Path) -> None:
    path = write(DENSE, tmp_path)
    summary = llama.plan(path, machine(FAST), context=512, prompt=64, generate=64).summary
    odd = "a $(touch x) `id` \"b'.gguf"
    named = msgspec.structs.replace(summary, file=odd, model="my [odd]\nname", reason="one\nline")
    script = emitted(named, ".sh")
    assert shlex.split(script.splitlines()[2])[:4] == ["exec", "llama-server", "-m", odd]
    assert len(script.splitlines()) == 3
    assert emitted(named, ".ini").startswith(f"[my odd name]\nmodel = {odd}\nctx-size = 512\n")
    # The section [*] is for all models.
    assert emitted(msgspec.structs.replace(summary, model="[*]"), ".ini").startswith("[model]\n")
    for file in ("a#b.gguf", "a;b.gguf", "a\nb.gguf", "a.gguf "):
        with pytest.raises(UsageError, match=r"of -m, expected one without #, ;, line breaks and outer spaces"):
            emitted(msgspec.structs.replace(summary, file=file), ".ini")
    with pytest.raises(UsageError, match=r"of -dev, expected one without line breaks"):
        emitted(msgspec.structs.replace(summary, command=("-dev", "CUDA0\nX=1")), ".env")


def test_requests_with_too_small_numbers_are_refused(tmp_path: Path) -> None:
    path = write(DENSE, tmp_path)
    for (context, prompt, generate, slots), message in (
        ((512, 64, 64, 0), "found 0 slots, expected at least 1"),
        ((512, 64, 64, -2), "found -2 slots, expected at least 1"),
        ((0, 0, 0, 1), "found a context of 0 tokens, expected at least 1"),
        ((512, -1, 64, 1), "found a prompt of -1 tokens, expected at least 0"),
        ((512, 64, -1, 1), "found an answer of -1 tokens, expected at least 0"),
    ):
        with pytest.raises(UsageError, match=message):
            llama.plan(path, machine(FAST), context=context, prompt=prompt, generate=generate, slots=slots)


def test_deterministic_plans_are_the_same(tmp_path: Path) -> None:
    path = write(EXPERTS, tmp_path)
    from stowplan.kernel.context import Options

    options = Options(time_limit=2.0, candidates=("heuristic", "exact"), deterministic=True)
    plans = [
        llama.plan(path, machine(device("CUDA0", 4, 800.0), SLOW), context=512, prompt=64, generate=64, options=options).plan
        for _ in range(2)
    ]
    assert plans[0] == plans[1]


def _oracle(folder: Path, compute: str) -> Path:
    """A program that answers every placement with these bytes of intermediate results."""
    program = folder / "oracle"
    program.write_text(f"#!/bin/sh\nwhile read -r line; do printf 'CUDA0\\t0\\t0\\t{compute};CPU\\t0\\t0\\t1000;\\n'; done\n")
    program.chmod(0o755)
    return program


def test_larger_buffers_of_the_runtime_make_another_plan(tmp_path: Path) -> None:
    path = write(DENSE, tmp_path)
    there = machine(device("CUDA0", 8, 800.0))
    before = llama.plan(path, there, context=512, prompt=64, generate=64)
    after = llama.plan(path, there, context=512, prompt=64, generate=64, oracle=_oracle(tmp_path, "4000000"))
    used = {use.name: use for use in after.summary.devices}
    assert used["CUDA0"].compute == 4_000_000
    assert used["CUDA0"].free >= 0
    assert before.plan.memories.count(HOST) < after.plan.memories.count(HOST) or sum(after.plan.spilled) > sum(
        before.plan.spilled
    )
    assert not any("estimated" in line for line in after.summary.unknown)


def test_what_the_runtime_says_must_make_sense(tmp_path: Path) -> None:
    path, there = write(DENSE, tmp_path), machine(device("CUDA0", 8, 800.0))
    program = tmp_path / "oracle"
    for text, message in (
        ("echo nonsense", "has 1 answers for 1 placements|says 'nonsense', expected bytes of buffers"),
        ("true", "has 0 answers for 1 placements"),
        (r"read -r line; printf 'CUDA0\tmany\t0\t1;\n'", r"says 'CUDA0\\tmany\\t0\\t1;', expected bytes of buffers"),
    ):
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
        with pytest.raises(StowplanError, match=message):
            llama.plan(path, there, context=512, prompt=64, generate=64, oracle=program)


def test_the_oracle_is_told_of_no_devices_and_of_all_apart(tmp_path: Path) -> None:
    program = tmp_path / "oracle"
    # The name of the only buffer is the field of -dev.
    program.write_text("#!/bin/sh\ntr '\\t' '@' | cut -d @ -f 6 | sed 's/.*/-&\\t1\\t2\\t3;/'\n")
    program.chmod(0o755)
    asked = [["-c", "512", *words] for words in ([], ["-dev", "none"], ["-dev", "CUDA0,CUDA1"])]
    answers = Oracle(program, tmp_path / "model.gguf").ask(asked)
    assert [*map(list, answers)] == [["-"], ["-none"], ["-CUDA0,CUDA1"]]


def test_an_oracle_that_takes_too_long_is_no_missing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stowplan.backends.llama.oracle.PATIENCE", 0.01)
    program = tmp_path / "oracle"
    program.write_text("#!/bin/sh\nexec sleep 300\n")
    program.chmod(0o755)
    with pytest.raises(StowplanError, match=r"takes more than 0.02 s for 2 placements; it was stopped"):
        Oracle(program, tmp_path / "model.gguf").ask([["-c", "512"]] * 2)
    with pytest.raises(StowplanError, match="missing: cannot be run: "):
        Oracle(tmp_path / "missing", tmp_path / "model.gguf").ask([["-c", "512"]])
