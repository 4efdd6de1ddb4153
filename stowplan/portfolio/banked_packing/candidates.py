"""The candidates for banked packing, as functions of (problem, context).

A *candidate* is one method of a run of ``solve``. It returns nothing and raises no errors of its own: it reports plans and
bounds to its :class:`~stowplan.kernel.context.Context`. A *bank* is one of several memories. The *number* of a buffer or a bank
is its position in the problem.

The exact candidates ``choice`` and ``milp`` decompose the problem. A *master problem* chooses a bank for every buffer. It looks
for the cheapest choice for which the *load* of no bank, the largest number of bytes that are live at the same time, exceeds the
bank's capacity. Then each bank is a problem of the kind ``packing``, which that kind's candidates solve. Buffers that do not
fit together into a bank become a *cut*, a constraint of the master problem that they are not all in this bank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from stowplan import work_rates
from stowplan.kernel.context import Context
from stowplan.models.banked_packing.plan import Plan, plan_of
from stowplan.models.banked_packing.problem import Problem, find_overload
from stowplan.models.outcome import Outcome
from stowplan.models.packing import problem as packing
from stowplan.models.packing.bounds import find_overload as find_bank_overload
from stowplan.models.packing.plan import Plan as Packing
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.banked_packing import greedy
from stowplan.portfolio.packing.quick import quick_plan
from stowplan.portfolio.presolve import includes_heuristics, presolve_seconds
from stowplan.portfolio.solver_limits import solver_limits, solver_options

if TYPE_CHECKING:
    from stowplan.models.banked_packing.cpsat import Cut


class SearchParameters(Parameters, frozen=True):
    """Parameters of the candidates."""

    pack_seconds: float = 1.0
    """Seconds for packing one bank at first. They grow by the factor ``more``."""
    more: float = 1.6
    """Factor by which the seconds for packing a bank grow with each bank that was neither packed nor proven infeasible."""
    master_share: float = 0.35
    """Part of the remaining time that one solution of the master problem may take; deterministic runs do not use it."""


PARAMS = parameters(SearchParameters, __name__)


#: A function (seconds, cuts) that solves the master problem within a time limit. Only the banks of the outcome's plan have a
#: meaning; all its offsets are 0.
Master = Callable[[float, "list[Cut]"], Outcome[Plan]]


def _report_if_overloaded(problem: Problem, context: Context) -> bool:
    """Report that no plan exists if counting bytes proves it; returns whether it does."""
    overload = find_overload(problem)
    if overload is not None:
        names = [problem.buffers[number].id for number in overload.buffers]
        context.proven_infeasible("load", {"explanation": overload.reason, "conflict": {"proof": "load", "buffers": names}})
    return overload is not None


def search(problem: Problem, context: Context) -> None:
    """The heuristic :func:`.greedy.climb`: it places buffers in simple orders, then in many variations of these orders.

    A deterministic run makes a limited number of placements, at least 20.
    """
    if _report_if_overloaded(problem, context):
        return
    n = len(problem.buffers)
    greedy.climb(
        problem, context.seed(), context.work(work_rates.BANKED_PAIRS, n * n + 50, least=20), context.plan, context.closed
    )


def by_size(problem: Problem, context: Context) -> None:
    """The candidate that computes only the plan of the baseline ``by_size``: it places buffers by descending size.

    If a buffer finds no place, the candidate reports a note and no plan.
    """
    _, order = next(greedy.orders(problem))
    plan, _ = greedy.place(problem, order)
    if plan is not None:
        context.plan(plan, "by_size")
    else:
        context.note("by size, a buffer finds no place in any of its banks")


def presolve(problem: Problem, context: Context) -> None:
    """The presolver, which runs before all other candidates on small problems: greedy placement, then the master problem.

    Greedy placement, in simple orders, is left out if the run has no heuristics. The choice of banks becomes a plan if
    :func:`pack_quickly` packs all of its banks; otherwise only the bound is reported.
    """
    if _report_if_overloaded(problem, context):
        return
    if includes_heuristics(context):
        greedy.climb(problem, context.seed(), 0, context.plan, context.closed)
    chosen = _cheapest(problem, context, presolve_seconds(context), [])
    if chosen.bound is not None:
        context.bound(chosen.bound, "choice")
    if chosen.plan is None:
        return
    offsets: dict[int, int] = {}
    for bank in range(len(problem.banks)):
        numbers = [number for number, at in enumerate(chosen.plan.banks) if at == bank]
        packed = pack_quickly(problem, bank, numbers, context)
        if packed is None:
            return
        offsets |= packed
    context.plan(plan_of(problem, chosen.plan.banks, [offsets[number] for number in range(len(offsets))]), "choice")


def choice(problem: Problem, context: Context) -> None:
    """The decomposition with CP-SAT for the master problem."""
    _choose_and_pack(problem, context, lambda seconds, cuts: _cheapest(problem, context, seconds, cuts), "choice")


def _cheapest(problem: Problem, context: Context, seconds: float, cuts: list[Cut]) -> Outcome[Plan]:
    """Solve the master problem with CP-SAT within ``seconds``, in a deterministic run within a limit on the solver's work."""
    # The model is imported only here, because it imports ortools, which the heuristics do not need.
    from stowplan.models.banked_packing import cpsat as model

    return model.solve(
        problem, offsets=False, cuts=cuts, **solver_limits(context, work_rates.BANKED_CHOICE_CPSAT, seconds=seconds)
    )


def milp_choice(problem: Problem, context: Context) -> None:
    """The decomposition with a MILP solver for the master problem."""
    from stowplan.models.banked_packing import milp

    def master(seconds: float, cuts: list[Cut]) -> Outcome[Plan]:
        return milp.solve(
            problem,
            cuts=cuts,
            solver="gscip",
            time_limit=seconds,
            seed=context.seed(),
            node_limit=context.work(work_rates.BANKED_NODES),
            should_stop=context.closed,
        )

    _choose_and_pack(problem, context, master, "milp")


def _choose_and_pack(problem: Problem, context: Context, master: Master, source: str) -> None:
    """Solve the master problem and pack the chosen banks, and repeat both until all banks are packed or the time is over.

    It also ends if the master problem finds no choice, or none that could lead to a cheaper plan than the best one so far. A
    deterministic run makes a limited number of attempts. Plans and bounds are reported under the name ``source``, and plans of
    :func:`_repair` under this name with ``_repair`` after it.
    """
    if _report_if_overloaded(problem, context):
        return
    cuts: list[Cut] = []
    # Whether all cuts are proven, so that the master problem's bounds hold for the whole problem.
    is_exact, seconds = True, PARAMS.pack_seconds
    attempts_left = context.work(work_rates.BANKED_ATTEMPTS, least=1)
    while not context.closed() and attempts_left != 0:
        attempts_left = None if attempts_left is None else attempts_left - 1
        chosen = master(context.remaining() * (PARAMS.master_share if attempts_left is None else 1.0), cuts)
        if chosen.status == "infeasible":
            if is_exact:
                context.proven_infeasible(source, {"explanation": "no choice of banks can be packed"})
            return
        if is_exact and chosen.bound is not None:
            context.bound(chosen.bound, source)
        if chosen.plan is None:
            return
        incumbent_plan, _ = context.incumbent()
        if (
            incumbent_plan is not None
            and incumbent_plan.objective <= chosen.plan.objective
            and chosen.status == "optimal"
            and not is_exact
        ):
            # No choice that the cuts permit is cheaper than the plan. Some cuts are not proven, so this gives no bound.
            return
        offsets: dict[int, int] = {}
        fits = True
        for bank in range(len(problem.banks)):
            numbers = [number for number, at in enumerate(chosen.plan.banks) if at == bank]
            # No bank takes more than a quarter of the remaining time, but even at the end of the run it gets 0.2 seconds.
            packed, conflict = pack(problem, bank, numbers, context, min(seconds, max(0.2, context.remaining() / 4)))
            if packed is not None:
                offsets |= packed
                continue
            fits = False
            if conflict is None:
                # The bank was neither packed nor proven infeasible. This choice is not tried again, and from here on the master
                # problem gives no valid bounds.
                is_exact, conflict, seconds = False, tuple(numbers), seconds * PARAMS.more
            cuts.append((bank, conflict))
        if fits:
            places = [offsets[number] for number in range(len(problem.buffers))]
            context.plan(plan_of(problem, chosen.plan.banks, places), source)
            # If the choice is not proven to be the cheapest, other candidates may still find a cheaper one.
            return
        _repair(problem, context, chosen.plan, source)


def _repair(problem: Problem, context: Context, bank_choice: Plan, source: str) -> None:
    """Look for plans close to a choice of banks that was not packed.

    Buffers are placed greedily in each of the simple orders. In all of them, buffers whose chosen bank is the cheapest that
    they may be in come first, then those whose chosen bank is the second cheapest, and so on.
    """
    for _, order in greedy.orders(problem):
        if context.closed():
            return
        rank = {number: at for at, number in enumerate(order)}
        placing_order = sorted(
            order, key=lambda number: (problem.allowed[number].index(bank_choice.banks[number]), rank[number])
        )
        plan, _ = greedy.place(problem, placing_order)
        if plan is not None:
            context.plan(plan, f"{source}_repair")


def cpsat(problem: Problem, context: Context) -> None:
    """Solve the CP-SAT model of banks and offsets together. The solver starts from the best plan so far, if there is one."""
    if _report_if_overloaded(problem, context):
        return
    from stowplan.models.banked_packing import cpsat as model

    outcome = model.solve(
        problem,
        hint=context.incumbent()[0],
        **solver_options(context, "cpsat", work_rates.BANKED_CPSAT),
    )
    if outcome.status == "infeasible":
        context.proven_infeasible("cpsat", {"explanation": "no choice of banks and offsets keeps all buffers apart"})


#: Id of the buffer that represents the reserved bytes of a bank in the bank's packing problem.
_RESERVED = "reserved"


def pack(
    problem: Problem, bank: int, numbers: Sequence[int], context: Context, seconds: float
) -> tuple[dict[int, int] | None, tuple[int, ...] | None]:
    """Pack buffers into a bank. It tries a bound by counting, the quick heuristic, the main heuristic and the exact search.

    Parameters
    ----------
    problem
        The problem with all banks.
    bank
        Number of the bank.
    numbers
        Numbers of the buffers that are to be in the bank; empty if there are none.
    context
        The context of the calling candidate.
    seconds
        How long to search; in deterministic runs, the work limit in seconds of an idle machine.

    Returns
    -------
    tuple
        First, offsets in bytes from the start of the bank, by the number of the buffer. Second, the numbers of buffers that are
        proven not to fit into the bank together. At least one of the two is None. Both are None if the time was too short for a
        packing and for a proof.
    """
    bank_problem = _bank_problem(problem, bank, numbers)
    ids = {problem.buffers[number].id: number for number in numbers}
    overload = find_bank_overload(bank_problem)
    if overload is not None:
        return None, tuple(ids[bank_problem.buffers[at].id] for at in overload.buffers if bank_problem.buffers[at].id in ids)
    quick = quick_plan(bank_problem)
    if quick is not None:
        return _offsets(problem, bank, numbers, bank_problem, quick[1]), None
    # These candidates are imported only here, because small problems are solved without them.
    from stowplan.portfolio.packing.candidates import InnerRun, exact
    from stowplan.portfolio.packing.candidates import search as search_packing

    for function, share in ((search_packing, 0.4), (exact, 0.6)):
        inner_run = InnerRun(context, share * seconds)
        function(bank_problem, inner_run)
        if inner_run.best is not None:
            return _offsets(problem, bank, numbers, bank_problem, inner_run.best), None
        if inner_run.why is not None:
            conflict = [ids[name] for name in inner_run.why.get("conflict", {}).get("buffers", ids) if name in ids]
            return None, tuple(sorted(conflict))
    return None, None


def pack_quickly(problem: Problem, bank: int, numbers: Sequence[int], context: Context) -> dict[int, int] | None:
    """Offsets in bytes from the start of the bank, by the number of the buffer; None if the quick heuristic does not pack it.

    The quick heuristic, :func:`~stowplan.portfolio.packing.quick.quick_plan`, makes one placement, by size unless there are
    many buffers. ``bank`` and ``numbers`` are as in :func:`pack`.
    """
    bank_problem = _bank_problem(problem, bank, numbers)
    quick = quick_plan(bank_problem)
    return None if quick is None else _offsets(problem, bank, numbers, bank_problem, quick[1])


def _offsets(
    problem: Problem, bank: int, numbers: Sequence[int], bank_problem: packing.Problem, plan: Packing
) -> dict[int, int]:
    """Offsets in bytes from the start of the bank, by the number of the buffer.

    ``plan`` is a plan of ``bank_problem``, the packing problem that :func:`_bank_problem` made. That problem may leave out the
    reserved bytes, or contain a buffer for them.
    """
    shift = 0 if any(buffer.offset is not None for buffer in bank_problem.buffers) else problem.bottom(bank)
    ids = {problem.buffers[number].id: number for number in numbers}
    offsets = {
        ids[buffer.id]: at + shift for buffer, at in zip(bank_problem.buffers, plan.offsets, strict=True) if buffer.id in ids
    }
    # A buffer of 0 bytes collides with nothing, not even with reserved bytes, so it gets the first allowed offset.
    return {
        number: at if problem.buffers[number].size else problem.lowest_offset_in(number, bank) for number, at in offsets.items()
    }


def _bank_problem(problem: Problem, bank: int, numbers: Sequence[int]) -> packing.Problem:
    """The packing problem of a bank and the buffers that are to be in it."""
    memory = problem.banks[bank]
    steps = {number: problem.step(number, bank) for number in numbers}
    bottom = problem.bottom(bank)
    # If every alignment divides the first usable offset, offsets are counted from there. Otherwise the reserved bytes become a
    # buffer at a fixed offset.
    shift = bottom if all(bottom % step == 0 for step in steps.values()) else 0
    buffers = [
        packing.Buffer(
            id=problem.buffers[number].id,
            lower=problem.buffers[number].lower,
            upper=problem.buffers[number].upper,
            size=problem.size_in(number, bank),
            alignment=steps[number],
        )
        for number in numbers
    ]
    if buffers and not shift and memory.reserved:
        name = _RESERVED
        while any(buffer.id == name for buffer in buffers):
            name += "'"
        lower, upper = min(buffer.lower for buffer in buffers), max(buffer.upper for buffer in buffers)
        buffers.append(packing.Buffer(id=name, lower=lower, upper=upper, size=memory.reserved, offset=0))
    return packing.Problem(buffers=tuple(buffers), capacity=max(0, memory.capacity - shift))
