"""Computes the times of the steps of a plan with a host.

The *host* is a second memory; a plan sends values to it and fetches them back (:class:`~.plan.Move`). A *value* is a tensor
that is an input or that an operator writes. The times come from the copy engine of memory mapping
(:func:`~stowplan.models.memory_mapping.copy_engine.play`), with one queue for each direction. A run takes as many units of time
as its cost. Issuing a copy takes no time, and a step that needs a copy waits until the copy has ended.
"""

from __future__ import annotations

from dataclasses import dataclass

from stowplan.models.memory_mapping.copy_engine import CopyWindow, play
from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.structure import Structure


@dataclass(frozen=True)
class Transfer:
    """One copy to the host or back. Times are in units of cost."""

    action: str
    """``send`` or ``fetch``."""
    tensor: int
    """Number of the tensor."""
    issued: int
    """Time at which it is issued."""
    begin: int
    """Time from which it occupies the channel of its direction."""
    end: int
    """Time at which it has ended and the channel is free."""


@dataclass(frozen=True)
class Timeline:
    """The times of a plan's steps, in units of cost."""

    begin: tuple[int, ...]
    """[steps] time at which each step begins, after the copies that it waits for."""
    transfers: tuple[Transfer, ...]
    """All copies, in the order in which they are issued."""
    end: int
    """Time at which the plan ends: after the last run, and after all copies that a step or the end of the plan waits for."""


def timeline(structure: Structure, plan: Plan) -> Timeline:
    """Compute the timeline of a plan, which must be valid. For other plans the result means nothing, or KeyError is raised."""
    problem = structure.problem
    value_of = {tensor: value for value, tensor in enumerate(structure.tensor)}
    steps = list(plan.steps())
    durations = [structure.cost[number] if action == "run" else 0 for action, number in steps]
    due = [len(steps)] * len(steps)
    # Go backwards to find, for each copy, the step that must wait for it: for a send, its ``wait``; for a fetch, the first step
    # that needs the fetched value.
    wait_step: dict[int, int] = {}
    need_step = {value: len(steps) for value, kept in enumerate(structure.kept) if kept}
    for at in range(len(steps) - 1, -1, -1):
        action, number = steps[at]
        if action == "run":
            for value in structure.writes[number]:
                need_step.pop(value, None)
            need_step |= dict.fromkeys(structure.needs[number], at)
        elif action == "wait":
            wait_step[number] = at
        elif action == "send":
            due[at] = wait_step.pop(number)
            need_step[value_of[number]] = at
        else:
            due[at] = need_step.pop(value_of[number])
    copies = [at for at, (action, _) in enumerate(steps) if action in ("send", "fetch")]
    times = [problem.copy_cost(steps[at][1]) for at in copies]
    windows = [CopyWindow(at, due[at], time, queue=steps[at][0] == "fetch") for at, time in zip(copies, times, strict=True)]
    moments = play(windows, durations, waits=True, queues=2)
    transfers = (
        Transfer(*steps[at], moments.open[at], begin, begin + window.duration_ps)
        for at, window, begin in zip(copies, windows, moments.begin, strict=True)
    )
    return Timeline(moments.left[:-1], tuple(transfers), moments.left[-1])
