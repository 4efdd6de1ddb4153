"""Banked packing through the portfolio: candidates against trying everything, proofs, determinism, text, picture and report."""

from __future__ import annotations

from pathlib import Path

import pytest

from stowplan.kernel.solve import solve
from stowplan.models.banked_packing.plan import plan_of
from stowplan.models.banked_packing.problem import Bank, Buffer, Problem
from stowplan.models.banked_packing.verify import verify
from stowplan.portfolio.banked_packing import candidates, greedy
from stowplan.portfolio.banked_packing.candidates import pack
from stowplan.portfolio.banked_packing.kind import KIND, traffic_by_bank
from stowplan.report.html import write_report
from stowplan.report.presenter import draw, presenter_of
from tests.kernel.recorder import Recorder
from tests.models.banked_packing.cases import is_valid, least_cost, random_problem
from tests.patience import HANG


def by_uses() -> Problem:
    """Two large buffers that are hardly used, and small ones that are used much: size alone chooses badly."""
    large = [Buffer(id=f"large{at}", lower=0, upper=10, size=64, uses=1) for at in range(2)]
    small = [Buffer(id=f"small{at}", lower=at, upper=at + 3, size=16, uses=9) for at in range(8)]
    banks = (Bank(name="fast", capacity=64, cost=1), Bank(name="slow", capacity=4096, cost=8))
    return Problem(name="by uses", buffers=(*large, *small), banks=banks)


@pytest.mark.parametrize("name", ["choice", "milp_choice", "cpsat"])
def test_exact_candidates_find_the_optimum(name: str) -> None:
    for seed in range(80):
        problem = random_problem(seed)
        best = least_cost(problem)
        recorder = Recorder(time_limit=HANG)
        getattr(candidates, name)(problem, recorder)
        for plan, _ in recorder.plans:
            assert verify(problem, plan).ok
            assert is_valid(problem, plan)
        if best is None:
            assert not recorder.plans
            assert recorder.infeasible or name != "cpsat", seed
            continue
        assert not recorder.infeasible, seed
        assert max(recorder.bounds, default=0) <= best, seed
        assert min(plan.objective for plan, _ in recorder.plans) == best, seed
        assert name == "milp_choice" or recorder.bounds[-1] == best, seed


def test_heuristics_give_valid_plans() -> None:
    found = 0
    for seed in range(200):
        problem = random_problem(seed, most=9)
        recorder = Recorder(looks=40, time_limit=1.0)
        candidates.search(problem, recorder)
        found += bool(recorder.plans)
        for plan, _ in recorder.plans:
            assert is_valid(problem, plan), seed
            assert verify(problem, plan).ok, seed
    assert found > 100


def test_what_is_used_most_is_fast() -> None:
    problem = by_uses()
    result = solve(problem, time_limit=HANG)
    assert result.status == "optimal"
    assert result.plan is not None
    assert traffic_by_bank(problem, result.plan)["slow"] < traffic_by_bank(problem, KIND.initial(problem)["by_size"])["slow"]
    assert result.details["traffic_by_bank"]["fast"] == 8 * 16 * 9
    assert result.plan.memory == problem.banks


def test_nothing_fits() -> None:
    banks = (Bank(name="a", capacity=8, cost=1), Bank(name="b", capacity=4, cost=2))
    buffers = tuple(Buffer(id=f"x{at}", lower=0, upper=2, size=5) for at in range(2))
    result = solve(Problem(buffers=buffers, banks=banks), time_limit=HANG)
    assert result.status == "infeasible"
    assert "live at once" in result.details["explanation"] or "does not fit" in result.details["explanation"]
    # By bytes they fit; whole they do not.
    buffers = tuple(Buffer(id=f"x{at}", lower=0, upper=2, size=3) for at in range(4))
    banks = (Bank(name="a", capacity=8, cost=1), Bank(name="b", capacity=5, cost=2))
    result = solve(Problem(buffers=buffers, banks=banks), time_limit=HANG)
    assert result.status == "infeasible"


def test_deterministic_runs_repeat_themselves() -> None:
    problem = random_problem(11, most=12)
    first, second = (solve(problem, time_limit=1.0, deterministic=True, seed=3) for _ in range(2))
    assert first.plan == second.plan


def test_banks_are_packed_from_what_is_reserved() -> None:
    banks = (Bank(name="a", capacity=40, cost=1, alignment=4, reserved=6),)
    buffers = (
        Buffer(id="reserved", lower=0, upper=2, size=7, alignment=16),
        Buffer(id="y", lower=1, upper=3, size=8),
        Buffer(id="z", lower=1, upper=3, size=8),
    )
    problem = Problem(buffers=buffers, banks=banks)
    offsets, conflict = pack(problem, 0, range(3), Recorder(time_limit=HANG), HANG)
    assert conflict is None
    assert offsets is not None
    assert verify(problem, plan_of(problem, [0] * 3, [offsets[at] for at in range(3)])).ok
    tight = Problem(buffers=buffers, banks=(Bank(name="a", capacity=24, cost=1, alignment=4, reserved=6),))
    assert pack(tight, 0, range(3), Recorder(time_limit=HANG), HANG)[1] is not None


def test_the_search_begins_with_the_orders() -> None:
    context = Recorder(looks=len(list(greedy.orders(by_uses()))))
    candidates.search(by_uses(), context)
    assert context.plans[-1][1] == "by_uses"


def test_text_picture_and_report(tmp_path: Path) -> None:
    problem = by_uses()
    result = solve(problem, time_limit=HANG)
    presenter = presenter_of(KIND)
    text = presenter.summarize(problem, result.plan, others=list(KIND.initial(problem).items()))
    assert "fast" in text
    assert "small3" in text
    path = tmp_path / "report.html"
    write_report(problem, result, path)
    page = path.read_text(encoding="utf-8")
    assert "Layout of fast" in page
    assert "What each bank holds" in page
    draw(problem, [("ours", result.plan), *KIND.initial(problem).items()], tmp_path / "plan.svg")
    assert "of the traffic" in (tmp_path / "plan.svg").read_text(encoding="utf-8")
