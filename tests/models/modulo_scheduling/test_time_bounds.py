"""What bounds on times say beforehand, against all plans and against models that do not know it."""

from __future__ import annotations

import random

import pytest

from stowplan.models.modulo_scheduling import cpsat
from stowplan.models.modulo_scheduling.bounds import recurrence_mii, sharing_tiles, time_bounds
from stowplan.models.modulo_scheduling.cpsat import model as cpsat_model
from stowplan.models.modulo_scheduling.machine import AsynchronousFabric
from stowplan.models.modulo_scheduling.plan import decode_objective
from stowplan.models.modulo_scheduling.problem import Instruction, Operand, Pin, Problem, Rules
from stowplan.models.modulo_scheduling.structure import Structure
from tests.models.modulo_scheduling.brute_force import Reference
from tests.models.modulo_scheduling.cases import graph, line
from tests.patience import HANG


def cyclic_problem(seed: int, most: int) -> Problem:
    """A ring of instructions with little time to spare, chords, and some that only take its values."""
    chance = random.Random(seed)
    machine = line(chance.choice([2, 3, 4]), latency=chance.choice([1, 2, 3]), spoke_depth=16)
    machine = chance.choice([machine, line(3, latency=1, spoke_depth=16, asynchronous=AsynchronousFabric(latency=2))])
    count = chance.randint(2, most)
    ring = chance.randint(2, count)
    operands: list[list[Operand]] = [[] for _ in range(count)]
    for at in range(ring):
        operands[at].append(Operand(instruction=f"i{(at or ring) - 1}", distance=0 if at else chance.choice([1, 1, 2])))
    for _ in range(chance.choice([0, 1, 2])):
        source, target = chance.randrange(ring), chance.randrange(ring)
        operands[target].append(Operand(instruction=f"i{source}", distance=int(source >= target) + chance.choice([0, 0, 1])))
    for at in range(ring, count):
        is_sent = machine.asynchronous is not None
        operands[at].append(Operand(instruction=f"i{chance.randrange(at)}", asynchronous=is_sent and chance.random() < 0.5))
    latencies = [chance.choice([None, None, 1, 4]) if seed % 3 == 0 else None for _ in range(count)]
    instructions = tuple(
        Instruction(id=f"i{at}", op="add", operands=tuple(each), latency=latency)
        for at, (each, latency) in enumerate(zip(operands, latencies, strict=True))
    )
    pins = [Pin(instruction=f"i{chance.randrange(count)}", time=chance.choice([None, 3]), slot=chance.choice([None, 0]))]
    rules = Rules(
        max_delay=chance.choice([None, None, None, 1]),
        pass_through=chance.random() < 0.2,
        siblings=chance.choice(["consumers", "none"]),
    )
    return Problem(instructions=instructions, machine=machine, pins=tuple(pins[: chance.random() < 0.2]), rules=rules)


def test_slack_by_hand() -> None:
    # 9 clocks around: at an II of 9 nothing can leave the tile, at 10 there is no time for the way back.
    ring = Structure(graph("a>b b>c c>a:1"))
    for ii in (9, 10):
        assert sharing_tiles(ring, ii) == [(0, 1, 2)]
    assert sharing_tiles(ring, 11) == []
    (found,) = time_bounds(ring, 10)
    assert found.members == (0, 1, 2)
    assert found.least.tolist() == [[0, 3, 6], [-4, 0, 3], [-7, -4, 0]]
    assert found.windows(0, 100) == [(0, 0), (3, 4), (6, 7)]
    assert found.windows(0, 6) == [(0, 0), (3, 4), (6, 6)]
    assert not found.is_refuted
    assert all(each.is_refuted for each in time_bounds(ring, 8))
    # With a limit on delays, whole flows are bounded: b is 3 to 3 + 2 + 1 clocks after a, over two clocks of links.
    (flow,) = time_bounds(Structure(graph("a>b", rules=Rules(max_delay=1))), 2, whole=True)
    assert flow.windows(0, 100) == [(0, 0), (3, 6)]
    assert time_bounds(Structure(graph("a>b")), 2, whole=True) == []
    # b and c take one value and stand apart, so that a link is between a and one of them; which one is not known beforehand.
    (forked,) = time_bounds(Structure(graph("a>b a>c b>a:1 c>a:1")), 8)
    assert forked.windows(forked.members.index(0), 100)[1:] == [(3, 5), (3, 5)]


def test_every_plan_is_within() -> None:
    """All plans of small problems: within the windows, and on one tile where that is said."""
    plans = bound = 0
    for seed in range(250):
        problem = cyclic_problem(seed, most=3)
        structure, reference = Structure(problem), Reference(problem)
        ii = recurrence_mii(problem, structure)
        for at, (tiles, times) in enumerate(reference.plans(ii, 8)):
            if at == 40:
                break
            plans += 1
            for each in (*time_bounds(structure, ii), *time_bounds(structure, ii, whole=True)):
                windows = each.windows(each.anchor, 1000)
                for number, (low, high) in zip(each.members, windows, strict=True):
                    assert low <= times[number] - times[each.members[each.anchor]] <= high, seed
            for together in sharing_tiles(structure, ii):
                bound += 1
                assert len({tiles[number] for number in together}) == 1, seed
    assert plans > 2000
    assert bound > 500


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(50, 300, 50))])
def test_models_find_what_they_found_without(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(first, first + 50):
        problem = cyclic_problem(seed, most=7)
        outcome = cpsat.solve(problem, time_limit=HANG)
        with monkeypatch.context() as patch:
            patch.setattr(cpsat_model, "time_bounds", lambda *_, **__: [])
            plain = cpsat.solve(problem, time_limit=HANG)
        assert outcome.status == plain.status, seed
        assert (outcome.plan is None) == (plain.plan is None), seed
        if outcome.plan is not None and plain.plan is not None:
            assert decode_objective(outcome.plan.objective) == decode_objective(plain.plan.objective), seed
