"""The answer to a modulo scheduling problem: tile and time of every instruction, way and delay of every value. No rules."""

from __future__ import annotations

from stowplan.document import PlanDocument
from stowplan.models.decisions import Decision, Values
from stowplan.models.modulo_scheduling.problem import Problem

#: An objective is the initiation interval times this, plus the makespan: in decimal, 4000019 is an II of 4 and 19 clocks.
SCALE = 1_000_000


def encode_objective(ii: int, makespan: int) -> int:
    """Objective of a plan; of two plans the one with the smaller II is smaller, then the one with less makespan."""
    return ii * SCALE + makespan


def decode_objective(objective: int) -> tuple[int, int]:
    """(initiation interval, makespan), both in clocks, of an objective or bound."""
    return divmod(objective, SCALE)


def describe_objective(objective: int) -> str:
    """An objective or bound for people: ``II 4, makespan 19``."""
    ii, makespan = decode_objective(objective)
    return f"II {ii}, makespan {makespan}"


class Plan(PlanDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A schedule; :func:`stowplan.models.modulo_scheduling.verify.verify` says whether it is valid.

    Instructions and edges are in the problem's order (``Problem.instructions``, ``Problem.edges``).
    Objectives are those of :func:`encode_objective`.
    """

    ii: int
    """Initiation interval: clocks between the starts of two iterations."""
    makespan: int
    """Clocks from 0 to the last result of iteration 0."""
    tiles: tuple[int, ...]
    """Tile of each instruction."""
    times: tuple[int, ...]
    """Clock of issue of each instruction in iteration 0; it issues again every ``ii`` clocks."""
    slots: tuple[int, ...]
    """Spoke RAM entry of each instruction: its time modulo ``ii``."""
    routes: tuple[tuple[int, ...], ...]
    """For each edge the links it takes, by number in ``Machine.links``; empty for the feedback within a tile."""
    delays: tuple[int, ...]
    """For each edge the clocks that its value waits at the consumer's input."""
    starts: tuple[int, ...]
    """Instructions that start the flows, by number, ascending."""
    interfaces: tuple[int | None, ...] = ()
    """For each instruction the memory interface it takes, by number in ``Machine.interfaces``; None for those that are no
    memory access, and empty where none is."""
    instructions: tuple[str, ...] = ()
    """Ids of the instructions, for whoever reads the plan; the problem decides."""
    name: str = ""
    """Name of the problem, for people; the digest decides."""
    target: str = ""
    """Name of the machine, for people."""
    format: str = "stowplan.modulo_scheduling.plan"
    version: int = 1


def _instructions(problem: Problem, plan: Plan) -> dict[int, Values]:
    starts = set(plan.starts)
    instructions: dict[int, Values] = {
        at: {"tile": tile, "time": time, "starts": at in starts}
        for at, (tile, time) in enumerate(zip(plan.tiles, plan.times, strict=True))
    }
    for at, interface in enumerate(plan.interfaces):
        if interface is not None:
            instructions[at]["interface"] = interface
    return instructions


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
