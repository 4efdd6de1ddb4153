"""Plans upside down: twice as many to imitate."""

from __future__ import annotations

import msgspec

from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem


def flipped(plan: Plan, problem: Problem) -> Plan | None:
    """The plan upside down, where the machine's links look the same from there; None where they do not."""
    machine = problem.machine
    links = {(link.rows, link.columns, link.clocks) for link in machine.links}
    if {(-rows, columns, clocks) for rows, columns, clocks in links} != links:
        return None
    tiles = tuple(
        (machine.rows - 1 - tile // machine.columns) * machine.columns + tile % machine.columns for tile in plan.tiles
    )
    return msgspec.structs.replace(plan, tiles=tiles)
