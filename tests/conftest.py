"""Fixtures shared by all tests, and how Hypothesis draws its examples."""

from __future__ import annotations

import importlib
import os
import signal
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# PyTorch's and NumPy's threads read this when they are imported, here and in the processes that tests start. Two workers of
# pytest with a thread for each core would wait for each other: tests that train took three times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What a shell runs in the background begins with signals ignored, and so would all that the tests start and interrupt.
for _number, _default in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGTERM, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(_number, _default)

_BESIDE = Path(__file__).resolve().parents[2] / "shared"

# No clock: an example may be the first to load torch, on a machine that does other things as well. And the same examples on
# every run, so that a failure is a failure for all; others are drawn with --hypothesis-profile=explore.
settings.register_profile(
    "reproducible",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", settings.get_profile("reproducible"), derandomize=False)
settings.load_profile("reproducible")


@pytest.fixture(autouse=True)
def no_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deterministic runs of tests end by their work, however slow the machine."""
    monkeypatch.setattr(importlib.import_module("stowplan.kernel.solve"), "CEILING", 1000.0)


@pytest.fixture(autouse=True)
def no_word_of_missing_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings do not depend on whether machine code was built after the last change of a heuristic."""
    # The first module imports the function from the second one, and has to do so before the function is replaced there.
    for name in ("stowplan.kernel.solve", "stowplan.compiled.library"):
        monkeypatch.setattr(importlib.import_module(name), "missing_code", lambda *packages: "")


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of third-party material; set STOWPLAN_SHARED where it is not beside the repository."""
    folder = Path(os.environ.get("STOWPLAN_SHARED", _BESIDE))
    if not folder.is_dir():
        pytest.skip("needs the shared corpus: put it beside the repository as ../shared, or name it in STOWPLAN_SHARED")
    return folder


@pytest.fixture(scope="session")
def corpus(shared: Path) -> Path:
    """Folder of compiled programs."""
    return shared / "corpus"
