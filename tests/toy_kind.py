"""A kind that says nothing of how its plans are shown: numbers to add up."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from stowplan import files
from stowplan.portfolio.registry import Check, Kind


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Two numbers of the list shall be chosen, the smaller their sum the better."""

    numbers: tuple[int, ...]
    name: str = "sums"
    target: str = "paper"
    cost_model: str = "sum"
    format: str = "toy.problem"
    version: int = 1

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr(self.numbers).encode()).hexdigest()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Places in the list."""

    problem: str
    objective: int
    chosen: tuple[int, ...]
    target: str = ""
    format: str = "toy.plan"
    version: int = 1

    def save(self, path: str | Path) -> None:
        files.write_atomic(path, files.encode(self))


def _verify(problem: Problem, plan: Plan) -> Check:
    total = sum(problem.numbers[place] for place in plan.chosen)
    return Check(len(plan.chosen) == 2, total, () if len(plan.chosen) == 2 else ("wrong_count: choose two",))


def _plan(problem: Problem, *chosen: int) -> Plan:
    return Plan(problem=problem.digest, objective=sum(problem.numbers[place] for place in chosen), chosen=chosen)


KIND = Kind(
    name="toy",
    problem_type=Problem,
    problem_format="toy.problem",
    plan_format="toy.plan",
    decode_problem=lambda data, source=None: msgspec.json.decode(data, type=Problem),
    decode_plan=lambda data, source=None: msgspec.json.decode(data, type=Plan),
    verify=_verify,
    finish=lambda problem, plan, objective: plan,
    initial=lambda problem: {"first": _plan(problem, 0, 1)},
    bound=lambda problem: sum(sorted(problem.numbers)[:2]),
    candidates=lambda problem, options: [],
    baseline="first",
    facts=lambda problem, plan: {"numbers": len(problem.numbers), "lists": {"long": list(range(20))}},
    identity=lambda problem: {
        "program": problem.name,
        "target": problem.target,
        "cost_model": problem.cost_model,
        "digest": problem.digest,
    },
    unit="points",
)


def saved(folder: Path) -> tuple[Problem, Plan, Path, Path]:
    """A problem and its best plan, and their files."""
    problem = Problem(numbers=(5, 4, 3, 2))
    plan: Any = _plan(problem, 2, 3)
    (folder / "problem.json").write_bytes(files.encode(problem))
    plan.save(folder / "plan.json")
    return problem, plan, folder / "problem.json", folder / "plan.json"
