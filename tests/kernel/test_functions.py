"""Every candidate of a kind has a function, and workers that know it by name find it."""

from __future__ import annotations

import inspect

import pytest

import stowplan
from stowplan.kernel.context import Options
from stowplan.kernel.kind import kind
from stowplan.kernel.workers.messages import CandidateId
from tests.kernel.conftest import OF_EACH_KIND
from tests.paths import EXAMPLES


@pytest.mark.parametrize("name", OF_EACH_KIND)
@pytest.mark.parametrize("deterministic", [False, True])
def test_every_candidate_has_a_function(name: str, deterministic: bool) -> None:
    file, target = OF_EACH_KIND[name]
    problem = stowplan.read(EXAMPLES / file, target=target)
    own = kind(name)
    candidates = [*own.candidates(problem, Options(deterministic=deterministic)), *own.makers(problem).values()]
    assert len({candidate.name for candidate in candidates}) == len(candidates)
    for candidate in candidates:
        function = CandidateId.of(name, candidate.name).load()
        assert list(inspect.signature(function).parameters) == ["problem", "context"]
