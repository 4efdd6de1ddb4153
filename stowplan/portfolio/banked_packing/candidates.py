"""The candidates for banked packing, as functions of (problem, context).

What is chosen for a bank is packed into it with the searches of the packing kind.
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
    """Parameters of the search."""

    pack_seconds: float = 1.0
    """Seconds in which the banks of a choice are packed at first."""
    more: float = 1.6
    """Times by which these grow with each choice that was neither packed nor refuted."""
    master_share: float = 0.35
    """Part of the time that one choice of banks may take."""


PARAMS = parameters(SearchParameters, __name__)


#: Finds banks by loads alone: (seconds, cuts) to an outcome.
Master = Callable[[float, "list[Cut]"], Outcome[Plan]]


def _overloaded(problem: Problem, context: Context) -> bool:
    """Report an infeasibility that shows at once."""
    overload = find_overload(problem)
    if overload is not None:
        names = [problem.buffers[number].id for number in overload.buffers]
        context.proven_infeasible("load", {"explanation": overload.reason, "conflict": {"proof": "load", "buffers": names}})
    return overload is not None


def search(problem: Problem, context: Context) -> None:
    """Placing in simple orders, and in many that are like the best of them."""
    if _overloaded(problem, context):
        return
    n = len(problem.buffers)
    greedy.climb(
        problem, context.seed(), context.work(work_rates.BANKED_PAIRS, n * n + 50, least=20), context.plan, context.closed
    )


def by_size(problem: Problem, context: Context) -> None:
    """By size, the baseline, and nothing more."""
    _, order = next(greedy.orders(problem))
    plan, _ = greedy.place(problem, order)
    if plan is not None:
        context.plan(plan, "by_size")
    else:
        context.note("by size, a buffer finds no place in any of its banks")


def presolve(problem: Problem, context: Context) -> None:
    """The simple orders; then the cheapest choice of banks, and a plan of it where simple packings are enough."""
    if _overloaded(problem, context):
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
    """The cheapest choice of banks by loads (CP-SAT), packed; what does not fit is cut off, and the next choice tried."""
    _choose_and_pack(problem, context, lambda seconds, cuts: _cheapest(problem, context, seconds, cuts), "choice")


def _cheapest(problem: Problem, context: Context, seconds: float, cuts: list[Cut]) -> Outcome[Plan]:
    """Banks by loads alone, with CP-SAT."""
    # Not at the top: it imports ortools, which the others can do without.
    from stowplan.models.banked_packing import cpsat as model

    return model.solve(
        problem, offsets=False, cuts=cuts, **solver_limits(context, work_rates.BANKED_CHOICE_CPSAT, seconds=seconds)
    )


def milp_choice(problem: Problem, context: Context) -> None:
    """The same with a MILP solver."""
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
    if _overloaded(problem, context):
        return
    cuts: list[Cut] = []
    is_exact, seconds = True, PARAMS.pack_seconds
    left = context.work(work_rates.BANKED_ATTEMPTS, least=1)
    while not context.closed() and left != 0:
        left = None if left is None else left - 1
        chosen = master(context.remaining() * (PARAMS.master_share if left is None else 1.0), cuts)
        if chosen.status == "infeasible":
            if is_exact:
                context.proven_infeasible(source, {"explanation": "no choice of banks can be packed"})
            return
        if is_exact and chosen.bound is not None:
            context.bound(chosen.bound, source)
        if chosen.plan is None:
            return
        known, _ = context.incumbent()
        if known is not None and known.objective <= chosen.plan.objective and chosen.status == "optimal" and not is_exact:
            # What choices are left after unproven cuts are no cheaper.
            return
        offsets: dict[int, int] = {}
        fits = True
        for bank in range(len(problem.banks)):
            numbers = [number for number, at in enumerate(chosen.plan.banks) if at == bank]
            packed, conflict = pack(problem, bank, numbers, context, min(seconds, max(0.2, context.remaining() / 4)))
            if packed is not None:
                offsets |= packed
                continue
            fits = False
            if conflict is None:
                # Neither packed nor refuted: this very choice is not tried again, and bounds end here.
                is_exact, conflict, seconds = False, tuple(numbers), seconds * PARAMS.more
            cuts.append((bank, conflict))
        if fits:
            places = [offsets[number] for number in range(len(problem.buffers))]
            context.plan(plan_of(problem, chosen.plan.banks, places), source)
            # A choice that is not proven cheapest is packed as well; the other candidates look for a cheaper one.
            return
        _repair(problem, context, chosen.plan, source)


def _repair(problem: Problem, context: Context, wanted: Plan, source: str) -> None:
    """A plan that is close to a choice that was not packed: those chosen for the cheapest banks are placed first."""
    for _, order in greedy.orders(problem):
        if context.closed():
            return
        rank = {number: at for at, number in enumerate(order)}
        wishes = sorted(order, key=lambda number: (problem.allowed[number].index(wanted.banks[number]), rank[number]))
        plan, _ = greedy.place(problem, wishes)
        if plan is not None:
            context.plan(plan, f"{source}_repair")


def cpsat(problem: Problem, context: Context) -> None:
    """The CP-SAT model with offsets, hinted with the best plan known."""
    if _overloaded(problem, context):
        return
    from stowplan.models.banked_packing import cpsat as model

    outcome = model.solve(
        problem,
        hint=context.incumbent()[0],
        **solver_options(context, "cpsat", work_rates.BANKED_CPSAT),
    )
    if outcome.status == "infeasible":
        context.proven_infeasible("cpsat", {"explanation": "no choice of banks and offsets keeps all buffers apart"})


_RESERVED = "reserved"


def pack(
    problem: Problem, bank: int, numbers: Sequence[int], context: Context, seconds: float
) -> tuple[dict[int, int] | None, tuple[int, ...] | None]:
    """Offsets by buffer; or buffers that are proven not to fit together. Both None: neither was found in the time.

    Parameters
    ----------
    numbers
        The buffers that are to be in the bank.
    seconds
        How long to look; in deterministic runs, for how much work.
    """
    inside = _bank_problem(problem, bank, numbers)
    ids = {problem.buffers[number].id: number for number in numbers}
    overload = find_bank_overload(inside)
    if overload is not None:
        return None, tuple(ids[inside.buffers[at].id] for at in overload.buffers if inside.buffers[at].id in ids)
    quick = quick_plan(inside)
    if quick is not None:
        return _offsets(problem, bank, numbers, inside, quick[1]), None
    # Not at the top: small problems are settled without it.
    from stowplan.portfolio.packing.candidates import InnerRun, exact
    from stowplan.portfolio.packing.candidates import search as search_packing

    for function, share in ((search_packing, 0.4), (exact, 0.6)):
        inner = InnerRun(context, share * seconds)
        function(inside, inner)
        if inner.best is not None:
            return _offsets(problem, bank, numbers, inside, inner.best), None
        if inner.why is not None:
            conflict = [ids[name] for name in inner.why.get("conflict", {}).get("buffers", ids) if name in ids]
            return None, tuple(sorted(conflict))
    return None, None


def pack_quickly(problem: Problem, bank: int, numbers: Sequence[int], context: Context) -> dict[int, int] | None:
    """Offsets by buffer, where they are found in a moment."""
    inside = _bank_problem(problem, bank, numbers)
    quick = quick_plan(inside)
    return None if quick is None else _offsets(problem, bank, numbers, inside, quick[1])


def _offsets(problem: Problem, bank: int, numbers: Sequence[int], inside: packing.Problem, plan: Packing) -> dict[int, int]:
    """Offsets by buffer of a packing of a bank."""
    shift = 0 if any(buffer.offset is not None for buffer in inside.buffers) else problem.bottom(bank)
    ids = {problem.buffers[number].id: number for number in numbers}
    offsets = {ids[buffer.id]: at + shift for buffer, at in zip(inside.buffers, plan.offsets, strict=True) if buffer.id in ids}
    # What has no bytes collides with nothing, not even with what is reserved.
    return {number: at if problem.buffers[number].size else problem.first(number, bank) for number, at in offsets.items()}


def _bank_problem(problem: Problem, bank: int, numbers: Sequence[int]) -> packing.Problem:
    memory = problem.banks[bank]
    steps = {number: problem.step(number, bank) for number in numbers}
    bottom = problem.bottom(bank)
    # Offsets may count from the bottom where every step divides it; else what is reserved is a buffer at a fixed offset.
    shift = bottom if all(bottom % step == 0 for step in steps.values()) else 0
    buffers = [
        packing.Buffer(
            id=problem.buffers[number].id,
            lower=problem.buffers[number].lower,
            upper=problem.buffers[number].upper,
            size=problem.taken(number, bank),
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
