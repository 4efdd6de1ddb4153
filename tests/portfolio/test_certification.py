"""Certificates of results: what runs hand on, and what becomes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import stowplan
from stowplan.certificates import maker
from stowplan.certificates.maker import certify
from stowplan.errors import UsageError
from stowplan.models.memory_mapping.milp.segments import SegmentBounds
from stowplan.models.memory_mapping.milp.solve import Effort
from stowplan.models.memory_mapping.prices import Prices
from tests.certificates.cases import CASES
from tests.paths import EXAMPLES


def test_a_result_has_none_unless_asked_for() -> None:
    problem, _ = CASES["packing"](0)
    result = stowplan.solve(problem, time_limit=5)
    assert (result.certificate, result.proof, result.certified_bound) == (None, "", None)
    with pytest.raises(UsageError):
        stowplan.solve(problem, time_limit=5, certify=1)  # type: ignore[arg-type]


def test_a_result_of_the_cache_has_it_too(tmp_path: Path) -> None:
    problem, best = CASES["packing"](0)
    first, second = (stowplan.solve(problem, time_limit=5, certify=True, cache=tmp_path) for _ in range(2))
    assert "cached" in second.details
    assert second.certificate == first.certificate
    assert second.certificate.check(problem).bound == best


def test_what_goes_wrong_with_it_costs_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(maker._MAKERS, "packing", f"{__name__}:_fails")
    problem, best = CASES["packing"](0)
    result = stowplan.solve(problem, time_limit=5, certify=True)
    assert result.objective == best
    assert any("no such luck" in each for each in result.warnings)


def _fails(wish: object) -> object:
    raise RuntimeError("no such luck")


def test_without_a_proof_trust_is_stated() -> None:
    problem = stowplan.read(EXAMPLES / "resnet50_inf_b1.hlo.txt.gz", target="tpu-v4")
    found = certify(problem, infeasible=True, trusted={"solver": "nobody"})
    assert (found.form, found.proof["solver"], found.bound) == ("trusted", "nobody", None)


def test_prices_of_segments_make_those_of_a_program() -> None:
    """What is certified comes close to what the relaxation says, cut into segments or not."""
    problem = stowplan.read(EXAMPLES / "alexnet_train_b32.hlo.txt.gz", target="tpu-v4", capacity=16 << 20)
    found: list[Prices] = []
    bounds = SegmentBounds(problem, Effort(end=float("inf"), iteration_limit=2000), on_prices=found.append)
    bounds.run(integer=False)
    certificate = certify(problem, evidence=[found[-1].encode()])
    assert certificate.bound is not None
    assert bounds.bound - certificate.bound <= 0.001 * bounds.bound
    assert certificate.bound > problem.floor_ps
    again = Prices.decode(found[-1].encode())
    assert again.memory.tolist() == found[-1].memory.tolist()
    assert again.cuts == found[-1].cuts
