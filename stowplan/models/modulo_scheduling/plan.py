"""The plan of a modulo-scheduling problem: tile and time of every instruction, route and delay of every value.

A *tile* is a processing element of the machine. Its *spoke RAM* says which instruction it issues in each clock modulo the
initiation interval (II). The *makespan* is the number of clocks from 0 to the last result of one iteration. An *edge* is a
value that one instruction produces and another one consumes. A *flow* is a set of instructions that values over links connect.
This module defines the data; the verifier checks the rules.
"""

from __future__ import annotations

from stowplan.document import PlanDocument
from stowplan.models.decisions import Decision, Values
from stowplan.models.modulo_scheduling.problem import Problem

#: An objective is the initiation interval (II) times this number, plus the makespan: 4000019 is an II of 4 and a makespan of 19
#: clocks.
SCALE = 1_000_000


def encode_objective(ii: int, makespan: int) -> int:
    """The objective of a plan with this II and makespan in clocks.

    Plans are compared by their II first, and by their makespan second.
    """
    return ii * SCALE + makespan


def decode_objective(objective: int) -> tuple[int, int]:
    """The initiation interval and the makespan, both in clocks, of an objective or bound."""
    return divmod(objective, SCALE)


def describe_objective(objective: int) -> str:
    """An objective or bound for people: ``II 4, makespan 19``."""
    ii, makespan = decode_objective(objective)
    return f"II {ii}, makespan {makespan}"


class Plan(PlanDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A modulo schedule. :func:`stowplan.models.modulo_scheduling.verify.verify` says whether it is valid.

    Instructions and edges are in the problem's order (``Problem.instructions``, ``Problem.edges``). The objective is that of
    :func:`encode_objective`.
    """

    ii: int
    """Initiation interval: number of clocks from the start of one iteration to the start of the next."""
    makespan: int
    """Clocks from 0 to the last result of iteration 0."""
    tiles: tuple[int, ...]
    """Tile of each instruction."""
    times: tuple[int, ...]
    """Clock at which each instruction is issued in iteration 0; it is issued again every ``ii`` clocks."""
    slots: tuple[int, ...]
    """Entry of the tile's spoke RAM that issues each instruction: the instruction's time modulo ``ii``."""
    routes: tuple[tuple[int, ...], ...]
    """For each edge, the links that its value takes, as indices into ``Machine.links``; empty for feedback within a tile."""
    delays: tuple[int, ...]
    """For each edge, the number of clocks that its value waits at the input of the consumer."""
    starts: tuple[int, ...]
    """Numbers of the instructions that the hardware starts at a set time, ascending: one of each flow, or all sources."""
    interfaces: tuple[int | None, ...] = ()
    """For each instruction, the memory interface that it uses, as an index into ``Machine.interfaces``, and None if it is no
    memory access. Empty if no instruction is a memory access."""
    instructions: tuple[str, ...] = ()
    """Ids of the instructions, for people who read the plan."""
    name: str = ""
    """Name of the problem, for people. The field ``problem`` decides which problem the plan belongs to."""
    target: str = ""
    """Name of the machine, for people."""
    format: str = "stowplan.modulo_scheduling.plan"
    version: int = 1


def _instructions(problem: Problem, plan: Plan) -> dict[int, Values]:
    """The decisions about each instruction, by its number, in a form that can be compared."""
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
    """The decisions about the value of each edge, by the number of the edge, in a form that can be compared."""
    pairs = zip(plan.routes, plan.delays, strict=True)
    return {at: {"links": " ".join(map(str, links)) or "none", "delay": delay} for at, (links, delay) in enumerate(pairs)}


def _edge_name(problem: Problem, at: int) -> str:
    """The name of an edge: the ids of its producer and its consumer."""
    edge = problem.edges[at]
    return f"{problem.instructions[edge.source].id} to {problem.instructions[edge.target].id}"


#: The decisions that :mod:`stowplan.models.decisions` compares between two plans.
DECISIONS = (
    Decision("instruction", lambda problem, at: problem.instructions[at].id, _instructions),
    Decision("value", _edge_name, _values),
)
