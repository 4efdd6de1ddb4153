"""Bad input ends in one line that says where and what, exit code 2, and nothing half-written."""

from __future__ import annotations

import gzip
import os
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import ALEXNET, BRIEF, Cli, Solved, error_line
from tests.paths import EXAMPLES, TARGETS

pytestmark = pytest.mark.usefixtures("unchanged")

MODULE = gzip.decompress(ALEXNET.read_bytes()).decode()
NOISE_BYTES = 100_000_000


def in_entry(old: str, new: str) -> str:
    """The module with one replacement, in its ENTRY computation."""
    head, entry, body = MODULE.partition("\nENTRY")
    changed, count = re.subn(old, new, body, count=1)
    assert count == 1
    return head + entry + changed


def cut_in_line(text: str, number: int) -> str:
    """The text up to the middle of a line."""
    lines = text.splitlines(keepends=True)
    return "".join(lines[: number - 1]) + lines[number - 1][: len(lines[number - 1]) // 2]


PROGRAMS: dict[str, tuple[bytes, str]] = {
    "truncated gzip": (ALEXNET.read_bytes()[:1000], "truncated gzip file"),
    "damaged gzip": (ALEXNET.read_bytes()[:500] + b"\0" * 100 + ALEXNET.read_bytes()[600:], "gzip|line"),
    "gzip of nothing": (gzip.compress(b""), "line 1: found an empty file"),
    "empty": (b"", "line 1: found an empty file"),
    "cut in a line": (cut_in_line(MODULE, 130).encode(), "line 130"),
    "cut between lines": ("".join(MODULE.splitlines(keepends=True)[:135]).encode(), r"closing brace of %main\S* opened"),
    "unknown operand": (in_entry(r"fusion\(%[\w.]+", "fusion(%nobody").encode(), r"line \d+: found unknown operand 'nobody'"),
    "unknown dtype": (in_entry(r" = f32\[", " = f33[").encode(), r"line \d+: found element type 'f33'"),
    "unscheduled": (MODULE.replace("is_scheduled=true", "is_scheduled=false").encode(), "line 1: .*without is_scheduled"),
    "not UTF-8": (MODULE.replace("ENTRY", "%ENTRY\xff").encode("latin-1"), "line 125: found byte 0xff"),
    "no ENTRY": (MODULE.partition("\nENTRY")[0].encode(), "expected an ENTRY"),
    "prose": (b"Dear Sir,\nplease find enclosed\n", "line 1: found 'Dear Sir,', expected HloModule"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(cli: Cli, tmp_path: Path, name: str) -> None:
    data, expected = PROGRAMS[name]
    source = tmp_path / "program"
    source.write_bytes(data)
    for command in (("convert",), ("solve", *BRIEF)):
        line = error_line(cli(*command, source, "--target", "tpu-v4", "-o", tmp_path / "out.json"))
        assert line.startswith(f"stowplan: {source}: ")
        assert re.search(expected, line), line


@pytest.mark.parametrize(
    ("name", "old", "new", "target", "expected"),
    [
        ("resnet50.layers.json", '"nodes"', '"node"', "nnp-i", "unknown field `node`, expected `nodes`"),
        ("resnet50.layers.json", '"kernel_x"', '"kernl_x"', "nnp-i", r"nodes\[0\]: .*`kernl_x`, expected `kernel_x`"),
        (
            "resnet50.layers.json",
            "stowplan.layers",
            "stowplan.layer",
            "nnp-i",
            "found format 'stowplan.layer', expected '.*layers'",
        ),
        (
            "resnet50.layers.json",
            None,
            None,
            "nnp-i",
            r"damaged JSON \(.* truncated\) of the format 'stowplan.layers', expected a",
        ),
        (
            "saxpy.dfg.json",
            '"nodes"',
            '"nods"',
            "se",
            "name, nods, edges, expected .*, or a data-flow graph of nodes",
        ),
        ("saxpy.dfg.json", "", "", TARGETS / "teaching.toml", "format: found 'stowplan.target', expected a machine with tiles"),
        ("branches.tflite", None, None, "nnp-i", "found target 'nnp-i', expected arena"),
    ],
)
def test_what_is_misspelt_or_cut_off_is_named(
    cli: Cli, tmp_path: Path, name: str, old: str | None, new: str, target: str | Path, expected: str
) -> None:
    data, path = (EXAMPLES / name).read_bytes(), tmp_path / name
    if old is None:
        path.write_bytes(data if name.endswith("tflite") else data[:900])
    else:
        path.write_bytes(data.replace(old.encode(), new.encode()))
    line = error_line(cli("convert", path, "--target", target, "-o", tmp_path / "out.json"))
    assert re.search(expected, line), line


def test_error_keeps_the_file_that_is_there(cli: Cli, tmp_path: Path) -> None:
    source, old = tmp_path / "program", tmp_path / "old.json"
    source.write_bytes(PROGRAMS["cut in a line"][0])
    old.write_text("precious")
    error_line(cli("convert", source, "--target", "tpu-v4", "-o", old))
    error_line(cli("solve", source, *BRIEF, "--target", "tpu-v4", "-o", old))
    assert old.read_text() == "precious"


def binary_noise() -> bytes:
    return random.Random(1).randbytes(1 << 20)


def text_noise() -> bytes:
    rng = random.Random(2)
    words = [bytes(rng.choices(b"abcdefghijklmnopqrstuvwxyz%(){}=,.", k=rng.randint(1, 12))) for _ in range(5000)]
    return b" ".join(rng.choice(words) + rng.choice((b"", b"", b"\n")) for _ in range(150_000))


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [binary_noise, text_noise, lambda: b"\0" * (1 << 20), lambda: b'{"a": [' * 150_000, lambda: b'{"a": 1, "b": [],' * 60_000],
)
def test_noise(cli: Cli, solved: Solved, tmp_path: Path, make: Callable[[], bytes]) -> None:
    """100 MB of noise as program, problem, plan, target and list of buffers."""
    block = make()
    for name in ("noise", "noise.csv", "noise.toml"):
        path = tmp_path / name
        with path.open("wb") as stream:
            for _ in range(NOISE_BYTES // len(block) + 1):
                stream.write(block)
        if name == "noise":
            error_line(cli("convert", path, "--target", "tpu-v4", "-o", tmp_path / "out.json"))
            error_line(cli("solve", path, *BRIEF, "--target", "tpu-v4", "-o", tmp_path / "out.json"))
            assert str(path) in error_line(cli("verify", solved.problem_file, path))
            error_line(cli("show", path, solved.problem_file))
        elif name == "noise.csv":
            error_line(cli("solve", path, *BRIEF, "-o", tmp_path / "out.json"))
        else:
            line = error_line(cli("convert", ALEXNET, "--target", path, "-o", tmp_path / "out.json"))
            assert line.endswith("larger than the limit of 1048576 bytes")
        path.unlink()


TEACHING = TARGETS / "teaching.toml"
TARGETS = {
    'in_bandwidth = "10 GB/s"|in_bandwidth = "-10 GB/s"': "copies.in_bandwidth: found '-10 GB/s', expected a positive",
    'slow_read_bandwidth = "10 GB/s"|slow_read_bandwidth = "0 GB/s"': "roofline.slow_read_bandwidth: found '0 GB/s'",
    'capacity = "1 MiB"|capacity = "0 B"': "fast_memory.capacity: found '0 B', expected a positive",
    'capacity = "1 MiB"|capacity = 1048576': "fast_memory.capacity",
    "channels = 1|channels = -1": "copies.channels: found -1",
    "channels = 1|chanels = 1": "copies: .*`chanels`",
    "version = 1|version = 2": "version: found 2, expected 1",
    'clock = "1 GHz"|clock = "1 GB"': "clock: found unit 'GB'",
    'name = "teaching"|name = teaching': "not a TOML file: .*line 4",
}


@pytest.mark.parametrize("change", TARGETS)
def test_target(cli: Cli, tmp_path: Path, change: str) -> None:
    old, _, new = change.partition("|")
    text = TEACHING.read_text()
    assert old in text
    target = tmp_path / "mine.toml"
    target.write_text(text.replace(old, new, 1))
    line = error_line(cli("convert", ALEXNET, "--target", target, "-o", tmp_path / "out.json"))
    assert re.search(f"^stowplan: {re.escape(str(target))}: {TARGETS[change]}", line), line


def test_problem_files(cli: Cli, solved: Solved, tmp_path: Path) -> None:
    data = solved.problem_file.read_bytes()
    path = tmp_path / "problem.json"
    for changed, expected in (
        (data[: len(data) // 2], "damaged JSON"),
        (data.replace(b'"version":1', b'"version":2').replace(b'"version": 1', b'"version": 2'), "version: found version 2"),
        (data.replace(b"memory_mapping.problem", b"memory_mapping.riddle"), "format: found format 'stowplan.*riddle'"),
        (b"{}", "a JSON object without a format"),
        (re.sub(rb'"capacity":\s*\d+', b'"capacity": 0', data, count=1), "capacity: found 0, expected at least 1"),
        (re.sub(rb'"capacity":', b'"kapazitaet":', data, count=1), "unknown field `kapazitaet`"),
        (re.sub(rb'"size":\s*\d+', b'"size": "big"', data, count=1), r"tensors\[0\].size: Expected `int`, got `str`"),
    ):  # fmt: skip
        path.write_bytes(changed)
        line = error_line(cli("solve", path, *BRIEF, "-o", tmp_path / "out.json"))
        assert line.startswith(f"stowplan: {path}: ")
        assert re.search(expected, line), line


#: As CGRA-Mapper writes a graph for OpenCGRA.
OPENCGRA = """[
  {"fu": "Phi", "id": 0, "org_opt": "phi", "JSON_opt": "OPT_PHI_CONST", "in_const": [0], "pre": [1], "succ": [[1]]},
  {"fu": "Alu", "id": 1, "org_opt": "add", "JSON_opt": "OPT_ADD_CONST", "in_const": [0], "pre": [0], "succ": [[0]]}
]"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OPENCGRA, "a graph by CGRA-Mapper for OpenCGRA, .* expected a data-flow graph in JSON"),
        ('[{"id": 1, "op": "add"}]', "a list of 1, the first an object with the keys id, op, expected a problem"),
        ("[]", "no JSON object but a list of 0, expected a problem"),
        ('[{"id": 1', "found damaged JSON"),
        ('{"cells": []}', "a JSON object without a format, with the keys cells, expected a problem"),
        ("<xml/>", "line 1: found '<xml/>', expected HloModule"),
        ('"text"', "line 1: found '\"text\"', expected HloModule"),
    ],
)
def test_files_of_no_known_format_are_answered_by_what_they_are(cli: Cli, tmp_path: Path, text: str, expected: str) -> None:
    """The same for any target that there is, and for none."""
    path = tmp_path / "graph.json"
    path.write_text(text)
    for target in ((), ("--target", "mesh-4x4"), ("--target", "nnp-i"), ("--target", "tpu-v4")):
        line = error_line(cli("convert", path, *target, "-o", tmp_path / "out.json"))
        assert line.startswith(f"stowplan: {path}: ")
        assert re.search(expected, line), line
        assert "teaching" not in line


def test_every_cut_of_a_plan_file(cli: Cli, solved: Solved, tmp_path: Path) -> None:
    data = solved.plan_file.read_bytes().rstrip()
    path = tmp_path / "plan.json"
    for cut in [*range(0, 40, 4), *range(40, len(data), max(1, len(data) // 20)), len(data) - 1]:
        path.write_bytes(data[:cut])
        assert str(path) in error_line(cli("verify", solved.problem_file, path))


def test_inputs_that_are_no_files(cli: Cli, solved: Solved, tmp_path: Path) -> None:
    out = ("-o", tmp_path / "out.json")
    missing = tmp_path / "missing"
    assert error_line(cli("solve", missing, *out)).endswith("missing: cannot read: No such file or directory")
    assert error_line(cli("verify", solved.problem_file, missing)).endswith("missing: cannot read: No such file or directory")
    assert "cannot read: No such file" in error_line(cli("verify", missing, solved.plan_file))
    assert error_line(cli("solve", tmp_path, *out)).endswith("found a folder, expected a file")
    assert error_line(cli("convert", os.devnull, "--target", "teaching", *out)).endswith("a pipe or device, expected a file")
    assert "cannot read" in error_line(cli("convert", ALEXNET, "--target", missing.with_suffix(".toml"), *out))
    assert "cannot read" in error_line(cli("solve", ALEXNET, "--target", "teaching", "--plan", f"xla={missing}", *out))


def test_files_in_each_others_places(cli: Cli, solved: Solved, tmp_path: Path) -> None:
    problem, plan = solved.problem_file, solved.plan_file
    assert "found format 'stowplan.memory_mapping.plan', expected" in error_line(
        cli("solve", plan, "-o", tmp_path / "out.json")
    )
    assert "found format 'stowplan.memory_mapping.problem', expected a plan" in error_line(cli("verify", problem, problem))
    assert "no JSON object, expected a plan" in error_line(
        cli("verify", problem, tmp_path / "made") if False else cli("verify", problem, TEACHING)
    )
    assert "is a problem already: it takes --capacity, --set stalls, but not --target" in error_line(
        cli("solve", problem, "--target", "teaching")
    )
    line, *lines = cli("solve", ALEXNET).err.splitlines()
    for name, typed in zip(("tpu-v4", "arena", "order", "rematerialization", "stm32h743"), lines, strict=True):
        assert re.search(rf"name a target such as .*{name} \(", line)
        assert f"stowplan solve {ALEXNET} --target {name} " in typed


OPTIONS = {
    "--time-limit 0": "found a time limit of 0.0 s, expected more than 0",
    "--time-limit -1": "found a time limit of -1.0 s",
    "--time-limit nan": "found a time limit of nan s",
    "--time-limit soon": "'--time-limit': found 'soon', expected a number",
    "--workers 0": "found 0 workers, expected at least 1",
    "--workers many": "'--workers'",
    "--candidates nonsense": "found candidate 'nonsense', expected some of .*exact",
    "--candidates exact,": "found candidate ''",
    "--gap 2": "found a gap of 2.0",
    "--gap nan": "found a gap of nan",
    "--gap -0.1": "found a gap of -0.1",
    "--seed -1": "found seed -1",
    "--seed 99999999999999999999": "found seed 99999999999999999999",
    "--capacity 0": "capacity: found 0, expected at least 1",
    "--capacity -4096": "'--capacity': found '-4096', expected bytes, or a number with kB, MB, GB ",
    "--capacity 1XB": "'--capacity': found '1XB', expected bytes, or a number with kB, MB, GB ",
    "--capacity viel": "'--capacity': found 'viel', expected bytes",
    "--set memory_limit=1Mi": "--set memory_limit: found '1Mi', expected bytes",
    "--set cache_bytes=0": "found a cache of 0 bytes, expected at least 1",
    "--workers 1.5": "'--workers': found '1.5', expected a whole number",
    "--workers 0x10": "'--workers': found '0x10', expected a whole number",
    "--set stalls=alowed": "--set stalls: found 'alowed', expected allowed or forbidden",
    "--set donation=tide": "--set donation: found 'tide', expected free or tied",
    "--set evictions=never": "--set evictions: found 'never', expected whole_steps or between_steps",
    "--set prefetches=slicd": "--set prefetches: found 'slicd', expected whole or sliced",
    "--set cost_model=roofine": "found cost model 'roofine', expected one of roofline",
    "--set cost_model=table": "'table' needs cycles",
    "--target tpu-v9": "found target 'tpu-v9', expected one of teaching, tpu-7x, tpu-v4.*; perhaps tpu-v",
    "--target arenaa": "found target 'arenaa', expected one of .* arena, .* se, .*; perhaps arena",
    "--baseline gredy": "found baseline 'gredy', expected one of all_slow",
    "--nonsense": "No such option: --nonsense",
}  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS)
def test_option(cli: Cli, tmp_path: Path, option: str) -> None:
    target = () if option.startswith("--target") else ("--target", "teaching")
    given = BRIEF if not option.startswith(("--time", "--cand")) else ()
    line = error_line(cli("solve", ALEXNET, *target, *given, "-q", *option.split(), "-o", tmp_path / "out.json"))
    assert re.search(OPTIONS[option], line), line


def test_outputs_are_looked_at_before_anything_is_solved(
    cli: Cli, solved: Solved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("solved before the outputs were looked at")

    monkeypatch.setattr("stowplan.kernel.solve.solve", refuse)
    monkeypatch.setattr("stowplan.frontends.read.open_input", refuse)
    (tmp_path / "file").write_text("")
    for option in ("-o", "--report", "--png"):
        for output, expected in (
            (tmp_path / "nowhere" / "x.png", f"there is no folder {tmp_path / 'nowhere'}"),
            (tmp_path / "file" / "x.png", f"there is no folder {tmp_path / 'file'}"),
            (tmp_path, "it is a folder"),
            (solved.problem_file, "is an input of this command"),
        ):
            line = error_line(cli("solve", solved.problem_file, option, output))
            assert line.startswith(f"stowplan: {output}: ")
            assert expected in line
    assert "it is a folder" in error_line(cli("convert", ALEXNET, "--target", "teaching", "-o", tmp_path))
    monkeypatch.setattr(os, "access", lambda _, mode: not mode & os.W_OK)
    assert f"no permission to write in {tmp_path}" in error_line(cli("solve", ALEXNET, "-o", tmp_path / "out.json"))


def test_a_full_disk(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan cannot be written after all: one line, no temporary file."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    outcome = cli("solve", ALEXNET, *BRIEF, "-q", "--target", "teaching", "-o", tmp_path / "out.json")
    assert error_line(outcome).endswith("out.json: cannot write: No space left on device")


def test_an_error_of_our_own_is_no_proof_of_infeasibility(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: object, **__: object) -> None:
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr("stowplan.frontends.read.open_input", break_down)
    outcome = cli("solve", ALEXNET)
    assert outcome.code == 70
    assert outcome.out == ""
    assert "internal error: ZeroDivisionError: of all things" in outcome.err.splitlines()[-1]


def test_usage(cli: Cli) -> None:
    assert error_line(cli("solve")) == "stowplan: Missing argument 'INPUT' (try 'stowplan solve --help')"
    assert "No such command 'slove'" in error_line(cli("slove"))
    assert "Missing option '-o'" in error_line(cli("convert", ALEXNET))


def test_a_file_cut_off_is_no_interruption(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytecode that a full disk has cut off raises EOFError, and so does whatever else ends too early."""

    def cut_off(*_: object, **__: object) -> None:
        raise EOFError("marshal data too short")

    monkeypatch.setattr("stowplan.frontends.read.open_input", cut_off)
    outcome = cli("solve", ALEXNET)
    assert outcome.code == 70
    assert "internal error: EOFError: marshal data too short" in outcome.err.splitlines()[-1]
