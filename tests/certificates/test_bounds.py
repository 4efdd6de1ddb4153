"""Certified bounds against brute force: no certificate claims more than the best plan costs."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from stowplan import files
from stowplan.certificates.checker import check_parsed
from stowplan.certificates.checker.reading import UnprovenError, digest
from stowplan.certificates.maker import certify
from tests.certificates.cases import CASES, mapping_problem
from tests.models.memory_mapping.brute_force import optimum
from tests.models.memory_mapping.cases import with_in_flight

#: Seeds of each kind; ``python -m benchmarks.certificates.random_problems`` tries a thousand.
SEEDS = {"rematerialization": 25, "modulo_scheduling": 60} | dict.fromkeys(("packing", "operator_order"), 150)


@pytest.mark.parametrize("kind", CASES)
def test_no_certificate_claims_more_than_the_optimum(kind: str) -> None:
    tight = 0
    count = SEEDS.get(kind, 80)
    # Graphs with reservations have seeds of their own.
    reserved = range(1000, 1015) if kind == "rematerialization" else ()
    for seed in (*range(count), *reserved):
        problem, best = CASES[kind](seed)
        found = certify(problem, infeasible=best is None)
        if best is None:
            assert found.bound is None, (kind, seed)
            if found.is_proof:
                found.check(problem)
            continue
        assert found.is_proof, (kind, seed)
        assert found.check(problem).bound == found.bound
        assert found.bound is not None
        assert found.bound <= best, (kind, seed, found.bound, best)
        tight += found.bound == best
        assert not certify(problem, infeasible=True).is_proof, (kind, seed)
    # Weak proofs would pass all of the above.
    assert tight > count / 3


def random_prices(problem: Any, rng: random.Random) -> dict[str, Any]:
    """Any prices: they prove something, be it little."""
    unit = rng.choice([1, 2, 6, 12])
    dense = rng.random()
    units = [-(-tensor.size // problem.alignment) for tensor in problem.tensors]

    def price(most: int) -> int:
        return rng.randint(0, most) if rng.random() < dense else 0

    def rounds() -> list[dict[str, Any]]:
        count = rng.randint(1, 2)
        turned = [[tensor for tensor in range(len(units)) if rng.random() < 0.3] for _ in range(count)]
        return [{"divisor": rng.randint(1, 2 * max(units)), "turned": each} for each in turned]

    return {
        "form": "prices",
        "denominator": unit,
        "memory": [price(3 * unit) for _ in problem.steps],
        "channel": [price(3 * unit) for _ in problem.steps],
        "access": [rng.randint(-2 * unit, 12 * unit) if rng.random() < dense + 0.3 else 0 for _ in range(problem.use_count)],
        "preload": price(3 * unit),
        "cuts": [
            {"step": rng.randrange(problem.horizon), "price": price(2 * unit), "rounds": rounds()}
            for _ in range(rng.randint(0, 2))
        ],
    }


def shown(problem: Any, proof: dict[str, Any]) -> int:
    """What a proof shows."""
    rules = json.loads(files.encode(problem))
    kind = rules["format"].split(".")[1]
    stated = {"format": "stowplan.certificate", "version": 1, "kind": kind, "problem": digest(rules), "bound": -(10**30)}
    found = check_parsed(rules, stated | {"proof": proof}).shown
    assert found is not None
    return found


def test_prices_hold_with_asynchronous_operations() -> None:
    """The proofs know what asynchronous operations hold, and show no more than the best plan that keeps it costs."""
    known = 0
    for seed in range(60):
        rng = random.Random(f"in flight {seed}")
        problem = with_in_flight(mapping_problem(seed), rng)
        best = optimum(problem)
        for _ in range(5):
            proof = random_prices(problem, rng)
            value = shown(problem, proof)
            assert value <= best, (seed, value, best)
            known += value > shown(msgspec.structs.replace(problem, in_flight=()), proof)
        found = certify(problem)
        assert found.bound is not None
        assert found.bound <= best
    assert known > 0


def test_any_prices_prove_something_true() -> None:
    """Prices are drawn, and changed for the better as far as that goes: where the bound is best, errors would show."""
    reached = 0
    for seed in range(60):
        problem, rng = mapping_problem(seed), random.Random(seed)
        best = optimum(problem)
        proof = max((random_prices(problem, rng) for _ in range(10)), key=lambda each: shown(problem, each))
        value = shown(problem, proof)
        for _ in range(60):
            other = json.loads(json.dumps(proof))
            name = rng.choice(["memory", "channel", "access", "access", "access"])
            at = rng.randrange(len(other[name])) if other[name] else None
            if at is None:
                continue
            step = rng.randint(-2 * other["denominator"], 3 * other["denominator"])
            other[name][at] = other[name][at] + step if name == "access" else max(0, other[name][at] + step)
            try:
                found = shown(problem, other)
            except UnprovenError:
                continue
            if found >= value:
                proof, value = other, found
            assert value <= best, (seed, value, best)
        reached += value == best
    assert reached > 15
