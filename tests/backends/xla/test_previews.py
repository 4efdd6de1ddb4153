"""Compiles that end at the memory-space assignment: the forks that make them, and how they are kept."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from stowplan.backends.xla.compiler import Compiler
from stowplan.backends.xla.dumps import ASSIGNED, COMPILED, OFFSETS, PROGRAM
from stowplan.backends.xla.evidence import Evidence
from stowplan.backends.xla.knobs import DEFAULT
from stowplan.backends.xla.process import CompileError
from stowplan.errors import TimeLimitError
from stowplan.hardware.targets import load_target
from tests.backends.xla.conftest import WORKLOAD, Fake
from tests.patience import HANG

#: A child whose compiler is this: it writes its dumps, a helper's in between, and then works on for ever, or fails, or dies.
CHILD = """
import io, os, sys, time, types
from pathlib import Path
from stowplan.backends.xla import child

for name in ("jax", "jax.numpy", "jax.experimental", "jax.experimental.topologies"):
    sys.modules[name] = types.ModuleType(name)

class Lowered:
    def compile(self, compiler_options):
        if compiler_options.get("how") == "fail":
            raise ValueError("no such option")
        if compiler_options.get("how") == "die":
            os._exit(3)
        dump = Path(compiler_options["xla_dump_to"])
        first, *rest = ["before_optimizations", "after_optimizations_before_buffer_assignment", "after_optimizations",
                        "after_optimizations-buffer-assignment", "after_optimizations_after_buffer_assignment"]
        written = ("module_0.m", 9, [first]), ("module_1.helper", 1, [first, *rest]), ("module_0.m", 9, rest)
        for module, size, stages in written:
            text = f"HloModule {module}\\nENTRY %main () -> f32[] {{\\n}}\\n" + "// x" * size
            for stage in stages:
                (dump / f"{module}.{stage}.txt").write_text(text[:20])
                time.sleep(0.05)
                (dump / f"{module}.{stage}.txt").write_text(text)
        time.sleep(600)

child._lower = lambda request, stage: (Lowered(), "digest")
child.main(io.BytesIO(sys.stdin.buffer.read()), sys.stdout.buffer)
"""


def answers(folder: Path, *options: dict[str, str]) -> list[dict[str, object]]:
    """Of one request for previews, each in a folder of its own."""
    places = [folder / str(number) for number in range(len(options))]
    for place in places:
        place.mkdir()
    lower = {"workload": msgspec.to_builtins(WORKLOAD), "topology": "v4:2x2x1"}
    asked = [{"type": "compile", "options": each, "folder": str(place)} for each, place in zip(options, places, strict=True)]
    request = {"type": "preview", "lower": {"type": "lower", **lower}, "asked": asked, "jobs": 2}
    command = [sys.executable, "-c", CHILD]
    done = subprocess.run(command, input=json.dumps(request).encode(), capture_output=True, check=True, timeout=HANG)
    found = json.loads(done.stdout)["answers"]
    assert isinstance(found, list)
    return found


def test_it_ends_at_the_assignment(tmp_path: Path) -> None:
    found = answers(tmp_path, {}, {"how": "fail"}, {"how": "die"}, {"xla_own": "1"})
    assert [each["type"] for each in found] == ["done", "failed", "failed", "done"], found
    assert [found[0]["digest"], found[3]["digest"]] == ["digest", "digest"]
    assert (found[1]["stage"], found[1]["message"]) == ("compile", "ValueError: no such option")
    assert (found[2]["stage"], found[2]["message"]) == ("end", "the compiling process ended")
    for number in (0, 3):
        assert {path.name for path in (tmp_path / str(number)).iterdir()} == {PROGRAM, ASSIGNED, OFFSETS}
        assert gzip.decompress((tmp_path / str(number) / ASSIGNED).read_bytes()).startswith(b"HloModule module_0.m")


def test_they_are_kept_and_give_way_to_a_compile(fake: Fake, tmp_path: Path) -> None:
    with Compiler(WORKLOAD, folder=tmp_path) as compiler:
        first, second = compiler.previews([{}, {"xla_own": "1"}])
        assert [path.name for path in (first.assigned_path, first.offsets_path)] == [ASSIGNED, OFFSETS]
        assert not (first.folder / COMPILED).exists()
        assert first.assignment_digest == second.assignment_digest
        assert compiler.previews([{}])[0].folder == first.folder
        assert compiler.find({}) is None
        assert (compiler.compiles, compiler.processor_seconds) == (0, pytest.approx(0.2))
        compiled = compiler.compile({})
        assert compiled.assignment_digest == first.assignment_digest
        assert compiler.previews([{}])[0].folder == compiled.folder == first.folder
        assert (compiled.folder / COMPILED).exists()
    assert len(fake.previews) == 2
    assert len(fake.compiles) == 1


def test_refusals_are_kept_and_deaths_are_not(fake: Fake, tmp_path: Path) -> None:
    for _ in range(2):
        with Compiler(WORKLOAD, folder=tmp_path) as compiler:
            refused, died = compiler.previews([{"xla_nope": 1}, {"fake": "die"}])
            assert refused.error == "INVALID_ARGUMENT: No such compile option: 'xla_nope'"
            assert died.error == "the compiling process ended"
    assert len(fake.previews) == 1


def test_one_that_hangs_is_ended(fake: Fake, clock: SimpleNamespace) -> None:
    with Compiler(WORKLOAD, compile_limit=300) as compiler:
        with pytest.raises(TimeLimitError, match="toy: XLA took longer than the 300 s of one compile"):
            compiler.previews([{"fake": "hang"}])
        assert compiler.previews([{}])[0].error == ""


def test_a_function_of_chance(fake: Fake) -> None:
    workload = msgspec.structs.replace(WORKLOAD, reference="fake:chance")
    with Compiler(workload) as compiler, pytest.raises(CompileError, match="lowered differently the second time"):
        compiler.previews([{}])


def test_what_compiles_have_shown_is_predicted_exactly(fake: Fake, tmp_path: Path) -> None:
    """A preview of what was compiled has the compile's cycles; another begins at what is known and may be off."""
    other = DEFAULT.moved(last=["a"])
    with Compiler(WORKLOAD, folder=tmp_path) as compiler:
        evidence = Evidence(compiler.compile({}), load_target("tpu-v4"))
        default = evidence.add(DEFAULT, compiler.compile({}))
        same, moved = compiler.previews([{}, other.compiler_options()])
        again = evidence.preview(DEFAULT, same)
        assert (again.score, again.assignment, again.deviation) == (default.score, default.assignment, 0.0)
        expected = evidence.preview(other, moved)
        assert expected.deviation
        assert expected.score.total != default.score.total
        # Once it is compiled there is nothing left to predict.
        real = evidence.add(other, compiler.compile(other.compiler_options()))
        assert evidence.preview(other, moved).score == real.score
