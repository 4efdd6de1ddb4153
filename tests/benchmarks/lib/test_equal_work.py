"""Heuristics of modulo scheduling in a number of evaluations."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.lib.modulo_scheduling.equal_work import spend
from benchmarks.lib.modulo_scheduling.generated_graphs import generated
from stowplan.errors import UsageError
from stowplan.learned_guidance.modulo_scheduling.state import Uniform
from stowplan.models.modulo_scheduling.bounds import find_obstacle, least_ii
from stowplan.models.modulo_scheduling.verify import verify
from stowplan.portfolio.modulo_scheduling.rollouts import PARAMS


@pytest.mark.parametrize("name", ["list", "search", "random", "evolution", "rollouts"])
def test_heuristics_in_a_number_of_evaluations(name: str) -> None:
    """They begin no work beyond it, say what they had by when, and repeat."""
    problem = generated(np.random.default_rng(3), instructions=8)
    assert find_obstacle(problem) is None
    tallies = [spend(problem, name, count, seed=1, player=Uniform()) for count in (80, 80, 160)]
    assert [each.progress for each in tallies[:1]] == [each.progress for each in tallies[1:2]]
    assert 80 <= tallies[0].evaluations <= 80 * (2.5 if name in ("evolution", "rollouts") else 1.2)
    best = tallies[2].best
    assert best is not None
    assert verify(problem, best).ok
    assert best.ii >= least_ii(problem)
    assert tallies[2].within(0) is None
    assert tallies[2].within(10**6) == best.objective
    within = [tallies[2].within(count) or 10**12 for count in (20, 80, 160)]
    assert within == sorted(within, reverse=True)


def test_a_stop_ends_them_sooner() -> None:
    problem = generated(np.random.default_rng(3), instructions=16)
    for name in ("list", "search", "random", "evolution", "rollouts"):
        assert spend(problem, name, 10**6, player=Uniform(), should_stop=lambda: True).evaluations <= 64 + PARAMS.first_batch
    with pytest.raises(UsageError, match="found the heuristic 'best', expected one of list, search, random, evolution, or"):
        spend(problem, "best", 1)
    with pytest.raises(UsageError, match="rollouts with a player"):
        spend(problem, "rollouts", 1)
