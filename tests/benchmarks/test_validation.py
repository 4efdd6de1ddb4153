"""The published suite."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.validation.problems import PROBLEMS, write
from benchmarks.validation.suite import dearest, spreads
from stowplan.portfolio.batch.records import Settings
from stowplan.portfolio.batch.task import find_inputs
from stowplan.portfolio.validation import suite
from stowplan.portfolio.validation.records import Validation, summarize
from stowplan.portfolio.validation.suite import validate
from tests.patience import HANG
from tests.portfolio.validation.players import ONE_BAD, Fixed, Scripted, four_reads, solved


@pytest.mark.parametrize("agent", PROBLEMS)
def test_each_agent_has_thirty_problems_that_are_always_the_same(agent: str, tmp_path: Path) -> None:
    write(agent, tmp_path)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(find_inputs([tmp_path])) == len(set(first.values())) >= 30
    (tmp_path / "of an earlier suite.json").write_text("{}")
    write(agent, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first


def test_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "solve", lambda problem, **rest: solved(problem))
    four_reads().save(tmp_path / "00_four.json")
    settings = Settings(time_limit=HANG, deterministic=True)
    problems = tuple(validate(find_inputs([tmp_path]), settings, Fixed(Scripted(ONE_BAD)), games=2))  # type: ignore[arg-type]
    summaries = summarize(problems, lambda name: Fixed(Scripted()).of(None))  # type: ignore[arg-type]
    found = Validation(settings=settings, games=2, solves=24, problems=problems, summaries=summaries, asked=1)
    gaps = spreads({"MMap-MuZero": found.summaries[0]})
    assert "| policy, with search | 0% | 100% | 0.0% |" in gaps
    assert "| heuristic | 100% | 100% | 0.0% |" in gaps
    assert "drop t2" not in dearest({"MMap-MuZero": found})  # costs less than is shown
    exact = msgspec.structs.replace(problems[0].exact, objective=100)
    dear = msgspec.structs.replace(found, problems=(msgspec.structs.replace(problems[0], exact=exact),))
    assert "| MMap-MuZero | four | drop t2 for read 2 | 4.0% | 100% |" in dearest({"MMap-MuZero": dear})
