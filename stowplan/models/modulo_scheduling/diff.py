"""What two modulo schedules do differently."""

from __future__ import annotations

from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.models.plan_diff import Part, Values, compare_parts


def diff(problem: Problem, first: Plan, second: Plan) -> tuple[Part, ...]:
    """Instructions on another tile or at another time, and values that go or wait otherwise; both plans are valid."""

    def instructions(plan: Plan) -> dict[int, Values]:
        starts = set(plan.starts)
        found: dict[int, Values] = {
            at: {"tile": tile, "time": time, "starts": at in starts}
            for at, (tile, time) in enumerate(zip(plan.tiles, plan.times, strict=True))
        }
        for at, interface in enumerate(plan.interfaces):
            if interface is not None:
                found[at]["interface"] = interface
        return found

    def values(plan: Plan) -> dict[int, Values]:
        ways = zip(plan.routes, plan.delays, strict=True)
        return {at: {"links": " ".join(map(str, links)) or "none", "delay": delay} for at, (links, delay) in enumerate(ways)}

    def value_name(at: int) -> str:
        edge = problem.edges[at]
        return f"{problem.instructions[edge.source].id} to {problem.instructions[edge.target].id}"

    return (
        compare_parts("instruction", instructions(first), instructions(second), lambda at: problem.instructions[at].id),
        compare_parts("value", values(first), values(second), value_name),
    )
