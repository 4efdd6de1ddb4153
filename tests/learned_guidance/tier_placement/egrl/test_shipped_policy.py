"""The policy that comes with the package places networks it has not seen, near the best that can be done."""

from __future__ import annotations

import pytest

from tests.paths import EXAMPLES

pytest.importorskip("torch")

import torch

import stowplan
from benchmarks.lib.tier_placement.stacked import stacked
from stowplan.hardware.nnp_i.chip import Chip
from stowplan.learned_guidance.tier_placement.egrl.policy import Policy
from stowplan.models.tier_placement.milp import relaxation
from stowplan.models.tier_placement.problem import Problem
from stowplan.models.tier_placement.verify import verify
from stowplan.portfolio.tier_placement.learned import POLICY


@pytest.fixture(scope="module")
def policy() -> Policy:
    torch.set_num_threads(1)
    return Policy.load(POLICY.path)


@pytest.mark.parametrize("precision", ["int8", "fp16"])
@pytest.mark.parametrize("name", ["resnet50", "resnet101", "bert_base_s128", "bert_base_s384"])
def test_it_places_what_it_has_not_seen(policy: Policy, name: str, precision: str) -> None:
    problem: Problem = stowplan.read(EXAMPLES / f"{name}.layers.json", "nnp-i", precision=precision)
    plan = policy.place(problem)
    found = verify(problem, plan)
    assert found.ok, found.violations
    assert plan.objective < Chip(problem).compiler_ps
    assert plan.objective < 1.05 * relaxation(problem, time_limit=60.0)[1]


def test_large_networks(policy: Policy) -> None:
    """88 copies of a network with 87 times the fast memory: as near the bound as the single one."""
    problem: Problem = stowplan.read(EXAMPLES / "resnet50.layers.json", "nnp-i", precision="int8")
    large = stacked(problem, 5_000, scaled=True)
    plan = policy.place(large)
    assert verify(large, plan).ok
    # 9.393 ms is the bound of the linear relaxation (docs/results/tier-placement.md).
    assert plan.objective < 1.008 * 9_393_000_000


def test_it_says_where_it_is_from(policy: Policy) -> None:
    provenance = policy.file.provenance
    assert provenance.programs == ("2000 generated networks of seed 1",)
    assert provenance.training_steps > 0
    assert len(policy.file.digest) == 64
