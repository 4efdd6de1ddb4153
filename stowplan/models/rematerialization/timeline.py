"""When the steps of a plan with moves take place: memory mapping's copy engine, with a queue for each direction.

A run takes its cost, and moves take no time; a boundary that needs a copy waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from stowplan.models.memory_mapping.copy_engine import CopyWindow, play
from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.structure import Structure


@dataclass(frozen=True)
class Transfer:
    """One copy."""

    action: str
    """``send`` or ``fetch``."""
    tensor: int
    issued: int
    """When its step is reached."""
    begin: int
    end: int


@dataclass(frozen=True)
class Timeline:
    """Times in the unit of costs."""

    begin: tuple[int, ...]
    """[steps] when each begins, after what it waits for."""
    transfers: tuple[Transfer, ...]
    end: int
    """Of the last computation, and of what must be there behind it."""


def timeline(structure: Structure, plan: Plan) -> Timeline:
    """The run of a valid plan."""
    problem = structure.problem
    value_of = {tensor: value for value, tensor in enumerate(structure.tensor)}
    steps = list(plan.steps())
    durations = [structure.cost[number] if action == "run" else 0 for action, number in steps]
    due = [len(steps)] * len(steps)
    # Backwards: the next step that waits for each send, or needs each instance.
    waited: dict[int, int] = {}
    needed = {value: len(steps) for value, kept in enumerate(structure.kept) if kept}
    for at in range(len(steps) - 1, -1, -1):
        action, number = steps[at]
        if action == "run":
            for value in structure.writes[number]:
                needed.pop(value, None)
            needed |= dict.fromkeys(structure.needs[number], at)
        elif action == "wait":
            waited[number] = at
        elif action == "send":
            due[at] = waited.pop(number)
            needed[value_of[number]] = at
        else:
            due[at] = needed.pop(value_of[number])
    copies = [at for at, (action, _) in enumerate(steps) if action in ("send", "fetch")]
    times = [problem.copy_cost(steps[at][1]) for at in copies]
    windows = [CopyWindow(at, due[at], time, queue=steps[at][0] == "fetch") for at, time in zip(copies, times, strict=True)]
    moments = play(windows, durations, waits=True, queues=2)
    transfers = (
        Transfer(*steps[at], moments.open[at], begin, begin + window.duration_ps)
        for at, window, begin in zip(copies, windows, moments.begin, strict=True)
    )
    return Timeline(moments.left[:-1], tuple(transfers), moments.left[-1])
