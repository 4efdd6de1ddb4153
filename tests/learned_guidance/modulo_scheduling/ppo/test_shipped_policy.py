"""The policy that comes with the package maps what it has not seen, on machines that it was not trained for, without sb3."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from benchmarks.lib.modulo_scheduling import kernels
from benchmarks.ppo.runs import particles
from stowplan.errors import InputError
from stowplan.frontends.dfg import lower
from stowplan.hardware.se.machines import load_machine
from stowplan.learned_guidance.modulo_scheduling.body import Body
from stowplan.learned_guidance.modulo_scheduling.ppo.policy import Policy
from stowplan.learned_guidance.modulo_scheduling.state import Mapping
from stowplan.models.modulo_scheduling.bounds import least_ii
from stowplan.models.modulo_scheduling.verify import verify
from stowplan.portfolio.modulo_scheduling.learned import POLICY
from tests.learned_guidance.modulo_scheduling.graphs import butterflies, chain, distance

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy.load(POLICY.path)


def test_small_kernels_at_the_least_interval(policy: Policy) -> None:
    for problem in (distance(), lower(kernels.vector_add()), lower(kernels.multiply_add()), chain(4, back=1)):
        found = policy.place(particles(Body(problem), least_ii(problem), 16), np.random.default_rng(0), resample=True)
        best = min((each for each in found if each.current < 0), key=lambda each: each.makespan)
        assert verify(problem, best.plan(list_scheduled=True)).ok


@pytest.mark.parametrize("machine", ["mesh-3x3", "torus-4x4", "mesh-5x5"])
def test_other_machines(policy: Policy, machine: str) -> None:
    problem = chain(12, machine=load_machine(machine))
    mapping = policy.place([Mapping(problem, 2)], np.random.default_rng(0), temperature=0.0)[0]
    assert mapping.current < 0
    assert verify(problem, mapping.plan()).ok


def test_batches_of_different_graphs_and_a_stop(policy: Policy) -> None:
    chance = np.random.default_rng(0)
    mixed = [Mapping(distance(), 3), Mapping(butterflies(), 4), Mapping(distance(), 2)]
    alone = [each.copy() for each in mixed]
    together = policy.place(mixed, chance, temperature=0.0)
    for one, two in zip(together, alone, strict=True):
        assert np.array_equal(one.tile, policy.place([two], chance, temperature=0.0)[0].tile)
    stopped = policy.place([Mapping(distance(), 3)], chance, stop=lambda: True)[0]
    assert stopped.placed == 0


@pytest.mark.slow
def test_it_is_loaded_without_what_trained_it() -> None:
    code = (
        "import sys; from stowplan.learned_guidance.modulo_scheduling.ppo.policy import Policy; "
        f"Policy.load({str(POLICY.path)!r}); "
        "sys.exit(bool({'stable_baselines3', 'sb3_contrib', 'torch_geometric', 'gymnasium'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_it_says_where_it_is_from_and_is_small(policy: Policy) -> None:
    assert policy.file is not None
    assert policy.file.provenance.moves > 0
    assert all(name.startswith("generated") for name in policy.file.provenance.programs)
    assert POLICY.path.stat().st_size < 1_000_000


def test_damaged_policies_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.pt"
    path.write_bytes(POLICY.path.read_bytes()[:1000])
    with pytest.raises(InputError, match=r"damaged"):
        Policy.load(path)
