"""Copies that share slow memory's bandwidth, against a plain reference that lets time pass in small steps."""

from __future__ import annotations

import random

import msgspec
import pytest

from stowplan.hardware.simulator import play, play_shared
from stowplan.models.memory_mapping.plan import Copy, Plan
from stowplan.models.memory_mapping.problem import Problem
from tests.models.memory_mapping.cases import random_problem

#: A byte takes a picosecond.
BANDWIDTH = 10**12


def case(seed: int) -> tuple[Problem, Plan, list[int], list[int]]:
    """A problem with copies drawn at random, durations, and traffic of steps that never exceeds the bandwidth."""
    rng = random.Random(seed)
    problem = random_problem(rng)
    copies = []
    for _ in range(rng.randrange(1, 7)):
        start, end = sorted(rng.choices(range(problem.horizon + 1), k=2))
        copies.append(Copy(rng.randrange(len(problem.tensors)), rng.choice(["in", "out"]), start, end))
    copies.sort(key=lambda copy: copy.start)
    plan = Plan(problem=problem.digest, objective=0, copies=tuple(copies))
    durations = [rng.randrange(0, 60) for _ in range(problem.horizon)]
    return problem, plan, durations, [rng.randrange(0, each + 1) for each in durations]


def plain_stall(
    problem: Problem, plan: Plan, durations: list[int], slow: list[int], *, engines: int, latency: int, part: int = 64
) -> float:
    """Time passes in parts of a picosecond; what waits is counted."""
    sizes = [problem.tensors[copy.tensor].size for copy in plan.copies]
    delay, left = [latency * part] * len(sizes), [size * float(part) for size in sizes]
    queue: list[int] = []
    stall = 0

    def pass_one(rate: float) -> None:
        active = queue[:engines]
        moving = [number for number in active if not delay[number]]
        for number in active:
            if delay[number]:
                delay[number] -= 1
            else:
                left[number] -= rate / len(moving)
        queue[:] = [number for number in queue if delay[number] or left[number] > 1e-6]

    for boundary in range(problem.horizon + 1):
        due = [number for number, copy in enumerate(plan.copies) if copy.end == boundary]
        while any(number in queue for number in due):
            pass_one(1.0)
            stall += 1
        queue += [number for number, copy in enumerate(plan.copies) if copy.start == boundary]
        while any(number in queue for number in due):
            pass_one(1.0)
            stall += 1
        if boundary < problem.horizon:
            for _ in range(durations[boundary] * part):
                pass_one(max(0.0, 1 - slow[boundary] / durations[boundary]))
    return stall / part


@pytest.mark.parametrize("seed", range(60))
def test_it_equals_a_plain_reference(seed: int) -> None:
    problem, plan, durations, slow = case(seed)
    small = tuple(msgspec.structs.replace(tensor, size=1 + tensor.size % 37) for tensor in problem.tensors)
    problem = msgspec.structs.replace(problem, tensors=small)
    for engines, latency in ((1, 0), (2, 3), (4, 5)):
        found = play_shared(problem, plan, durations, slow, bandwidth=BANDWIDTH, engines=engines, latency_ps=latency)
        expected = plain_stall(problem, plan, durations, slow, engines=engines, latency=latency)
        assert found.stall_ps == pytest.approx(expected, abs=0.5 + len(plan.copies) * 0.3)
        assert found.total_ps == pytest.approx(sum(durations) + found.stall_ps, abs=2)
        assert len(found.transfers) == len(plan.copies)
        # No byte is moved for nothing.
        moved = sum(problem.tensors[copy.tensor].size for copy in plan.copies)
        assert found.total_ps >= moved + sum(slow) - 2 or not plan.copies or max(c.end for c in plan.copies) < problem.horizon


@pytest.mark.parametrize("seed", range(40))
def test_without_other_traffic_one_engine_is_the_copy_engine_of_the_rules(seed: int) -> None:
    problem, plan, durations, _ = case(seed)
    tensors = tuple(
        msgspec.structs.replace(tensor, copy_in_ps=7 + tensor.size, copy_out_ps=7 + tensor.size) for tensor in problem.tensors
    )
    problem = msgspec.structs.replace(problem, tensors=tensors, channels=1)
    found = play_shared(problem, plan, durations, [0] * len(durations), bandwidth=BANDWIDTH, engines=1, latency_ps=7)
    assert found.stall_ps == pytest.approx(play(problem, plan, durations).stall_ps, abs=2)


def test_a_step_that_takes_all_of_the_bandwidth_leaves_copies_nothing() -> None:
    problem, _, _, _ = case(0)
    size = problem.tensors[0].size
    plan = Plan(problem=problem.digest, objective=0, copies=(Copy(0, "in", 0, 1),))
    durations = [size, *[0] * (problem.horizon - 1)]

    def stall(slow: int) -> int:
        traffic = [slow, *[0] * (problem.horizon - 1)]
        return play_shared(problem, plan, durations, traffic, bandwidth=BANDWIDTH, engines=1, latency_ps=0).stall_ps

    assert stall(0) == 0
    assert stall(size) == size
    # A step that would need more than the bandwidth does not end later, and copies do not move in it either.
    assert stall(2 * size) == size
    assert stall(size // 2) == pytest.approx(size / 2, abs=1)
