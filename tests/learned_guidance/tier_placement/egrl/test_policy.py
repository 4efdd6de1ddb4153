"""A policy on networks: posteriors, plans of one forward pass; what it says where it cannot."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch")

from stowplan.errors import InputError
from stowplan.learned_guidance.tier_placement.egrl.policy import Policy
from stowplan.learned_guidance.training import checkpoint
from stowplan.models.tier_placement.problem import Tier
from stowplan.models.tier_placement.verify import verify
from tests.learned_guidance.tier_placement.policies import small_network, write_policy


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_policy(tmp_path_factory.mktemp("policy") / "egrl.pt")


@pytest.fixture(scope="module")
def policy(path: Path) -> Policy:
    return Policy.load(path)


def test_posteriors_and_plans_of_networks_of_any_size(policy: Policy) -> None:
    for count in (1, 2, 12, 30):
        problem = small_network(count)
        found = policy.posterior(problem)
        assert found.shape == (count, 2, 2)
        assert found.dtype == np.float32
        assert np.allclose(found.sum(-1), 1.0, atol=1e-6)
        plan = policy.place(problem)
        assert verify(problem, plan).ok
        assert plan == policy.place(problem)


def test_offsets_where_tiers_are_address_spaces(policy: Policy) -> None:
    problem = small_network(address_spaces=True)
    plan = policy.place(problem)
    assert len(plan.weight_offsets) == 12
    assert verify(problem, plan).ok


def test_the_digest_is_the_files(policy: Policy, path: Path) -> None:
    import hashlib

    assert policy.file.digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_what_it_was_not_trained_for(policy: Policy) -> None:
    problem = small_network()
    without = msgspec.structs.replace(problem, features=())
    more = msgspec.structs.replace(problem, tiers=(*problem.tiers, Tier(name="faster", capacity=10, bandwidth=10**13)))
    for method in (policy.posterior, policy.place):
        with pytest.raises(InputError, match="found no node features"):
            method(without)
        with pytest.raises(InputError, match="found a chip of 3 tiers, expected 2, as the policy was trained with"):
            method(more)


def test_files_that_are_no_policies(tmp_path: Path, path: Path) -> None:
    bad = tmp_path / "bad.pt"
    bad.write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"not a stowplan\.egrl\.policy file"):
        Policy.load(bad)
    from stowplan.learned_guidance.tier_placement.egrl.checkpoint import POLICY

    content = checkpoint.load(path, POLICY)
    shape = {**content.values["shape"], "hidden": 16}
    checkpoint.save(bad, POLICY, content.config, content.provenance, {**content.values, "shape": shape})
    with pytest.raises(InputError, match="do not fit"):
        Policy.load(bad)
