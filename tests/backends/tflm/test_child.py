"""What runs beside the runtime, with a runtime that is played: which inferences count, and what is said where it fails."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stowplan.backends.fallback import UnsupportedError
from stowplan.backends.tflm import child, runtime
from stowplan.backends.tflm.planning import plan_and_run
from stowplan.errors import VerificationError
from stowplan.frontends.tflite.model import read_tflite
from tests.backends.tflm.models import chain

#: kTfLiteAbort.
ABORT = 15

#: Status and output of an inference, by its number and the sum of its inputs; an error is a status of 1.
Play = Callable[[int, float], tuple[int, float]]


class Played:
    """An interpreter of one input and one output."""

    def __init__(self, play: Play):
        self._play, self._turn, self._values = play, 0, 0.0
        self._output = 0.0
        self.was_set = 0

    def set_input(self, values: Any, number: int) -> None:
        assert number == 0
        self._values = float(values.sum())
        self.was_set += 1

    def invoke(self) -> int:
        status, self._output = self._play(self._turn, self._values)
        self._turn += 1
        if status == 1:
            raise RuntimeError("Interpreter invocation failed.")
        return status

    def get_output(self, number: int) -> Any:
        return np.array([self._output])

    def get_output_details(self, number: int) -> Any:
        if number:
            raise IndexError
        return {}


def play(monkeypatch: pytest.MonkeyPatch, folder: Path, turns: int = 12, **plays: Play) -> dict[str, Any]:
    """What the child says of models that are played: ``source``, ``planned`` and ``apart``, two seeds of three inferences."""
    monkeypatch.setattr(child, "_interpreter", lambda data, arena: Played(plays[data.decode()]))
    monkeypatch.setattr(child, "memory", lambda data, plenty: (32, 16))
    monkeypatch.setattr(child, "least", lambda data, plenty: 48)
    arrays = {f"{seed}.{at}.0": np.array([10.0 * seed + at]) for seed in range(2) for at in range(3)}
    np.savez(folder / "inputs.npz", **arrays)  # type: ignore[arg-type]
    job = {"plenty": 4096, "runs": 2, "inferences": 3, "turns": turns, "kept": []}
    return child._run(b"source", b"planned", b"apart", job, folder)


def streaming(at: int, values: float) -> tuple[int, float]:
    """Every second inference comes to its end."""
    return (0, values) if at % 2 else (ABORT, -1.0)


def test_outputs_of_inferences_that_end_early_are_not_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = iter(range(1000))
    done = play(
        monkeypatch,
        tmp_path,
        source=streaming,
        planned=lambda at, values: (streaming(at, values)[0], values if at % 2 else next(other)),
    )
    # Three inferences came to their end for each seed, and three did not.
    assert (done["differs"], done["compared"], done["ended_early"]) == (None, 6, 6)


def test_outputs_of_the_others_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = play(
        monkeypatch,
        tmp_path,
        source=streaming,
        apart=streaming,
        planned=lambda at, values: (streaming(at, values)[0], values + (at == 3)),
    )
    assert done["differs"] == (0, 3)


def test_another_end_is_a_difference(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = play(monkeypatch, tmp_path, source=streaming, apart=streaming, planned=lambda at, values: (0, values))
    assert done["differs"] == (0, 0)


@pytest.mark.parametrize("status", [1, ABORT])
def test_where_all_inferences_end_early_nothing_is_compared(
    status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done = play(monkeypatch, tmp_path, source=lambda at, values: (status, at), planned=lambda at, values: (status, -at))
    assert (done["differs"], done["compared"], done["ended_early"]) == (None, 0, 24)


def test_models_that_read_what_nothing_writes_are_not_blamed_on_the_plan(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain: Play = lambda at, values: (0, values)  # noqa: E731
    wrong: Play = lambda at, values: (0, values + 1)  # noqa: E731
    done = play(monkeypatch, tmp_path, source=plain, planned=wrong, apart=lambda at, values: (0, values + 2))
    assert (done["differs"], done["is_undefined"]) == (None, True)
    done = play(monkeypatch, tmp_path, source=plain, planned=wrong, apart=plain)
    assert (done["differs"], done["is_undefined"]) == ((0, 0), False)


def test_kept_inputs_are_set_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    played = Played(lambda at, values: (0, values))
    monkeypatch.setattr(child, "_interpreter", lambda data, arena: played)
    inputs = [{0: np.array([1.0])}] * 3
    child.outputs(b"", 0, inputs, 3, [0], tmp_path / "progress", "planned 0")
    assert played.was_set == 1
    child.outputs(b"", 0, inputs, 3, [], tmp_path / "progress", "planned 0")
    assert played.was_set == 4
    assert not (tmp_path / "progress").exists()


def crash(monkeypatch: pytest.MonkeyPatch, progress: str, code: int = -11) -> None:
    """Let the process that runs the runtime end so, in an inference or before the first."""

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        if progress:
            (Path(command[-1]) / "progress").write_text(progress, encoding="utf-8")
        return subprocess.CompletedProcess(command, code, b"", b"")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(runtime, "version", lambda: "1")


def test_a_crash_says_what_was_fed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = chain(tmp_path / "chain.tflite")
    crash(monkeypatch, "source 1 2")
    _, run, why = plan_and_run(path)
    assert run is None
    assert why.startswith(
        "the runtime ended with code -11 in inference 2 of seed 1 of the source model, which was fed 0: float32 [64] from"
    )
    assert "(--inputs FILE.npz gives others)" in why
    crash(monkeypatch, "")
    assert plan_and_run(path)[2] == "the runtime ended with code -11: without a message"


def test_a_crash_on_the_planned_model_alone_is_the_plans_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = chain(tmp_path / "chain.tflite")
    crash(monkeypatch, "planned 0 0")
    with pytest.raises(VerificationError, match=r"of the planned model, which was fed .*without the plan it does not"):
        plan_and_run(path)
    # A signal from outside says nothing about the plan.
    crash(monkeypatch, "planned 0 0", code=-9)
    assert "ended with code -9" in plan_and_run(path)[2]


def test_a_time_limit_says_what_was_fed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(command: list[str], timeout: float, **options: Any) -> None:
        (Path(command[-1]) / "progress").write_text("source 0 0", encoding="utf-8")
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    model = read_tflite(chain(tmp_path / "chain.tflite"))
    with pytest.raises(
        UnsupportedError, match=r"more than 600 s in inference 0 of seed 0 of the source model, which was fed 0: "
    ):
        runtime.run(model, model.data)
