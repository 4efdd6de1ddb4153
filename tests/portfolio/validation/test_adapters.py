"""What kinds bring: decisions that are kept, by brute force; policies that play without torch's randomness, by seed."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks.lib.modulo_scheduling import kernels
from benchmarks.lib.tier_placement.variants import generated
from stowplan.deadline import Deadline
from stowplan.errors import InputError, MissingDependencyError
from stowplan.frontends.dfg import lower
from stowplan.kernel.kind import kind, kind_of
from stowplan.models.memory_mapping.cpsat import solve as solve_exactly
from stowplan.models.memory_mapping.problem import Step, Table
from stowplan.models.memory_mapping.verify import verify as verify_mapping
from stowplan.models.modulo_scheduling.cpsat import solve as solve_modulo
from stowplan.models.modulo_scheduling.verify import verify as verify_modulo
from stowplan.models.tier_placement.milp import solve_milp
from stowplan.models.tier_placement.plan import Plan as TierPlan
from stowplan.models.tier_placement.structure import Structure
from stowplan.models.tier_placement.verify import verify as verify_tiers
from stowplan.portfolio.memory_mapping import validation
from stowplan.portfolio.memory_mapping.validation import FastOrSlow, with_uses
from stowplan.portfolio.modulo_scheduling.validation import Placed, Places, PpoPlayer, with_places
from stowplan.portfolio.tier_placement import validation as tier_validation
from stowplan.portfolio.tier_placement.validation import Tiers
from stowplan.portfolio.validation import policies
from stowplan.portfolio.validation.adapter import Effort
from stowplan.portfolio.validation.policies import Policies
from tests.models.memory_mapping.cases import random_problem
from tests.models.tier_placement.cases import random_problem as random_tiers
from tests.patience import HANG
from tests.portfolio.validation.players import BEST, ONE_BAD, ONE_BAD_COST, OPTIMUM, Scripted, four_reads

EFFORT = Effort(HANG, None, 0, 0, Deadline())


def never() -> bool:
    return False


# Memory mapping


def test_uses_are_kept_fast_or_slow() -> None:
    problem = four_reads()
    free = with_uses(problem, {}, OPTIMUM)
    assert free == problem
    for fast in itertools.product((False, True), repeat=4):
        if sum(fast) < 4:
            found = solve_exactly(with_uses(problem, dict(enumerate(fast)), problem.all_slow_ps), time_limit=HANG).plan
            assert found.fast_uses == tuple(use for use, is_fast in enumerate(fast) if is_fast)


@pytest.mark.parametrize("seed", range(4))
def test_of_random_programs_the_best_plan_with_its_own_uses_is_as_good(seed: int) -> None:
    problem = msgspec.structs.replace(random_problem(random.Random(seed), steps=5, tensors=4), channels=1)
    best = solve_exactly(problem, time_limit=HANG).plan
    fast = frozenset(best.fast_uses)
    held = with_uses(problem, {use: use in fast for use in range(problem.use_count)}, best.objective)
    again = solve_exactly(held, time_limit=HANG).plan
    assert again.objective == best.objective
    assert again.fast_uses == best.fast_uses
    assert verify_mapping(problem, msgspec.structs.replace(again, problem=problem.digest)).ok


def test_uses_of_steps_with_tables_are_kept() -> None:
    problem = four_reads()
    with_tables = msgspec.structs.replace(
        problem,
        steps=tuple(
            Step(step.name, step.opcode, 1, step.uses, (), Table((0,), (10, 10 - 9))) if step.uses else step
            for step in problem.steps
        ),
    )
    held = with_uses(with_tables, {0: False, 3: True}, with_tables.all_slow_ps)
    found = solve_exactly(held, time_limit=HANG).plan
    assert 0 not in found.fast_uses
    assert 3 in found.fast_uses


def test_moves_by_name_and_what_they_leave() -> None:
    problem = four_reads()
    game = Scripted()._play(problem, ONE_BAD)
    decisions = FastOrSlow(problem, game.plan, ONE_BAD)
    assert list(decisions.names) == ["copy t0 for read 0", "copy t1 for read 1", "drop t2 for read 2", "copy t3 for read 3"]
    found = [decisions.best(count, EFFORT) for count in range(5)]
    assert [each.objective - OPTIMUM for each in found] == [0, 0, 0, ONE_BAD_COST, ONE_BAD_COST]
    assert all(each.objective == each.bound for each in found)


def test_large_programs_are_completed_by_the_portfolio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "PACE", msgspec.structs.replace(validation.PACE, complete_model_uses=0))
    problem = four_reads()
    decisions = FastOrSlow(problem, Scripted()._play(problem, ONE_BAD).plan, ONE_BAD)
    # Proven sooner than any limit.
    assert decisions.best(3, EFFORT) == (OPTIMUM + ONE_BAD_COST, OPTIMUM + ONE_BAD_COST)


# Tier placement


@pytest.mark.parametrize("seed", range(12))
def test_pinned_tensors_stay_where_they_are(seed: int) -> None:
    problem = random_tiers(seed, layers=3)
    structure, chance = Structure(problem), random.Random(seed)
    tiers = range(len(problem.tiers))
    fitting = [list(each) for each in itertools.product(tiers, repeat=len(structure.tensors)) if structure.fits(list(each))]
    if not fitting:
        return
    shown = chance.choice(fitting)
    count = chance.randrange(len(shown) + 1)
    pins = {(tensor.layer, tensor.is_output): shown[at] for at, tensor in enumerate(structure.tensors[:count])}
    outcome = solve_milp(problem, time_limit=HANG, pins=pins)
    best = min(structure.latency_ps(each) for each in fitting if each[:count] == shown[:count])
    assert outcome.plan is not None
    assert (outcome.status, outcome.plan.objective) == ("optimal", best)
    assert verify_tiers(problem, outcome.plan).ok


def test_tensors_by_name_and_what_they_leave() -> None:
    problem = random_tiers(3, layers=3)
    structure = Structure(problem)
    slow = TierPlan(
        problem=problem.digest,
        objective=structure.latency_ps([0] * len(structure.tensors)),
        weight_tiers=(0,) * len(problem.layers),
        output_tiers=(0,) * len(problem.layers),
    )
    decisions = Tiers(problem, slow)
    assert len(decisions.names) == len(structure.tensors)
    assert decisions.names[-1] == f"output of {problem.layers[-1].name} in {problem.tiers[0].name}"
    if structure.fits([0] * len(structure.tensors)):
        values = [decisions.best(count, EFFORT).objective for count in range(len(decisions.names) + 1)]
        assert values == sorted(values)
        assert values[-1] == slow.objective


# Modulo scheduling


def test_pinned_instructions_and_what_they_leave() -> None:
    problem = lower(kernels.distance())
    best = solve_modulo(problem, time_limit=HANG).plan
    assert best is not None
    placed = [Placed(at, *each) for at, each in enumerate(zip(best.tiles, best.slots, strict=True))]
    decisions = Places(problem, best, placed)
    assert decisions.names[0].startswith(f"{problem.instructions[0].id} on tile {best.tiles[0]}, slot ")
    assert decisions.best(len(placed), EFFORT).objective == best.objective
    held = solve_modulo(with_places(problem, placed[:2]), time_limit=HANG).plan
    assert held is not None
    assert (held.tiles[:2], held.slots[:2]) == (best.tiles[:2], best.slots[:2])
    # Two on one tile in one slot: nothing is left, and it costs what the policy came to.
    worse = msgspec.structs.replace(best, objective=best.objective + 1_000_000)
    clash = Places(problem, worse, [placed[0], placed[1]._replace(tile=placed[0].tile, slot=placed[0].slot)])
    assert clash.best(1, EFFORT).objective == best.objective
    assert clash.best(2, EFFORT) == (worse.objective, worse.objective)


def test_a_mapper_plays_by_seed_and_its_plans_are_valid() -> None:
    torch = pytest.importorskip("torch")
    from stowplan.learned_guidance.modulo_scheduling.ppo.config import PpoConfig
    from stowplan.learned_guidance.modulo_scheduling.ppo.network import Network
    from stowplan.learned_guidance.modulo_scheduling.ppo.policy import Policy

    torch.set_num_threads(1)
    torch.manual_seed(0)
    player = PpoPlayer(Policy(Network(PpoConfig(hidden=8, layers=1, heads=2))))
    problem = lower(kernels.distance())
    likeliest = player.likeliest(problem, never)
    assert likeliest is not None
    assert verify_modulo(problem, likeliest.plan).ok
    assert likeliest == player.likeliest(problem, never)
    one, again, other = (player.sampled(problem, 3, seed, never) for seed in (1, 1, 2))
    assert one == again
    assert one != other
    for game in one:
        assert game.plan is None or verify_modulo(problem, game.plan).ok
        assert len(game.estimates) == sum(len(placed) for placed in game.trace.values())
        assert all(math.isfinite(each.value) and math.isfinite(each.returned) for each in game.estimates)
    assert player.sampled(problem, 3, 1, lambda: True) == []
    searched = player.searched(problem, 1, never)
    assert searched == player.searched(problem, 1, never)
    assert searched is not None
    assert verify_modulo(problem, searched.plan).ok
    assert searched.plan.objective <= likeliest.plan.objective
    assert player.searched(problem, 1, lambda: True) is None


def test_a_network_searches_no_worse_than_its_map(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(tier_validation, "EVALUATIONS", 20)
    problem = generated(np.random.default_rng(0), layers=10)
    player = Policies().of(kind_of(problem)).policy
    likeliest, searched = player.likeliest(problem, never), player.searched(problem, 0, never)
    assert likeliest is not None
    assert searched is not None
    assert verify_tiers(problem, searched.plan).ok
    assert searched.plan.objective <= likeliest.plan.objective
    assert player.searched(problem, 0, lambda: True) is None


# Policies


def test_every_kind_with_a_policy_has_an_adapter_of_its_own_format() -> None:
    named = ("memory_mapping", "tier_placement", "modulo_scheduling")
    adapters = [kind(name).extras().adapter for name in named]
    assert len({adapter.format for adapter in adapters if adapter is not None}) == 3


def test_files_that_are_no_policies(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    broken, other = tmp_path / "broken.pt", tmp_path / "other.pt"
    broken.write_bytes(b"PK nothing")
    torch.save({"format": "stowplan.ppo.checkpoint"}, other)
    with pytest.raises(InputError, match=r"broken\.pt: not a policy, or a damaged one"):
        Policies([broken])
    with pytest.raises(InputError, match=r"other\.pt: format: found format 'stowplan\.ppo\.checkpoint', expected one of"):
        Policies([other])
    with pytest.raises(InputError, match="cannot read"):
        Policies([tmp_path / "none.pt"])


def test_a_policy_of_another_kind_and_a_second_one() -> None:
    pytest.importorskip("torch")
    adapter = kind("modulo_scheduling").extras().adapter
    assert adapter is not None
    ppo = adapter.source.path
    with pytest.raises(InputError, match="found a second policy of modulo scheduling"):
        Policies([ppo, ppo])
    named = Policies([ppo])
    assert Path(named.of(kind_of(four_reads())).path).name == "mmap_muzero.pt"
    assert [str(each) for each in named.idle({"memory_mapping"})] == [
        f"{ppo}: found a policy of modulo scheduling, and no problem for it in the suite"
    ]
    assert not named.idle({"modulo_scheduling"})


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install '\.\[learned\]'"):
        Policies()


def test_an_untrained_control_depends_on_the_seed_alone() -> None:
    pytest.importorskip("torch")
    problem = four_reads()
    opened = Policies(seed=3).of(kind_of(problem))
    again = Policies(seed=3).of(kind_of(problem)).control
    played = opened.control.sampled(problem, 4, 0, never)
    assert [each.reward for each in played] == [each.reward for each in again.sampled(problem, 4, 0, never)]
    assert [each.estimates for each in played] == [each.estimates for each in again.sampled(problem, 4, 0, never)]
    likeliest = opened.policy.likeliest(problem, never)
    assert likeliest is not None
    assert verify_mapping(problem, likeliest.plan).ok
    assert [each.position for each in likeliest.estimates] == list(range(len(BEST)))
    assert likeliest.estimates[0].returned >= likeliest.estimates[-1].returned
    searched = opened.policy.searched(problem, 0, never)
    assert searched is not None
    assert verify_mapping(problem, searched.plan).ok
    assert opened.policy.searched(problem, 0, lambda: True) is None
