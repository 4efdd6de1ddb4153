"""The policy that comes with the package plays programs it has not seen, and its plans are valid."""

from __future__ import annotations

import pytest

from tests.paths import EXAMPLES

pytest.importorskip("torch")

import torch

import stowplan
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame
from stowplan.learned_guidance.memory_mapping.muzero.play import Policy
from stowplan.models.memory_mapping.verify import verify
from stowplan.portfolio.memory_mapping.learned import POLICY


@pytest.fixture(scope="module")
def policy() -> Policy:
    torch.set_num_threads(1)
    return Policy.load(POLICY.path)


@pytest.mark.parametrize("name", ["alexnet_inf_b1", "lstm_scan_inf_b32", "alexnet_train_b32"])
def test_it_plays_what_it_has_not_seen(policy: Policy, name: str) -> None:
    problem = stowplan.read(EXAMPLES / f"{name}.hlo.txt.gz", target="tpu-v4")
    assert problem.digest not in policy.file.provenance.digests
    played = policy.rollout(problem)
    assert played is not None
    found = verify(problem, played.plan)
    assert found.ok, found.violations
    assert found.objective == problem.all_slow_ps - played.return_ps
    # It has learned something: random play is far from the half of what could be saved, or of what the greedy game saves.
    game = CompiledGame(problem)
    assert played.return_ps > 0.3 * min(game.unit_ps, problem.all_slow_ps - problem.all_fast_ps)


def test_it_says_where_it_is_from(policy: Policy) -> None:
    provenance = policy.file.provenance
    assert len(provenance.programs) == len(provenance.digests) > 100
    assert provenance.training_steps > 0
    assert len(policy.file.digest) == 64
