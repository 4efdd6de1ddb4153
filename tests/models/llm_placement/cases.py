"""Small LLM placement problems, and their optima by trying every placement and asking the verifier."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import msgspec

from stowplan.models.llm_placement.plan import Plan
from stowplan.models.llm_placement.problem import Device, Layer, MicroBatch, Part, Problem
from stowplan.models.llm_placement.verify import verify


def random_problem(seed: int, most: int = 4) -> Problem:
    """Up to ``most`` layers and an output layer, up to two devices and two micro-batches; some memories are too small."""
    chance = random.Random(seed)
    batches = chance.randint(1, 2)

    def part(size: int) -> Part:
        return Part(
            bytes=size,
            step_bytes=chance.choice([size, size, size // 2]),
            batch_bytes=tuple(chance.choice([size, size // 2]) for _ in range(batches)),
            batch_flops=tuple(chance.randint(0, 400) for _ in range(batches)),
        )

    def layer(name: str, parts: int) -> Layer:
        return Layer(
            name=name,
            fixed=part(chance.randint(0, 6)),
            spillable=tuple(part(chance.randint(0, 5)) for _ in range(parts)),
            cache_bytes=chance.randint(0, 3),
            step_cache_bytes=chance.randint(0, 3),
            batch_cache_bytes=tuple(chance.randint(0, 9) for _ in range(batches)) if chance.random() < 0.5 else (),
            batch_cache_flops=tuple(chance.randint(0, 99) for _ in range(batches)) if chance.random() < 0.5 else (),
        )

    def device(name: str, capacity: int) -> Device:
        return Device(
            name=name,
            capacity=capacity,
            margin=chance.randint(0, 2),
            compute_bytes=tuple(chance.randint(0, 2) for _ in range(batches)),
            weight_rate=chance.randint(1, 50),
            cache_rate=chance.randint(1, 50),
            compute_rate=chance.randint(1, 500),
            link_rate=chance.randint(1, 90),
            link_ps=chance.choice([0, 10**9, 10**11]),
            layer_ps=chance.choice([0, 10**9]),
            copies_weights=chance.random() < 0.5,
        )

    kinds = [layer(f"kind {number}", chance.randint(0, 2)) for number in range(2)]
    count = chance.randint(1, most)
    layers = [msgspec.structs.replace(chance.choice(kinds), name=f"layer {number}") for number in range(count)]
    output = msgspec.structs.replace(layer("output", 0), cache_bytes=0, step_cache_bytes=0)
    return Problem(
        layers=(*layers, output),
        host=device("host", chance.choice([15, 30, 60])),
        devices=tuple(
            device(f"device {number}", chance.choice([0, *[chance.randint(4, 40)] * 5]))
            for number in range(chance.randint(0, 2))
        ),
        micro_batches=tuple(
            MicroBatch(size=size, tokens=min(size, chance.choice([8, 40])), batches=chance.randint(1, 3))
            for size in (16, 64)[:batches]
        ),
        steps=chance.randint(1, 5),
        host_bytes=chance.randint(0, 4),
        hidden_bytes=chance.randint(0, 3),
        slots=chance.randint(1, 2),
        name=f"random {seed}",
    )


def every_plan(problem: Problem) -> list[Plan]:
    """All plans with memories and parts that exist, with the objective that the verifier gives them."""
    plans = []
    for plan in _choices(problem):
        objective = verify(problem, plan).objective
        assert objective is not None
        plans.append(msgspec.structs.replace(plan, objective=objective))
    return plans


def _choices(problem: Problem) -> Iterator[Plan]:
    options = [
        [
            (0, 0),
            *(
                (memory, spilled)
                for memory in range(1, 1 + len(problem.devices))
                for spilled in range(1 + len(layer.spillable))
            ),
        ]
        for layer in problem.layers
    ]
    for batch in range(len(problem.micro_batches)):
        for choice in itertools.product(*options):
            yield Plan(
                problem=problem.digest,
                objective=0,
                memories=tuple(memory for memory, _ in choice),
                spilled=tuple(spilled for _, spilled in choice),
                micro_batch=batch,
            )


def least_time(problem: Problem) -> int | None:
    """Optimum by trying everything; None where nothing fits."""
    best = None
    for plan in _choices(problem):
        found = verify(problem, plan)
        if {violation.code for violation in found.violations} <= {"wrong_objective"}:
            assert found.objective is not None
            best = found.objective if best is None else min(best, found.objective)
    return best
