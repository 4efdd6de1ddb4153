"""The tests of the tests: none may depend on how fast the machine is, nor on luck."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent

#: Files that read a clock or sleep, and why no result depends on how long that takes.
CLOCKS = {
    "patience.py": "the guard against what hangs",
    "test_deadline.py": "sleeps longer than a deadline, which has then passed on any machine",
    "test_files.py": "kills a process at a moment that is meant to be random",
    "backends/torch/test_offload.py": "plans that are compared are no worse however little time there is",
    "backends/torch/test_rooms.py": "a limit as long as the guard against what hangs",
    "models/memory_mapping/relaxations.py": "none unless a test asks for a limit",
    "models/packing/cases.py": "a limit as long as the guard against what hangs",
    "kernel/fakes.py": "sleeps for ever, or polls until told to stop",
    "kernel/test_plan_cache.py": "kills a process at a moment that is meant to be random",
    "kernel/workers/test_worker.py": "ends of jobs that lie far ahead or in the past",
}
READS_A_CLOCK = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "sleep", "time", "time_ns"}


def test_examples_have_no_deadline(request: pytest.FixtureRequest) -> None:
    """``settings.default`` is what every test gets that sets nothing else."""
    loaded = settings()
    assert loaded.deadline is None
    assert HealthCheck.too_slow in loaded.suppress_health_check
    assert loaded.print_blob
    if request.config.getoption("--hypothesis-profile") is None:
        assert loaded.derandomize


def findings(source: str) -> Iterator[tuple[int, str]]:
    """(line, what) of everything in a test file that may depend on the clock, or differ from the profile of the suite."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield node.lineno, "clock"
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        owner = called.value if isinstance(called, ast.Attribute) else None
        if isinstance(owner, ast.Name) and owner.id == "time" and name in READS_A_CLOCK:
            yield node.lineno, "clock"
        for keyword in node.keywords:
            is_profile = keyword.arg in ("deadline", "derandomize", "database", "suppress_health_check")
            if name in ("settings", "register_profile") and is_profile:
                yield node.lineno, f"profile: {keyword.arg}"
            if keyword.arg == "timeout" and not (isinstance(keyword.value, ast.Name) and keyword.value.id == "HANG"):
                yield node.lineno, "timeout other than HANG"


def test_no_test_depends_on_the_clock() -> None:
    wrong = []
    for path in sorted(TESTS.rglob("*.py")):
        name = path.relative_to(TESTS).as_posix()
        for line, what in findings(path.read_text(encoding="utf-8")):
            is_known = (what == "clock" and name in CLOCKS) or (what.startswith("profile") and name == "conftest.py")
            if not is_known:
                wrong.append(f"{name}:{line}: {what}")
    assert not wrong, "\n".join(wrong)


def test_every_exception_is_needed() -> None:
    for name in CLOCKS:
        assert "clock" in {what for _, what in findings((TESTS / name).read_text(encoding="utf-8"))}, name


def test_the_check_sees_what_it_is_for() -> None:
    code = (
        "from time import sleep\n"
        "@settings(max_examples=3, deadline=200)\ndef f():\n"
        "    began = time.monotonic()\n"
        "    run(timeout=60)\n"
        "    run(timeout=HANG)\n"
    )
    assert sorted(findings(code)) == [
        (1, "clock"),
        (2, "profile: deadline"),
        (4, "clock"),
        (5, "timeout other than HANG"),
    ]
