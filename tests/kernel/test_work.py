"""Who may ask whether a run is deterministic: the kernel, and the lists of candidates. Candidates and models count work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import stowplan
from stowplan import work_rates
from stowplan.kernel.context import Context, Options
from stowplan.work_rates import Rate

PACKAGE = Path(stowplan.__file__).parent

#: Which candidates there are may depend on it, and so may what a validation reports.
MAY_ASK = {"kind.py", "pace.py", "suite.py", "validation.py"}


def test_no_candidate_and_no_model_asks_whether_a_run_is_deterministic() -> None:
    paths = [path for folder in ("portfolio", "models", "learned_guidance") for path in (PACKAGE / folder).rglob("*.py")]
    checked = [path for path in paths if path.name not in MAY_ASK and "batch" not in path.parts]
    asked = [str(path.relative_to(PACKAGE)) for path in checked if re.search(r"options\.deterministic\b", path.read_text())]
    assert checked
    assert not asked


def test_every_rate_of_the_table_is_counted_by_somebody() -> None:
    names = {name for name, rate in vars(work_rates).items() if isinstance(rate, Rate)}
    text = "".join(path.read_text() for path in (PACKAGE / "portfolio").rglob("*.py"))
    assert names
    assert {name for name in names if f"work_rates.{name}" not in text} == set()
    rates = [getattr(work_rates, name) for name in names]
    assert len(set(rates)) == len(rates)


@pytest.mark.parametrize(("deterministic", "expected"), [(False, None), (True, 150)])
def test_work_is_counted_in_deterministic_runs_alone(deterministic: bool, expected: int | None) -> None:
    context = Context(Options(time_limit=3.0, deterministic=deterministic))
    assert context.work(Rate(100, "rounds, times operators"), 2.0) == expected
    assert context.units(Rate(0.5, "units")) == (1.5 if deterministic else None)
    assert context.limits(2.0, 7) == ((1e6, 7) if deterministic else (2.0, None))
    assert context.part_of_rest(0.5) == (3.0 if deterministic else 1.5)


def test_no_clock_says_that_the_last_part_of_a_deterministic_run_has_begun() -> None:
    class Late(Context):
        def remaining(self) -> float:
            return 0.0

    assert Late(Options(time_limit=3.0)).is_last(0.2)
    assert not Late(Options(time_limit=3.0, deterministic=True)).is_last(0.2)
