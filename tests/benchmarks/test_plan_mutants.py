"""Verifiers and the oracles of ``benchmarks/attacks/plan_mutants.py`` accept the same plans; the long run is the script."""

from __future__ import annotations

import pytest

from benchmarks.attacks.plan_mutants import MAKERS, compare
from tests.models.oracles import ORACLES


@pytest.mark.parametrize("kind", MAKERS)
def test_verifier_and_oracle_agree(kind: str) -> None:
    told: list[str] = []
    made, accepted, differing = compare(kind, 300, 3, told.append)
    assert (made, differing, told) == (300, 0, [])
    assert 0 < accepted < 200


def test_a_difference_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ORACLES, "packing", lambda problem, plan: False)
    told: list[str] = []
    _, accepted, differing = compare("packing", 100, 3, told.append)
    assert 0 < accepted == differing == len(told)
    assert told[0].startswith("packing, problem ")
    assert ": verifier True, oracle False: {" in told[0]
