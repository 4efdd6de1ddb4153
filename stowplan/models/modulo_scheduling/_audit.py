"""The data of the verifier: codes of violations, edges, flows, and the tiles that links lead to.

It shares no code with models, bounds, heuristics or the simulator of schedules, so that an error in one of them shows as a
difference.

An *edge* is a value that one instruction produces and another one consumes. Its *distance* is the number of iterations from the
production to the consumption. An edge is *synchronous* if the value goes over links between tiles, and *asynchronous* if it
goes over a second network, the asynchronous fabric. A *flow* is a set of instructions that synchronous edges connect, directly
or over other instructions. Nothing here raises an error except where a docstring says so.
"""

from __future__ import annotations

from typing import Literal

from stowplan import verification
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem

#: The rules that a plan can break; docs/reference/modulo-scheduling.md explains each of them.
Code = Literal[
    "wrong_problem",
    "wrong_count",
    "ii_out_of_range",
    "no_such_tile",
    "time_out_of_range",
    "wrong_slot",
    "slot_taken",
    "result_taken",
    "instruction_ram_full",
    "broken_route",
    "too_many_links",
    "detour",
    "wrong_delay",
    "too_early",
    "delay_too_long",
    "launched_early",
    "link_taken",
    "register_overwritten",
    "registers_full",
    "variable_split",
    "wrong_tile",
    "wrong_memory",
    "memory_full",
    "wrong_interface",
    "port_taken",
    "siblings_share",
    "wrong_starts",
    "starts_share",
    "moved",
    "wrong_makespan",
    "wrong_objective",
]

#: All times, in clocks, must be less than this.
END_OF_TIME = 1_000_000


Violation = verification.Violation[Code]
Verification = verification.Verification[Code]


class Audit:
    """A problem and a plan, with tables of edges for checking the rules, and the violations found so far."""

    def __init__(self, problem: Problem, plan: Plan):
        self.problem = problem
        self.machine = problem.machine
        self.plan = plan
        self.violations = verification.of_problem(problem, plan)
        self.latency = [
            problem.machine.latency if instruction.latency is None else instruction.latency
            for instruction in problem.instructions
        ]
        ids = {instruction.id: number for number, instruction in enumerate(problem.instructions)}
        # Edges as (producer, consumer, distance), in the order of the consumers and their operands; and for each edge, whether
        # it is asynchronous.
        self.edges: list[tuple[int, int, int]] = []
        self.asynchronous: list[bool] = []
        for target, instruction in enumerate(problem.instructions):
            for operand in instruction.operands:
                if operand.instruction is not None:
                    source = ids[operand.instruction]
                    self.edges.append((source, target, operand.distance))
                    is_answer = problem.instructions[source].memory is not None
                    self.asynchronous.append(operand.asynchronous or is_answer)
        self.synchronous = [edge for edge, is_sent in zip(self.edges, self.asynchronous, strict=True) if not is_sent]
        self.sent = [edge for edge, is_sent in zip(self.edges, self.asynchronous, strict=True) if is_sent]

    def add(self, code: Code, message: str, *instructions: int) -> None:
        """Report a violation that concerns these instructions, given by their numbers."""
        self.violations.append(Violation(code, message, {"instructions": instructions}))

    def name(self, number: int) -> str:
        """The id of an instruction."""
        return self.problem.instructions[number].id

    def nominal(self, source: int) -> int:
        """The number of clocks that a value of this instruction needs over the asynchronous fabric. The fabric has no fixed
        latency; plans count with this *nominal* one. The machine must have a fabric; otherwise AssertionError is raised."""
        fabric = self.machine.asynchronous
        assert fabric is not None
        return fabric.latency if self.problem.instructions[source].memory is None else fabric.memory_latency

    def launches_of(self, flow: list[int]) -> dict[int, int]:
        """Returns the time at which the first instruction of each flow is issued. The keys are the numbers that :meth:`flows`
        gives to flows; ``flow`` is its result."""
        launch: dict[int, int] = {}
        for first, time in zip(flow, self.plan.times, strict=True):
            launch[first] = min(time, launch.get(first, time))
        return launch

    def flows(self) -> list[int]:
        """Returns, for each instruction, the number of its flow, which is the smallest number of an instruction in the flow."""
        flow = list(range(len(self.problem.instructions)))
        changed = True
        while changed:
            changed = False
            for source, target, _ in self.synchronous:
                low = min(flow[source], flow[target])
                if flow[source] != low or flow[target] != low:
                    flow[source] = flow[target] = low
                    changed = True
        return flow


def follow(problem: Problem, tile: int, link: int) -> int | None:
    """The tile at the end of a link of a tile; None if there is no such link, or if it leaves the grid or leads back to the
    same tile."""
    machine = problem.machine
    if not 0 <= link < len(machine.links):
        return None
    row, column = divmod(tile, machine.columns)
    row, column = row + machine.links[link].rows, column + machine.links[link].columns
    if machine.wraps:
        row, column = row % machine.rows, column % machine.columns
    inside = 0 <= row < machine.rows and 0 <= column < machine.columns
    end = row * machine.columns + column
    return end if inside and end != tile else None


def least_clocks(problem: Problem) -> list[dict[int, int]]:
    """Returns, for each tile, the tiles that a value can reach from it, each with the least number of clocks. A value goes over
    at most one link, or over any number of links if values may pass through tiles."""
    tiles = range(problem.machine.rows * problem.machine.columns)
    steps: list[dict[int, int]] = []
    for tile in tiles:
        near: dict[int, int] = {tile: 0}
        for number, link in enumerate(problem.machine.links):
            end = follow(problem, tile, number)
            if end is not None:
                near[end] = min(link.clocks, near.get(end, link.clocks))
        steps.append(near)
    if not problem.rules.pass_through:
        return steps
    nearest = []
    for tile in tiles:
        least = {tile: 0}
        frontier = [tile]
        while frontier:
            reached = []
            for at in frontier:
                for end, clocks in steps[at].items():
                    if least[at] + clocks < least.get(end, END_OF_TIME):
                        least[end] = least[at] + clocks
                        reached.append(end)
            frontier = reached
        nearest.append(least)
    return nearest
