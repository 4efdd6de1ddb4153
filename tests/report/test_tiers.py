"""Pictures and numbers of memory maps: what they count, and that they are drawn."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import stowplan
from stowplan.errors import InputError, MissingDependencyError, UsageError
from stowplan.hardware.nnp_i.problem import layers_ps
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Layer, Problem, Tier
from stowplan.models.tier_placement.verify import verify
from stowplan.report import tier_placement
from stowplan.report.html import render_report
from stowplan.report.presenter import draw, presenter_for
from stowplan.report.tier_placement import contiguity, transitions, use_of_tiers
from tests.models.tier_placement.cases import random_problem

TIERS = (Tier(name="slow", capacity=1000, bandwidth=10**11), Tier(name="fast", capacity=30, bandwidth=10**12))


def network() -> Problem:
    """Four layers in a row; the second has no weights, and the last reads the first's output too."""
    inputs = ((), (0,), (1,), (0, 2))
    layers = [
        Layer(name=f"l{number}", inputs=inputs[number], output_bytes=10, weight_bytes=0 if number == 1 else 5, compute_ps=1)
        for number in range(4)
    ]
    return Problem(tiers=TIERS, layers=tuple(layers), name="n", target="t", cost_model="c")


def plan(problem: Problem, weights: tuple[int, ...], outputs: tuple[int, ...]) -> Plan:
    found = Plan(problem=problem.digest, objective=0, weight_tiers=weights, output_tiers=outputs)
    return Plan(
        problem=problem.digest,
        objective=verify(problem, found).objective or 0,
        weight_tiers=weights,
        output_tiers=outputs,
    )


def test_transitions() -> None:
    problem = network()
    before, after = plan(problem, (0, 0, 0, 1), (1, 0, 0, 0)), plan(problem, (0, 0, 1, 1), (0, 0, 1, 0))
    assert transitions(problem, before, after, "weights").tolist() == [[1, 1], [0, 1]]
    assert transitions(problem, before, after, "outputs").tolist() == [[2, 1], [1, 0]]
    assert transitions(problem, before, after).tolist() == [[3, 2], [1, 1]]


def test_contiguity() -> None:
    problem = network()
    found = contiguity(problem, plan(problem, (0, 0, 0, 1), (1, 1, 0, 1)), "weights")
    assert (found.neighbours, found.alike, found.runs, found.longest) == (2, 1, 2, 2)
    assert found.part == 0.5
    assert found.by_chance == pytest.approx(1 / 3)
    outputs = contiguity(problem, plan(problem, (0, 0, 0, 1), (1, 1, 0, 1)), "outputs")
    assert (outputs.neighbours, outputs.alike, outputs.runs, outputs.longest) == (3, 1, 3, 2)
    alone = contiguity(problem, plan(problem, (0,) * 4, (0,) * 4), "outputs")
    assert (alone.part, alone.by_chance, alone.runs) == (1.0, 1.0, 1)


def test_use_of_tiers() -> None:
    problem = network()
    used = use_of_tiers(problem, plan(problem, (1, 0, 0, 0), (1, 0, 1, 0)))
    assert used.tolist() == [[10, 20, 20, 20], [15, 15, 25, 25]]


def test_times_are_the_verifiers() -> None:
    for seed in range(60):
        problem = random_problem(seed, layers=6)
        tiers = np.random.default_rng(seed).integers(0, len(problem.tiers), (2, len(problem.layers))).tolist()
        given = plan(problem, tuple(tiers[0]), tuple(tiers[1]))
        assert layers_ps(problem, given.weight_tiers, given.output_tiers).sum() == given.objective
        peaks = use_of_tiers(problem, given).max(axis=1)
        too_full = any(peak > tier.capacity for peak, tier in zip(peaks, problem.tiers, strict=True))
        assert too_full == any(each.code == "over_capacity" for each in verify(problem, given).violations)


def test_text(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = network()
    presenter = presenter_for(problem)
    slow, fast = plan(problem, (0,) * 4, (0,) * 4), plan(problem, (1, 0, 1, 0), (0, 1, 1, 0))
    monkeypatch.setattr(tier_placement, "LINES", 2)
    text = presenter.summarize(problem, fast, others=[("compiler", slow)])
    assert "n on t (c): " in text
    assert "from compiler (rows) to this map (columns)" in text
    assert "… and 2 more" in text
    assert presenter.summarize(problem, fast, everything=True).count("\n") == text.count("\n") - 4 + 1


def test_plans_that_do_not_fit() -> None:
    problem = network()
    good = plan(problem, (0,) * 4, (0,) * 4)
    presenter_for(problem).check_fits(problem, good)
    for given, expected in (
        ("no plan", "found a str of another kind"),
        (Plan(problem="other", objective=0, weight_tiers=(0,) * 4, output_tiers=(0,) * 4), "for another problem"),
        (Plan(problem=problem.digest, objective=0, weight_tiers=(0,) * 4, output_tiers=(2,) * 4), "a tier, 0 to 1"),
        (Plan(problem=problem.digest, objective=0, weight_tiers=(0,) * 3, output_tiers=(0,) * 4), "each of the 4 layers"),
    ):
        with pytest.raises(InputError, match=expected):
            presenter_for(problem).check_fits(problem, given)


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_pictures(tmp_path: Path, suffix: str) -> None:
    if suffix != "svg":
        pytest.importorskip("matplotlib", reason="needs matplotlib: pip install '.[viz]'")
    problem = network()
    two = [("best", plan(problem, (1, 0, 1, 0), (0, 1, 1, 0))), ("compiler", plan(problem, (0,) * 4, (0,) * 4))]
    magic = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    for name, plans in (("a", two), ("b", two), ("c", two[:1])):
        draw(problem, plans, tmp_path / f"{name}.{suffix}")
        assert (tmp_path / f"{name}.{suffix}").read_bytes().startswith(magic)
    assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()
    assert (tmp_path / f"a.{suffix}").read_bytes() != (tmp_path / f"c.{suffix}").read_bytes()
    if suffix == "svg":
        text = (tmp_path / "a.svg").read_text()
        assert all(f">{word}</text>" in text for word in ("best: weights", "compiler: outputs", "slow", "fast"))


def test_pictures_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = network()
    one = ("a", plan(problem, (0,) * 4, (0,) * 4))
    with pytest.raises(UsageError, match=r"found picture format '\.gif'"):
        draw(problem, [one], tmp_path / "a.gif")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"\.\[viz\]"):
        draw(problem, [one], tmp_path / "a.png")
    draw(problem, [one], tmp_path / "a.svg")


def test_html() -> None:
    problem = network()
    result = stowplan.solve(problem, time_limit=20, candidates="milp")
    page = render_report(problem, result)
    for heading in ("Memory map", "Tiers", "Transitions", "Contiguity", "Layers that take longest", "Candidates"):
        assert f"<h2>{heading}</h2>" in page
    assert page.count("<svg viewBox") >= 4
    assert "fast: layers " in page
    assert render_report(problem, result) == page
