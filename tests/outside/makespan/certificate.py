"""Proofs of bounds, and what the checker knows of this kind: the form ``area``."""

from __future__ import annotations

from collections.abc import Iterator

from stowplan.certificates.checker import Rules
from stowplan.certificates.checker.reading import Fields, numbers, whole
from stowplan.certificates.maker import Proof, Wish


def proofs(wish: Wish) -> Iterator[Proof]:
    """The only one there is."""
    yield {"form": "area"}


def area(problem: Fields, proof: Fields) -> int:
    """All machines work all the time, and one has the longest job."""
    jobs = numbers(problem, "jobs")
    return max(-(-sum(jobs) // whole(problem, "machines", 1)), *jobs, 0)


RULES = Rules(
    {
        "jobs": ["natural"],
        "machines": "positive",
        "name": "text",
        "format": "stowplan.makespan.problem",
        "version": 1,
    },
    {"area": area},
)
