"""Certificates of results: what runs hand on, and what becomes of it."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import stowplan
from stowplan.certificates import maker
from stowplan.certificates.certificate import Certificate
from stowplan.certificates.maker import certify
from stowplan.deadline import Deadline
from stowplan.errors import UsageError
from stowplan.kernel.certification import MIN_SECONDS, seconds_after
from stowplan.kernel.context import Options
from stowplan.kernel.state import RunState
from stowplan.models.memory_mapping.milp.segments import SegmentBounds
from stowplan.models.memory_mapping.milp.solve import Effort
from stowplan.models.memory_mapping.prices import Prices
from tests.certificates.cases import CASES
from tests.kernel.conftest import SolveFakes
from tests.kernel.fakes import FLOOR, OPTIMUM, fake_kind, ladder_plan, ladder_problem
from tests.paths import EXAMPLES
from tests.patience import HANG


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


def test_what_solving_leaves_of_the_limit_is_for_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [seconds_after(30.0, left) for left in (0.0, 2.0, 28.5)] == [1.5, 3.5, 6.0]
    assert seconds_after(0.1, 0.0) == MIN_SECONDS
    asked: dict[str, Any] = {}

    def taken(problem: Any, **given: Any) -> Certificate:
        asked.update(given)
        return certify(problem, **given)

    monkeypatch.setattr(maker, "certify", taken)
    cancel = threading.Event()
    stowplan.solve(CASES["packing"](0)[0], time_limit=300, certify=True, cancel=cancel)
    assert 15 < asked["seconds"] <= 60
    assert not asked["should_stop"]()
    cancel.set()
    assert asked["should_stop"]()


def test_evidence_for_the_largest_bounds_is_kept(solve_fakes: SolveFakes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later evidence for smaller bounds does not push it out."""
    given: list[Any] = []
    monkeypatch.setattr(maker, "certify", lambda problem, **others: given.append(others["evidence"]))
    solve_fakes("solves", "shows", "shows_less", certify=True, workers=3)
    smaller = [f"shows_less {FLOOR + 3}", f"shows_less {FLOOR + 4}"]
    assert [data.decode() for data in given[0]] == [f"shows {FLOOR + 1}", *smaller, f"shows {OPTIMUM - 1}"]


def test_evidence_for_refuted_bounds_is_tried_last() -> None:
    state = RunState(fake_kind(), ladder_problem(), Options(certify=True), Deadline(HANG))
    for source, bound in (("wrong", OPTIMUM + 1), ("right", OPTIMUM), ("silent", None), ("wrong", FLOOR), ("right", FLOOR)):
        state.offer_evidence(f"{source} {bound}".encode(), source, bound)
    assert state.evidence[-1] == f"wrong {OPTIMUM + 1}".encode()
    assert state.offer_plan(ladder_plan(ladder_problem(), 3), "solves", (0, 1)) is None
    found = [data.decode() for data in state.evidence]
    assert found == ["silent None", f"wrong {OPTIMUM + 1}", f"right {FLOOR}", f"wrong {FLOOR}", f"right {OPTIMUM}"]


def test_who_wants_no_better_proof_gets_the_first() -> None:
    cases = [(problem, best) for problem, best in map(CASES["tier_placement"], range(20)) if best is not None]
    found = [
        [certify(problem, bound=best, should_stop=stop).bound or 0 for stop in (lambda: True, bool)] for problem, best in cases
    ]
    assert all(0 <= first <= last for first, last in found)
    assert any(first < last for first, last in found)


def test_what_goes_wrong_with_it_costs_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = SimpleNamespace(certificate=lambda: _fails)
    monkeypatch.setattr(maker, "kinds", SimpleNamespace(of_problem=lambda problem: failing))
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
