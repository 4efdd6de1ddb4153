"""The published suite, and the improver that is measured beside annealing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.lib.modulo_scheduling import kernels
from benchmarks.ppo.improver import Improver, Partial, anneal, begun
from benchmarks.validation.problems import PROBLEMS, write
from benchmarks.validation.suite import dearest, spreads
from stowplan.frontends.dfg import lower
from stowplan.learned_guidance.modulo_scheduling.body import Body
from stowplan.learned_guidance.modulo_scheduling.rollouts import Uniform
from stowplan.models.modulo_scheduling.plan import encode_objective
from stowplan.models.modulo_scheduling.verify import verify
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


def test_a_mapping_is_put_together_again_and_improved() -> None:
    problem = lower(kernels.unrolled(kernels.distance(), 8))
    tally = begun(problem)
    best = tally.best
    assert best is not None
    again = Partial(Body(problem), best.ii, dict(enumerate(zip(best.tiles, best.times, strict=True))))
    assert again.current < 0
    worse = msgspec.structs.replace(best, ii=best.ii + 2, objective=encode_objective(best.ii + 2, best.makespan))
    wider = begun(problem)
    wider.best = worse
    Improver(wider, Uniform(), 0).run(20)
    assert wider.best is not None
    assert wider.best.ii < best.ii + 2
    assert verify(problem, wider.best).ok
    assert wider.evaluations > 0
    annealed = begun(problem)
    annealed.best = worse
    anneal(annealed, 0, 1_000, lambda: False)
    assert annealed.best.ii < best.ii + 2
    assert verify(problem, annealed.best).ok
