"""What a modulo schedule decides: tile and time of its instructions, and how their values go and wait."""

from __future__ import annotations

from stowplan.models.decisions import Decision, Values
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem


def _instructions(problem: Problem, plan: Plan) -> dict[int, Values]:
    starts = set(plan.starts)
    found: dict[int, Values] = {
        at: {"tile": tile, "time": time, "starts": at in starts}
        for at, (tile, time) in enumerate(zip(plan.tiles, plan.times, strict=True))
    }
    for at, interface in enumerate(plan.interfaces):
        if interface is not None:
            found[at]["interface"] = interface
    return found


def _values(problem: Problem, plan: Plan) -> dict[int, Values]:
    ways = zip(plan.routes, plan.delays, strict=True)
    return {at: {"links": " ".join(map(str, links)) or "none", "delay": delay} for at, (links, delay) in enumerate(ways)}


def _edge_name(problem: Problem, at: int) -> str:
    edge = problem.edges[at]
    return f"{problem.instructions[edge.source].id} to {problem.instructions[edge.target].id}"


DECISIONS = (
    Decision("instruction", lambda problem, at: problem.instructions[at].id, _instructions),
    Decision("value", _edge_name, _values),
)
