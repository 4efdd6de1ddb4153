"""``stowplan fit-jax``: what is asked for wrongly, and the picture; what compiles is in ``tests/backends/jax``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stowplan.backends.jax import FitReport, Policy
from stowplan.backends.jax.report import Candidate
from stowplan.cli.fit_jax import _picture
from stowplan.errors import TimeLimitError
from stowplan.report.figures import save_picture
from tests.cli.conftest import Cli, cli

__all__ = ["cli"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--largest", "batch"], "found no 'batch' in the shapes"),
        (["--largest", "8"], "expected a name"),
        (["--largest", "batch:0", "--shapes", "f32[batch]"], "expected a name"),
        (["--png", "picture.bmp"], "picture format"),
        *(
            (["--time-limit", text], f"found --time-limit {text}, expected more than 0")
            for text in ("0.0", "-1.0", "nan", "inf")
        ),
    ],
)
def test_bad_input(cli: Cli, options: list[str], says: str) -> None:
    found = cli("fit-jax", "module:loss", "--hbm", "1GiB", *options)
    assert found.code == 2
    assert says in found.err
    assert found.err.count("\n") == 1


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts what a test returns or raises in the place of what compiles; no jax is needed."""

    def put(outcome: Callable[[dict[str, Any]], Any]) -> None:
        monkeypatch.setattr("stowplan.backends.fallback.require", lambda *given: None)
        monkeypatch.setattr("stowplan.cli.fit_jax._loaded", lambda *given: (len, (), ()))
        monkeypatch.setattr("stowplan.backends.jax.fit", lambda *given, **options: outcome(options), raising=False)

    return put


def _report(stop_reason: Any) -> FitReport:
    candidate = Candidate(policy=Policy("everything_again"), saved_bytes=0, recomputed_seconds=0.1, hbm_bytes=100 << 20)
    return FitReport(
        name="loss", target="tpu-v5e", limit=200 << 20, candidates=(candidate,), best=0, seconds=9.5, stop_reason=stop_reason
    )


@pytest.mark.parametrize(
    ("stop_reason", "code", "says"),
    [
        ("finished", 0, "finished after 9.5 s"),
        ("no_gain", 0, "would take longer than its gain is worth, after 9.5 s"),
        ("time_limit", 0, "stopped at the time limit after 9.5 s"),
        ("cancelled", 130, "stopped by the user after 9.5 s"),
    ],
)
def test_what_ended_the_search_is_said(cli: Cli, fitted: Any, tmp_path: Path, stop_reason: str, code: int, says: str) -> None:
    def outcome(options: dict[str, Any]) -> Any:
        assert 0 < options["time_limit"] <= 10
        options["on_progress"]("[   1.0 s] dots: preview; none within 200 MiB so far")
        report = _report(stop_reason)
        return SimpleNamespace(report=report, policy=report.policy_text)

    fitted(outcome)
    found = cli("fit-jax", "module:loss", "--hbm", "200MiB", "--time-limit", "10", "-o", str(tmp_path / "report.json"))
    assert found.code == code
    assert says in found.out
    assert found.err.startswith("[   1.0 s] dots: preview; none within 200 MiB so far\n")
    assert FitReport.load(tmp_path / "report.json").stop_reason == stop_reason


@pytest.mark.parametrize(("is_cancelled", "code"), [(False, 3), (True, 130)])
def test_no_plan_in_time(cli: Cli, fitted: Any, tmp_path: Path, is_cancelled: bool, code: int) -> None:
    def outcome(options: dict[str, Any]) -> Any:
        if is_cancelled:
            options["cancel"].set()
        raise TimeLimitError("loss on tpu-v5e: the time was over after 10.0 s, before a policy within 200 MiB was found")

    fitted(outcome)
    found = cli("fit-jax", "module:loss", "--hbm", "200MiB", "--time-limit", "10", "-o", str(tmp_path / "report.json"))
    assert (found.code, found.out) == (code, "")
    assert found.err.count("\n") == 1
    assert "infeasible" not in found.err
    assert not (tmp_path / "report.json").exists()


def test_the_picture(tmp_path: Path) -> None:
    policies = [Policy("everything_again"), Policy("planned", ("a",))]
    candidates = [
        Candidate(policy=policy, saved_bytes=0, recomputed_seconds=0.1, recomputed_flops=10**12 - place, hbm_bytes=100 + place)
        for place, policy in enumerate(policies)
    ]
    report = FitReport(
        name="loss",
        target="tpu-v5e",
        limit=200,
        candidates=tuple(candidates),
        best=1,
        frontier=((100, 0.1, 10**12), (150, 0.0, 0)),
    )
    save_picture(_picture(report), tmp_path / "picture.svg")
    text = (tmp_path / "picture.svg").read_text()
    assert "plans, as expected" in text
    assert "everything_again" in text
