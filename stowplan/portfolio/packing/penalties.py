"""The candidates for packing with reuse penalties, as functions of (problem, context).

A *reuse penalty* is a cost of a pair of buffers that is paid if both share bytes, one after the other. The problem asks for the
least sum of these costs among the plans within the capacity. A *candidate* is one method of a run of ``solve``. It returns
nothing and raises no errors of its own: it reports plans and bounds to its :class:`~stowplan.kernel.context.Context`.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable

import msgspec
import numpy as np

from stowplan import work_rates
from stowplan.kernel.context import Context
from stowplan.models.packing.bounds import find_overload
from stowplan.models.packing.plan import Plan, make_plan
from stowplan.models.packing.problem import Problem
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.packing import arrays, candidates, reuse
from stowplan.portfolio.packing.candidates import InnerRun, exact, in_units, search
from stowplan.portfolio.packing.quick import quick_plan
from stowplan.portfolio.presolve import includes_heuristics, presolve_seconds, report_if_overloaded
from stowplan.portfolio.solver_limits import solver_limits


class PenaltyParameters(Parameters, frozen=True):
    """Parameters of the candidates."""

    first_plan_parts: tuple[float, ...] = (0.02, 0.5, 0.5)
    """Fractions of the remaining time for three searches for any plan within the capacity: by the heuristic for problems
    without penalties, by exact search, and by the heuristic again. The first plan ends them."""
    most_buffers: int = 5000
    """Number of buffers up to which annealing runs, because it has a table of all pairs."""


PARAMS = parameters(PenaltyParameters, __name__)


def anneal(problem: Problem, context: Context) -> None:
    """The heuristic: find any plan within the capacity, then reduce its penalties by simulated annealing (:mod:`.reuse`).

    It starts from the best plan of all candidates, if there is one.
    """
    if report_if_overloaded(context, find_overload(problem)):
        return
    data, plan = arrays.build(problem), context.incumbent()[0]
    if plan is None:
        plan = _any_plan(problem, context)
    if plan is None or not plan.objective or len(data.size) > PARAMS.most_buffers:
        return
    run = reuse.Annealing(problem, data, context.seed())
    work = context.work(work_rates.PACKING_REUSE, len(data.size), least=reuse.PARAMS.chunk)
    for share in reuse.PARAMS.cycles:
        best = context.incumbent()[0]
        plan = plan if best is None or plan.objective < best.objective else best

        def improved() -> None:
            nonlocal plan
            plan = arrays.export_plan(problem, data, run.offsets)
            context.plan(plan, "anneal")

        run.cycle(in_units(plan, data), _progress(context, share, work), improved)
        if context.closed() or not plan.objective:
            return


def _progress(context: Context, share: float, work: int | None) -> Callable[[int], float]:
    """Returns the progress of a cycle of annealing that takes ``share`` of the time that is left.

    A *cycle* lets the temperature fall once from hot to cold. The progress is a function from the number of steps so far to the
    part of the cycle that is over; at 1 the cycle ends. ``work`` is the number of steps of a deterministic run, of which the
    cycle gets the fraction ``share``; None if time is the limit.
    """
    seconds, began = context.part_of_rest(share), time.monotonic()

    def progress(steps: int) -> float:
        if context.closed():
            return 1.0
        return (time.monotonic() - began) / seconds if work is None else steps / (work * share)

    return progress


def _any_plan(problem: Problem, context: Context) -> Plan | None:
    """Find and report a plan within the capacity without regard to penalties; returns None if none was found.

    If it is proven that no plan fits, that is reported.
    """
    quick = _report_quick_plan(problem, context)
    if quick is not None:
        return quick
    plain = msgspec.structs.replace(problem, penalties=msgspec.UNSET)
    for find, part in zip((search, exact, search), PARAMS.first_plan_parts, strict=True):
        run = InnerRun(context, context.part_of_rest(part), context.seconds(part))
        find(plain, run)
        if run.why is not None:
            context.proven_infeasible("canonical", run.why)
            return None
        if run.best is not None:
            plan = make_plan(problem, run.best.offsets)
            context.plan(plan, "anneal")
            return plan
    return None


def _report_quick_plan(problem: Problem, context: Context) -> Plan | None:
    """Report the plan of :func:`.quick_plan` if it is within the capacity, and return it; None if there is none.

    If it is not the plan of the baseline ``greedy``, report that the baseline has no plan.
    """
    quick = quick_plan(problem, context.closed)
    if quick is None or quick[0] != "greedy":
        context.no_plan("greedy")
    if quick is None:
        return None
    context.plan(quick[1], quick[0])
    return quick[1]


def presolve(problem: Problem, context: Context) -> None:
    """The presolver, which runs before all other candidates on small problems: a quick plan, then the model of each component.

    The quick plan (:func:`.quick_plan`) is left out if the run has no heuristics. The components are those of
    :func:`components`. For problems without penalties, the presolver is :func:`stowplan.portfolio.packing.candidates.presolve`.
    """
    if not problem.penalties:
        candidates.presolve(problem, context)
        return
    seconds = presolve_seconds(context)
    if includes_heuristics(context):
        _report_quick_plan(problem, context)
    if not context.closed():
        components(problem, context, seconds)


def components(problem: Problem, context: Context, seconds: float | None = None) -> None:
    """Solve the CP-SAT model of each component of the problem.

    Two buffers are in the same component if they are connected by pairs with a penalty and pairs that are live at the same
    time. The sum of the bounds of all components is a bound of the problem. All models together take at most ``seconds``; with
    None, the time of the candidate is the limit. If one component has no plan, the whole problem has none.
    """
    if report_if_overloaded(context, find_overload(problem)):
        return
    until = math.inf if seconds is None else time.monotonic() + seconds
    from stowplan.models.packing import cpsat as model

    best: dict[int, int] = {}
    proven = 0
    for numbers in _components(problem):
        part = _part(problem, numbers)
        if context.closed() or time.monotonic() >= until:
            return

        def improved(plan: Plan, numbers: list[int] = numbers) -> None:
            best.update(zip(numbers, plan.offsets, strict=True))
            shared = context.incumbent()[0]
            offset_of = dict(enumerate(() if shared is None else shared.offsets)) | best
            if len(offset_of) == len(problem.buffers):
                context.plan(make_plan(problem, (offset_of[number] for number in range(len(offset_of)))), "components")

        def bounded(bound: int, before: int = proven) -> None:
            context.bound(before + bound, "components")

        shared = context.incumbent()[0]
        hint = None if shared is None else make_plan(part, (shared.offsets[number] for number in numbers))
        outcome = model.solve(
            part,
            hint=hint,
            on_plan=improved,
            on_bound=bounded,
            **solver_limits(
                context, work_rates.PACKING_CPSAT, seconds=None if seconds is None else max(0.01, until - time.monotonic())
            ),
        )
        if outcome.status == "infeasible":
            context.proven_infeasible("components")
            return
        if outcome.plan is not None:
            improved(outcome.plan)
        if outcome.bound is not None:
            proven += outcome.bound
            context.bound(proven, "components")


def _components(problem: Problem) -> list[list[int]]:
    """Numbers of the buffers of each component, the components with the fewest penalties first."""
    # SciPy's connected_components is faster only from some hundred buffers on, and importing it takes 0.2 s.
    lead = list(range(len(problem.buffers)))

    def find(number: int) -> int:
        while lead[number] != number:
            lead[number] = lead[lead[number]]
            number = lead[number]
        return number

    for one, other in problem.penalty_of:
        lead[find(one)] = find(other)
    spans = problem.spans
    last, end = -1, 0
    for at in np.argsort(spans.start, kind="stable").tolist():
        if last >= 0 and spans.start[at] < end:
            lead[find(int(spans.owner[at]))] = find(last)
        if spans.end[at] > end or last < 0:
            last, end = int(spans.owner[at]), int(spans.end[at])
    numbers: dict[int, list[int]] = {}
    for number in range(len(problem.buffers)):
        numbers.setdefault(find(number), []).append(number)
    penalties = Counter(find(one) for one, _ in problem.penalty_of)
    return sorted(numbers.values(), key=lambda members: (penalties[find(members[0])], members))


def _part(problem: Problem, numbers: list[int]) -> Problem:
    """The problem that has only the buffers ``numbers`` and the penalties between them."""
    buffers = tuple(problem.buffers[number] for number in numbers)
    names = {buffer.id for buffer in buffers}
    penalties = tuple(each for each in problem.penalties or () if each.first in names and each.second in names)
    return msgspec.structs.replace(
        problem, buffers=buffers, penalties=penalties or msgspec.UNSET, parts=msgspec.UNSET, results=msgspec.UNSET
    )
