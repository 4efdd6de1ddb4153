"""The candidate ``stages``: bounds and plans from the staged MILP, as a function of (problem, context).

A *candidate* is one method of a run of ``solve``; it reports plans and bounds to its context and raises no errors of its own. A
*moment* is the first run of some operator, and a *chain* is a list of moments in a fixed order. The *staged program*
(:mod:`stowplan.models.rematerialization.stages`) is a MILP. It decides which operators run in each stage between two moments of
a chain, and requires that the live bytes are within the limit at these moments. It ignores the limit everywhere else, so its
optimum is a lower bound of the added cost. Its solution is a *draft*. The draft is *repaired*, that is, runs are added where it
exceeds the limit, and becomes a plan.
"""

from __future__ import annotations

from stowplan import work_rates
from stowplan.kernel.context import Context
from stowplan.models.rematerialization.cuts import Moments
from stowplan.models.rematerialization.moments import first_moments, more_moments
from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.problem import Problem
from stowplan.models.rematerialization.stages import Stages
from stowplan.models.rematerialization.structure import build
from stowplan.models.rematerialization.verify import load_bytes
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.rematerialization.insertion import Insertion
from stowplan.portfolio.rematerialization.two_cuts import PARAMS as CUTS


class StagesParameters(Parameters, frozen=True):
    """Parameters of the staged program."""

    share: float = 0.2
    """Part of the time limit for solving one staged program, unless one of the next two applies."""
    last_share: float = 0.5
    """Part of the time limit for the bound of the last chain and, on large graphs, of every chain."""
    draw_share: float = 0.1
    """Part of the time limit for a draft of a random chain and limit."""
    misses: int = 12
    """Number of random drafts in a row after which no more are made, if none of them improves the plan or the bound or could
    lead to a better plan."""
    nodes: int = 20
    """Largest number of nodes of branch and bound for one program in a deterministic run."""
    first: int = 3
    """Number of moments that are tried as the first of the chain."""
    aims: int = 6
    """Largest number of limits below that of the problem that are tried for one chain."""
    bound_gap: float = 0.01
    """Gap between solution and bound at which the solver stops, as a fraction of the best bound so far, if a program is solved
    for its bound."""
    draft_gap: float = 0.03
    """The same gap if a program is solved for a draft of a plan."""


PARAMS = parameters(StagesParameters, __name__)


class _StagedSearch:
    """The state of the candidate: the chain of moments, the best plan (None if there is none) and the best bound.

    ``programs`` is the number of programs that a deterministic run may still solve, None for no limit.
    """

    def __init__(self, problem: Problem, context: Context, limit: int):
        self.problem, self.context, self.limit = problem, context, limit
        self.structure = build(problem)
        # On large graphs, a program takes seconds. Therefore cuts choose the first moment, and longer chains come before lower
        # limits.
        self.is_large = self.structure.ops >= CUTS.large
        self.moments = Moments(self.structure)
        self.insertion = Insertion(self.structure)
        self.most_added = CUTS.most_added // self.structure.ops if self.is_large else None
        self.chain: list[int] = []
        self.best: Plan | None = None
        self.bound = 0
        self.programs = context.work(work_rates.REMAT_PROGRAMS, max(1, self.structure.ops), least=2)
        self.is_short = False
        """Whether the last program was not even solved to twice its gap in time."""

    def is_done(self) -> bool:
        """Whether the best plan is proven optimal, or the time or the work is used up."""
        if self.best is not None and self.best.objective <= self.bound:
            return True
        return self.context.closed() or self.programs == 0

    def draft(self, aim: int, gap: float, share: float = PARAMS.share, stream: int = 0) -> tuple[list[int], list[int]] | None:
        """Solve the program of the chain for a limit of ``aim`` bytes; report its bound and the plan of the repaired draft.

        The bound is reported only if ``aim`` is the limit of the problem. The solver stops at a gap of ``gap``, as a fraction
        of the bound so far, or after the part ``share`` of the time limit. ``stream`` is the number of its stream of random
        numbers.

        Returns
        -------
        tuple or None
            The draft, a sequence that may exceed the limit, and the live bytes of each of its runs. None if the program gave no
            draft, or none that could lead to a better plan.
        """
        context = self.context
        self.programs = None if self.programs is None else self.programs - 1
        seconds, nodes = context.limits(min(context.remaining(), context.seconds(share)), PARAMS.nodes)
        outcome = Stages(self.structure, self.moments, aim, self.chain).solve(
            time_limit=seconds,
            seed=context.seed(stream),
            gap=gap * max(self.bound, 1e-4 * sum(self.structure.cost)),
            node_limit=nodes,
            should_stop=context.closed,
        )
        if outcome.is_infeasible and aim == self.limit:
            context.proven_infeasible("stages", {"explanation": "no plan keeps the limit at the first runs of some operators"})
        if aim == self.limit and outcome.bound is not None and outcome.bound > self.bound:
            self.bound = outcome.bound
            context.bound(outcome.bound, "stages")
        self.is_short = (
            outcome.cost is None or outcome.bound is None or outcome.cost - outcome.bound > 2 * gap * max(1, outcome.cost)
        )
        if not outcome.sequence or (aim < self.limit and self.best is not None and (outcome.cost or 0) >= self.best.objective):
            return None
        live = load_bytes(self.problem, self.structure.made(outcome.sequence))
        repaired = self.insertion.repaired(outcome.sequence, self.limit, context.closed, self.most_added)
        plan = None if repaired is None else self.structure.made(repaired)
        if plan is not None and plan.peak <= self.limit and (self.best is None or plan.objective < self.best.objective):
            self.best = plan
            context.plan(plan, "stages")
        return outcome.sequence, list(live)


def stages(problem: Problem, context: Context) -> None:
    """The candidate ``stages``: it solves programs of longer and longer chains.

    For each chain, on large graphs only for the last one, it also makes drafts for lower limits, until one is within the limit
    without a repair. The remaining time is for the bound of the longest chain, and for drafts of random chains and limits.
    Without a limit or without operators it does nothing.
    """
    if problem.limit is None or not problem.ops:
        return
    run = _StagedSearch(problem, context, problem.limit)
    run.chain = _with_counted(run, _first_by_cuts(run) if run.is_large else _first(run))
    chains, deepest = [run.chain], 0
    while not run.is_done():
        drafted = run.draft(run.limit, PARAMS.bound_gap, PARAMS.last_share if run.is_large else PARAMS.share)
        if drafted is None:
            break
        sequence, live = drafted
        is_short = run.is_short
        longer = more_moments(run.moments, run.chain, sequence, live, run.limit, max(1, len(run.chain) // 2))
        is_last = is_short or len(longer) == len(run.chain)
        if is_last or not run.is_large:
            deepest = max(deepest, _lower_limits(run, max(live)))
        if is_last:
            if not run.is_done():
                run.draft(run.limit, 0.0, PARAMS.last_share)
            break
        run.chain = longer
        chains.append(longer)
    _random_drafts(run, chains, deepest)


def _with_counted(run: _StagedSearch, chain: list[int]) -> list[int]:
    """The chain, with the operators on whose live bytes the sizes of reservations depend.

    A *reservation* is a number of bytes of the limit that something outside of the graph takes between two moments. Such an
    operator is added only if its order relative to all operators of the chain is fixed.
    """
    for op in dict.fromkeys(row.of for row in run.structure.reservations if row.of is not None):
        near = run.moments.before[op] | run.moments.after[op]
        if op not in chain and all(near >> other & 1 for other in chain):
            chain = sorted([*chain, op], key=run.structure.order.index)
    return chain


def _first(run: _StagedSearch) -> list[int]:
    """A chain of one moment: of a few moments with many live bytes, the one whose program has the best bound."""
    best: list[int] = []
    for op in first_moments(run.structure, PARAMS.first):
        before, run.chain = run.bound, [op]
        if run.is_done() or run.draft(run.limit, PARAMS.bound_gap) is None:
            break
        if not best or run.bound > before:
            best = [op]
    return best or run.chain


def _first_by_cuts(run: _StagedSearch) -> list[int]:
    """A chain of one moment: of a few moments with many live bytes, the one whose minimum cut gives the best bound."""
    costs = {}
    for op in first_moments(run.structure, PARAMS.first):
        cost = run.moments.added_cost(op, run.limit)
        costs[op] = sum(run.structure.cost) if cost is None else cost
        if cost is not None and cost > run.bound:
            run.bound = cost
            run.context.bound(cost, "stages")
    return [max(costs, key=costs.__getitem__)]


def _lower_limits(run: _StagedSearch, peak: int) -> int:
    """Make drafts for lower and lower limits, until one is within the problem's limit without a repair.

    ``peak`` is the peak of the draft before, in bytes. Returns by how many bytes the limit was lowered, 0 if it was not.
    """
    aim, deepest = run.limit, 0
    for _ in range(PARAMS.aims):
        if peak <= run.limit or run.is_done():
            break
        aim -= max(1, (peak - run.limit) // 2)
        lower = run.draft(aim, PARAMS.draft_gap)
        if lower is None:
            break
        peak, deepest = max(lower[1]), max(deepest, run.limit - aim)
    return deepest


def _random_drafts(run: _StagedSearch, chains: list[list[int]], deepest: int) -> None:
    """Make drafts of random chains and limits, because drafts of equal cost may need repairs of different costs.

    ``deepest`` is the number of bytes by which limits were lowered before.
    """
    chance, misses, stream = run.context.rng(), 0, 0
    while not run.is_done() and misses < PARAMS.misses:
        run.chain = chains[int(chance.integers(len(chains)))]
        aim = run.limit - int(chance.uniform(0.0, 1.5) * deepest)
        began = run.bound, run.best
        drafted = run.draft(
            aim, float(chance.choice([PARAMS.bound_gap, PARAMS.draft_gap])), PARAMS.draw_share, stream := stream + 1
        )
        misses = misses + 1 if drafted is None and began == (run.bound, run.best) else 0
