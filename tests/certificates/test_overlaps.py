"""Certificates of packings whose buffers may share bytes: against all offsets, tried one by one."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from stowplan import files
from stowplan.certificates.checker import check_parsed
from stowplan.certificates.checker.reading import MalformedError, UnprovenError, digest
from stowplan.certificates.maker import certify
from stowplan.models.packing.overlaps import loads, without_overlaps
from stowplan.models.packing.problem import Buffer, Overlap, Problem
from tests.certificates.test_checker import mutated, verdict_of
from tests.certificates.test_search_and_tree import shows
from tests.models.packing.overlaps import least_height, random_overlaps

Json = dict[str, Any]


def rules_of(problem: Problem) -> Json:
    """The problem as the checker reads it."""
    return dict(json.loads(files.encode(problem)))


@pytest.mark.parametrize(("block", "same"), [*((block, False) for block in range(4)), (4, True), (5, True)])
def test_what_is_shown_is_true_and_reaches_the_optimum(block: int, same: bool) -> None:
    forms: dict[str, int] = {"load": 0, "search": 0}
    gained = 0
    for seed in range(100 * block, 100 * block + 100):
        problem = random_overlaps(seed, same=same)
        best = least_height(problem)
        rules = rules_of(problem)
        for moment, taken in loads(problem).items():
            shown = shows("packing", rules, {"form": "load", "moment": moment})
            assert shown == taken, seed
            assert best is None or shown <= best, seed
        found = certify(problem, bound=best, infeasible=best is None)
        assert found.bound == best, seed
        assert found.is_proof, seed
        forms[found.form] += 1
        if best is None:
            continue
        found.check(problem)
        if best:
            assert shows("packing", rules, {"form": "search", "below": best}) == best, seed
        with pytest.raises(UnprovenError, match="there is a packing"):
            shows("packing", rules, {"form": "search", "below": best + 1})
        gained += best < (least_height(without_overlaps(problem)) or 0)
    assert forms["load"] > 50
    assert forms["search"] > 2
    assert gained > 12


def test_no_mutant_claims_too_much() -> None:
    rng = random.Random(0)
    tried = accepted = 0
    for seed in range(150):
        problem = random_overlaps(seed, same=seed % 3 == 2)
        best = least_height(problem)
        rules, stated = rules_of(problem), json.loads(files.encode(certify(problem, bound=best, infeasible=best is None)))
        for _ in range(20):
            tried += 1
            verdict = verdict_of(rules, mutated(stated, rng))
            if verdict is not None:
                accepted += 1
                assert best is None or (verdict.bound is not None and verdict.bound <= best), seed
    assert 100 < accepted < tried


def test_a_proof_for_other_overlaps_claims_no_more_than_holds() -> None:
    """Proofs of problems in which less may be shared, as if they were for those in which more may."""
    rng, refused = random.Random(1), 0
    for seed in range(200):
        problem = random_overlaps(seed)
        best = least_height(problem)
        changed = tuple(
            msgspec.structs.replace(
                buffer,
                overlaps=tuple(
                    Overlap(operand=each.operand, distance=0) for each in buffer.overlaps or () if rng.random() < 0.7
                ),
            )
            for buffer in problem.buffers
        )
        other = rules_of(msgspec.structs.replace(problem, buffers=changed))
        stated = json.loads(files.encode(certify(problem, bound=best, infeasible=best is None)))
        if digest(other) != stated["problem"]:
            with pytest.raises(UnprovenError, match="digests differ"):
                check_parsed(other, stated)
        verdict = verdict_of(other, stated | {"problem": digest(other)})
        least = least_height(msgspec.structs.replace(problem, buffers=changed))
        refused += verdict is None
        assert verdict is None or least is None or (verdict.bound is not None and verdict.bound <= least), seed
    assert refused > 5


def test_a_gap_that_no_offsets_close_is_searched() -> None:
    """Two buffers may share most of their bytes, but not below one that has its place above them."""
    buffers = (
        Buffer(id="a", lower=0, upper=2, size=8),
        Buffer(id="fixed", lower=0, upper=4, size=1, offset=8),
        Buffer(id="b", lower=1, upper=3, size=8, overlaps=(Overlap(operand="a", distance=10),)),
    )
    problem = Problem(buffers=buffers)
    best = least_height(problem)
    assert best is not None
    found = certify(problem, bound=best)
    assert (found.bound, found.form) == (best, "search")
    assert max(loads(problem).values()) < best


@pytest.mark.parametrize(
    ("overlaps", "message"),
    [
        ([{"operand": "a"}], None),
        ([{"operand": "a", "distance": "="}], "distance"),
        ([{"operand": "a", "distance": -1}], "distance"),
        ([{"operand": "a", "distance": 1, "more": 1}], "more"),
        ([{"operand": 1, "distance": 1}], "operand"),
        ({"operand": "a", "distance": 1}, "a list"),
        ("a", "a list"),
    ],
)
def test_overlaps_are_read_strictly(overlaps: Any, message: str | None) -> None:
    buffers = (Buffer(id="a", lower=0, upper=2, size=8), Buffer(id="b", lower=1, upper=3, size=8))
    rules = rules_of(Problem(buffers=buffers))
    rules["buffers"][1]["overlaps"] = overlaps
    with pytest.raises(MalformedError, match=message):
        shows("packing", rules, {"form": "load", "moment": 1})
