"""A compiler that needs no jax: a process of the tests' own that speaks the protocol."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import stowplan.deadline
from stowplan.backends.xla import compiler
from stowplan.backends.xla.evidence import Evidence
from stowplan.backends.xla.workload import Workload

FAKE = (sys.executable, "-S", str(Path(__file__).with_name("fake_child.py")))

WORKLOAD = Workload(name="toy", reference="fake:toy")


class Fake:
    """What the fake compiler was asked for."""

    def __init__(self, log: Path):
        self.log = log

    @property
    def compiles(self) -> list[dict[str, Any]]:
        """Options of every compile that was begun."""
        return self._lines(self.log)

    @property
    def previews(self) -> list[dict[str, Any]]:
        """Options of every preview."""
        return self._lines(self.log.with_name(self.log.name + ".previews"))

    def forget(self) -> None:
        """Begin to log anew."""
        for path in self.log.parent.glob(f"{self.log.name}*"):
            path.unlink()

    @staticmethod
    def _lines(path: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def fake(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Puts the fake in the compiler's place."""
    log = tmp_path_factory.mktemp("fake") / "log"
    monkeypatch.setenv("FAKE_LOG", str(log))
    monkeypatch.setattr(compiler, "CHILD_COMMAND", FAKE)
    monkeypatch.setattr(compiler, "versions", lambda: {"fake": "1"})
    return Fake(log)


@pytest.fixture
def quick_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans that cost no time: the two tensors that are used most."""

    def heuristic_plan(evidence: Evidence, *rest: object) -> SimpleNamespace:
        tensors = {number for number, tensor in enumerate(evidence.program.tensors) if tensor.name in ("a", "b")}
        return SimpleNamespace(tensors=tensors)

    monkeypatch.setattr("stowplan.backends.xla.proposals.heuristic_plan", heuristic_plan)


@pytest.fixture
def clock(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that stands, but leaps a week whenever the fake begins to hang or ``leap`` is called: no test waits."""
    leaps = [0]
    hangs = fake.log.with_name("log.hangs")

    def monotonic() -> float:
        return 6e5 * (leaps[0] + (hangs.stat().st_size if hangs.exists() else 0))

    def leap() -> None:
        leaps[0] += 1

    monkeypatch.setattr(stowplan.deadline, "time", SimpleNamespace(monotonic=monotonic))
    return SimpleNamespace(leap=leap)
