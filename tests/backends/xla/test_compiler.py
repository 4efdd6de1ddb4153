"""The compiling process: what it answers is kept, and whatever it does ends in an answer or an error."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from stowplan.backends.xla import by_name, workload
from stowplan.backends.xla.compiler import Compiler
from stowplan.backends.xla.process import CompileError
from stowplan.deadline import Deadline
from stowplan.errors import MissingDependencyError, TimeLimitError, UsageError
from stowplan.frontends.hlo import read_program
from tests.backends.xla.conftest import WORKLOAD, Fake


def test_a_result_is_made_once(fake: Fake, tmp_path: Path) -> None:
    with Compiler(WORKLOAD, folder=tmp_path) as compiler:
        assert compiler.find({}) is None
        made = compiler.compile({})
        assert compiler.compile({}).folder == made.folder
        assert (compiler.compiles, compiler.processor_seconds, made.record.processor_seconds) == (1, 1.5, 1.5)
        assert [step.name for step in read_program(made.program_path).steps] == ["a", "b", "c", "d", "r"]
    # Another process finds it, too.
    with Compiler(WORKLOAD, folder=tmp_path) as compiler:
        found = compiler.find({})
        assert found is not None
        assert found.record == made.record
        assert compiler.compiles == 0
    assert fake.compiles == [{}]


def test_options_of_every_compile(fake: Fake) -> None:
    with Compiler(WORKLOAD, options={"xla_own": "1"}) as compiler:
        assert compiler.compile({"xla_msa_enable": False}).record.options == {"xla_msa_enable": False, "xla_own": "1"}
        assert compiler.find({"xla_msa_enable": False}) is not None
    assert fake.compiles == [{"xla_msa_enable": False, "xla_own": "1"}]


def test_a_refusal_is_kept(fake: Fake, tmp_path: Path) -> None:
    for _ in range(2):
        with Compiler(WORKLOAD, folder=tmp_path) as compiler:
            assert compiler.compile({"xla_nope": True}).error == "INVALID_ARGUMENT: No such compile option: 'xla_nope'"
    assert len(fake.compiles) == 1


def test_a_function_that_does_not_trace(fake: Fake, tmp_path: Path) -> None:
    workload = msgspec.structs.replace(WORKLOAD, reference="fake:untraceable")
    with Compiler(workload, folder=tmp_path) as compiler, pytest.raises(CompileError) as caught:
        compiler.start()
    assert str(caught.value) == "toy: cannot trace the function: here.py:3: TypeError: cannot reshape (4,) into (3, 7)"
    assert not list(tmp_path.iterdir())


def test_devices_that_there_are_not(fake: Fake) -> None:
    """The mesh and the partitions reach the compiling process, which knows what devices there are."""
    crowded = by_name("fake:crowded", ["f32[8]"], mesh="data=8", partition="data")
    with Compiler(crowded) as compiler, pytest.raises(UsageError) as caught:
        compiler.start()
    assert str(caught.value) == "crowded on v4:2x2x1: found a mesh of [8], expected fewer"


def test_a_function_of_chance(fake: Fake) -> None:
    """A second process that lowers something else would mix the results of two programs."""
    workload = msgspec.structs.replace(WORKLOAD, reference="fake:chance")
    with Compiler(workload) as compiler:
        # So fat that the next compile gets a new process.
        compiler.compile({"fake": "fat"})
        with pytest.raises(CompileError, match="lowered differently the second time"):
            compiler.compile({})


def test_one_that_hangs_is_ended(fake: Fake, clock: SimpleNamespace) -> None:
    with Compiler(WORKLOAD, compile_limit=300) as compiler:
        with pytest.raises(TimeLimitError, match="toy: XLA took longer than the 300 s of one compile"):
            compiler.compile({"fake": "hang"})
        # The next gets a new process.
        assert not compiler.compile({}).error
        with pytest.raises(TimeLimitError, match="toy: the time was over before XLA had finished"):
            compiler.compile({"fake": "hang", "xla_own": 1}, Deadline(100))


def test_one_that_hangs_can_be_cancelled(fake: Fake) -> None:
    cancel = threading.Event()
    hangs = fake.log.with_name("log.hangs")

    def stop() -> None:
        while not hangs.exists():
            pass
        cancel.set()

    watcher = threading.Thread(target=stop)
    with Compiler(WORKLOAD) as compiler:
        watcher.start()
        with pytest.raises(TimeLimitError):
            compiler.compile({"fake": "hang"}, Deadline(None, cancel))
    watcher.join()


def test_one_that_dies_says_why(fake: Fake) -> None:
    with Compiler(WORKLOAD) as compiler:
        with pytest.raises(CompileError, match="the compiling process ended: F0000 segmentation fault in pass msa"):
            compiler.compile({"fake": "die"})
        assert not compiler.compile({}).error


def test_a_check_that_fails_is_kept(fake: Fake) -> None:
    """It would fail again."""
    with Compiler(WORKLOAD) as compiler:
        for _ in range(2):
            assert compiler.compile({"fake": "check"}).error.endswith(
                "Check failed: found != nullptr there is no instruction b"
            )
        assert not compiler.compile({}).error
    assert fake.compiles == [{"fake": "check"}, {}]


def test_one_that_cannot_start(fake: Fake) -> None:
    with (
        Compiler(WORKLOAD, command=[sys.executable, "-c", "raise SystemExit(9)"]) as compiler,
        pytest.raises(CompileError, match="the compiling process ended: exit status 9"),
    ):
        compiler.compile({})


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_one_that_grows_is_ended(fake: Fake) -> None:
    with Compiler(WORKLOAD, memory_limit=200 << 20) as compiler:
        with pytest.raises(CompileError, match=r"used more than 0\.195 GiB"):
            compiler.compile({"fake": "grow"})
        assert not compiler.compile({}).error


def test_nothing_is_left(fake: Fake, tmp_path: Path) -> None:
    with Compiler(WORKLOAD) as compiler:
        folder = compiler.compile({}).folder
        assert folder.exists()
    assert not folder.exists()
    with Compiler(WORKLOAD, folder=tmp_path) as compiler:
        for how in ("die", "refuse"):
            try:
                compiler.compile({"fake": how})
            except CompileError:
                continue
    (place,) = tmp_path.iterdir()
    assert [sorted(path.name for path in each.iterdir()) for each in place.iterdir()] == [["record.json"]]


def test_limits_and_targets_that_make_no_sense(fake: Fake) -> None:
    with pytest.raises(UsageError, match="expected positive ones"):
        Compiler(WORKLOAD, compile_limit=0)
    with pytest.raises(UsageError, match="found target 'tpu-v4i', expected one that XLA compiles for: tpu-7x, tpu-v4, "):
        Compiler(WORKLOAD, target="tpu-v4i")


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError) as caught:
        Compiler(WORKLOAD)
    assert str(caught.value) == (
        "compiling for XLA needs jax and jaxlib and libtpu, not installed here: pip install '.[xla]' in a clone of stowplan"
    )


def test_flags_of_the_environment_belong_to_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(workload.importlib.metadata, "version", lambda name: "1")
    for name in workload.FLAGS:
        monkeypatch.delenv(name, raising=False)
    plain = workload.versions()
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_x=1")
    assert workload.versions() == plain | {"LIBTPU_INIT_ARGS": "--xla_x=1"}
