"""The candidates for tier placement, as functions of (problem, context).

A *candidate* is one method of a run of ``solve``. It returns nothing and raises no errors of its own: it reports plans, bounds
and hints to its :class:`~stowplan.kernel.context.Context`. A *tier* is one memory of a chip's memory hierarchy. A *map* assigns
a tier to every tensor, that is, to the weights and the output of every layer. Its *latency* is the time of one inference. A
*hint* gives for each tensor and tier a number that says how likely the tensor is there in a good plan. The *linear relaxation*
is the MILP of the problem without integrality; its optimum is a bound, and its solution a hint. In deterministic runs,
candidates ignore everything that depends on the load of the machine, such as the plans of other candidates.

If the MILP of a network is too large for branch and bound, a large-neighbourhood search solves it with most tensors fixed to
their tiers. It follows Shaw (CP 1998) and Danna, Rothberg and Le Pape, "Exploring relaxation induced neighborhoods to improve
MIP solutions" (Mathematical Programming 102, 2005). First it *frees* the tensors that the linear relaxation places differently
from the best map, that is, lets the MILP choose their tiers. Then it frees tensors of neighbouring layers and random ones.
"""

from __future__ import annotations

import itertools
import random
import time

from stowplan import work_rates
from stowplan.kernel.context import Context
from stowplan.models.hint import Hint
from stowplan.models.tier_placement.plan import Placed, Plan, placed
from stowplan.models.tier_placement.problem import Problem
from stowplan.models.tier_placement.structure import find_overload
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.presolve import includes_heuristics, presolve_seconds, report_if_overloaded, report_proof
from stowplan.portfolio.solver_limits import solver_options
from stowplan.portfolio.tier_placement import heuristics
from stowplan.portfolio.tier_placement.arrays import Data, Exporter, Ints, build, import_plan
from stowplan.portfolio.tier_placement.heuristics import Search, Walk

#: The source that the hint of the linear relaxation names.
RELAXATION = "relaxation"


class SearchParameters(Parameters, frozen=True):
    """Parameters of the candidates."""

    patience: int = 5
    """Number of annealing runs in a row without an improvement after which the search ends to make way for other candidates.
    A deterministic run does not use it."""
    first: int = 20_000
    """Number of moves of the first annealing run, in addition to ``each`` for each tensor."""
    each: int = 60
    """Number of moves of the first annealing run for each tensor, in addition to ``first``."""
    growth: float = 1.5
    """Factor by which each further annealing run is longer than the one before."""
    warmth: tuple[float, ...] = (1 / 30, 1 / 300, 1 / 5, 1 / 1000)
    """First temperatures of annealing runs that start from the best map, as fractions of the first temperature of a run from
    scratch. The runs take them in turn."""
    round_seconds: float = 5.0
    """Largest number of seconds for one *neighbourhood*, that is, one MILP with most tensors fixed."""
    round_units: float = 0.2
    """Limit of work for one neighbourhood of a deterministic run, in the unit of ``deterministic_limit`` of
    :func:`stowplan.models.tier_placement.milp.solve_milp`."""
    freed_first: float = 300.0
    """Number of tensors that are freed together at first."""
    freed_least: float = 20.0
    """Least number of tensors that are freed together."""
    freed_growth: float = 1.3
    """Factor by which the number of freed tensors grows after an easy neighbourhood."""
    freed_shrinkage: float = 0.7
    """Factor by which the number of freed tensors shrinks after a neighbourhood that was too hard."""
    easy: float = 0.4
    """Fraction of the time limit of a neighbourhood. A neighbourhood that is solved to optimality within it counts as easy."""
    agrees: float = 0.999
    """Fraction of a tensor that the relaxation must have in the tensor's tier of the map, at least, to agree with the map."""


PARAMS = parameters(SearchParameters, __name__)


def _prepare(problem: Problem, context: Context) -> tuple[Data, Exporter, Ints] | None:
    """Returns the arrays, the exporter, which turns maps into plans, and a first valid map of a problem.

    A map is *valid* if no capacity is exceeded. The result is None if no map is found, or if it is proven that none exists;
    either is reported.
    """
    if report_if_overloaded(context, find_overload(problem)):
        return None
    data = build(problem)
    begin = heuristics.any_map(data, context.seed())
    if begin is None and context.start_plan is not None:
        begin = import_plan(data, context.start_plan)
    if begin is None:
        context.note("found no map in which all tiers hold what stands in them")
        return None
    return data, Exporter(problem, data), begin


def _report(context: Context, exporter: Exporter, walk: Walk, source: str) -> None:
    """Report the best map of a heuristic as a plan, and leave a note with its latency and the heuristic's number of
    evaluations.

    An evaluation is one map that was tried. If no offsets are found for the map, report that the baseline of the name
    ``source`` has no plan.
    """
    plan = exporter.plan(walk.tier)
    if plan is not None:
        context.plan(plan, source)
    else:
        context.no_plan(source)
    context.note(f"{source}: {walk.latency} ps after {walk.evaluations} evaluations")


def greedy_dp(problem: Problem, context: Context) -> None:
    """The candidate that computes only the plan of the baseline ``greedy_dp``: Greedy-DP of the EGRL paper.

    Greedy-DP gives each layer in turn the best tiers while all other tensors are fixed (:mod:`.heuristics`). If it is stopped
    before its end, it reports nothing.
    """
    prepared = _prepare(problem, context)
    if prepared is not None:
        data, exporter, begin = prepared
        walk = heuristics.greedy_dp(data, begin, context.closed)
        if not context.closed():
            _report(context, exporter, walk, "greedy_dp")


def presolve(problem: Problem, context: Context) -> None:
    """The presolver, which runs before all other candidates on small networks: Greedy-DP, then the CP-SAT model.

    Greedy-DP, which makes the plan of a baseline, is left out if the run has no heuristics.
    """
    if includes_heuristics(context):
        greedy_dp(problem, context)
    _solve_cpsat(problem, context, presolve_seconds(context))


def search(problem: Problem, context: Context) -> None:
    """The main heuristic: Greedy-DP, which is fast, then simulated annealing, in turn from scratch and from the best map.

    When a hint arrives, a map that follows it is built, and the next annealing run starts from that map. The hint of the linear
    relaxation is computed after the first annealing run, unless another candidate has sent it before. Maps that follow a hint
    help because annealing does not find changes of many tensors at once, such as many small weights in place of a few large
    ones of about the same value.
    """
    began = _prepare(problem, context)
    if began is None:
        return
    data, exporter, begin = began
    greedy = heuristics.greedy_dp(data, begin, context.closed)
    _report(context, exporter, greedy, "greedy_dp")
    guides = Guides(problem, context, data, begin)
    run = Search(data, begin, context.seed())
    run.restart(greedy.tier)
    temperature = run.scale()
    moves = PARAMS.first + PARAMS.each * len(data.size)
    left = context.work(work_rates.TIER_MOVES)
    stale = 0
    for cycle in itertools.count():
        if context.closed() or left == 0 or (left is None and stale >= PARAMS.patience):
            break
        if left is not None:
            moves = min(moves, left)
            left -= moves
        before = run.walk.latency
        # Every other run starts from the best map, at a low temperature, to search near it. The others start from scratch.
        near = cycle % 2 == 1
        guided = guides.follow_new_hints(solve=near)
        if guided is not None:
            _report(context, exporter, guided, "guided")
            near = True
            run.restart(guided.tier)
        else:
            run.restart(_best(context, data, run.walk) if near else begin)
        warmth = PARAMS.warmth[cycle // 2 % len(PARAMS.warmth)] if near else 1.0
        run.cool(moves, temperature * warmth, context.closed)
        if run.walk.latency < before:
            stale = 0
            plan = exporter.plan(run.walk.tier)
            if plan is not None:
                context.plan(plan, "search")
            else:
                # No offsets were found for the map. The search goes on with a little less capacity, because such maps are
                # easier to pack.
                data = exporter.shrink(run.walk.tier)
                begin_again = heuristics.any_map(data, context.seed())
                if begin_again is None:
                    break
                begin = begin_again
                evaluations = run.walk.evaluations
                run = Search(data, begin, context.seed(cycle + 1))
                run.walk.evaluations = evaluations
        else:
            stale += 1
        moves = int(moves * PARAMS.growth)
    context.note(f"search: {run.walk.latency} ps after {run.walk.evaluations} evaluations")


class Guides:
    """Collects hints as they arrive and builds maps that follow them.

    If no other candidate has sent the hint of the linear relaxation by the second annealing run, it is computed here, within
    the time of the search. Otherwise the search might be over before another candidate has solved the relaxation.
    """

    def __init__(self, problem: Problem, context: Context, data: Data, begin: Ints):
        self._problem, self._context, self._data, self._begin = problem, context, data, begin
        self._hints_read = 0
        self._has_relaxation = False

    def follow_new_hints(self, solve: bool) -> Walk | None:
        """The best map that follows a hint that has arrived since the last call; None if there is none.

        ``solve`` says whether the relaxation may be solved now, if its hint has not arrived.
        """
        hints = self._context.hints()
        new_hints = [*hints[self._hints_read :]]
        self._hints_read = len(hints)
        self._has_relaxation |= any(hint.source == RELAXATION for hint in new_hints)
        if solve and not self._has_relaxation:
            self._has_relaxation = True
            hint, bound = solve_relaxation(self._problem, self._context)
            self._context.bound(bound, "linear")
            new_hints += [] if hint is None else [hint]
        walks = [
            heuristics.best_guided(self._problem, self._data, hint, self._begin, self._context.closed) for hint in new_hints
        ]
        return min((walk for walk in walks if walk is not None), key=lambda walk: walk.latency, default=None)


def solve_relaxation(problem: Problem, context: Context) -> tuple[Hint | None, int]:
    """Solve the linear relaxation; returns its hint, which is None if it takes too long, and its bound (ps)."""
    from stowplan.models.tier_placement.milp import relaxation

    return relaxation(problem, time_limit=context.longest(), seed=context.seed(), should_stop=context.closed)


def _best(context: Context, data: Data, walk: Walk) -> Ints:
    """The best map of this search or, if it is better and fits the capacities of ``data``, that of another candidate."""
    plan: Plan | None = context.incumbent()[0]
    if plan is not None and plan.objective < walk.latency:
        tier = import_plan(data, plan)
        if heuristics.is_valid(data, tier):
            return tier
    return walk.tier.copy()


def milp(problem: Problem, context: Context) -> None:
    """Solve the MILP with HiGHS, which also uses better plans of other candidates while it runs.

    It reports the plans, bounds and proofs of the solver.
    """
    from stowplan.models.tier_placement.milp import solve_milp

    outcome = solve_milp(
        problem,
        hint=context.start_plan,
        incumbent=context.heard(),
        **solver_options(context, "milp", work_rates.TIER_SOLVERS),
    )
    report_proof(context, outcome, "milp")


def cpsat(problem: Problem, context: Context) -> None:
    """Solve the CP-SAT model. The solver starts from the best plan so far, if there is one."""
    _solve_cpsat(problem, context, None)


def _solve_cpsat(problem: Problem, context: Context, seconds: float | None) -> None:
    """Solve the CP-SAT model, and report its plans and what it proves.

    ``seconds`` is its time limit; None for the time that the candidate has.
    """
    from stowplan.models.tier_placement import cpsat as model

    plan, bound = context.incumbent()
    outcome = model.solve(
        problem,
        hint=plan,
        lower_bound_ps=bound,
        **solver_options(context, "cpsat", work_rates.TIER_CPSAT, seconds=seconds),
    )
    report_proof(context, outcome, "cpsat")


def linear(problem: Problem, context: Context) -> None:
    """Solve the linear relaxation of a network whose MILP is too large for branch and bound, and report its bound and hint.

    If the solver takes too long, there is no hint.
    """
    hint, bound = solve_relaxation(problem, context)
    context.bound(bound, "linear")
    if hint is not None:
        context.hint(hint)


def counts(problem: Problem, context: Context) -> None:
    """Branch and bound for networks with repeated layers, over the numbers of weights of equal size in each tier.

    It reports plans and bounds, and also sends a hint to the other candidates. It never reports that no plan exists.
    """
    from stowplan.models.tier_placement.counts import solve_by_counts

    outcome = solve_by_counts(
        problem,
        hint=context.start_plan,
        incumbent=context.heard() or (lambda: None),
        on_hint=context.hint,
        **solver_options(context, "counts", work_rates.TIER_SOLVERS),
    )
    if outcome.bound is not None:
        context.bound(outcome.bound, "counts")


class Neighbourhoods:
    """Draws the tensors to free, in several ways in turn, and adapts their number so that the MILP can be solved in time.

    The ways are ``relaxation`` (once, if there is a hint), ``near`` (tensors of neighbouring layers) and ``anywhere`` (random
    tensors). ``sizes`` has the present number of tensors of the last two. ``hint`` is the hint of the relaxation, None for
    none.
    """

    def __init__(self, problem: Problem, hint: Hint | None, seed: int):
        self._tensors = placed(problem)
        self._layers = problem.layers
        self._tiers = [tier.name for tier in problem.tiers]
        self._hint = hint
        self._chance = random.Random(seed)
        self.sizes: dict[str, float] = dict.fromkeys(("near", "anywhere"), PARAMS.freed_first)
        self._turn = 0

    def draw(self, plan: Plan) -> tuple[str, set[Placed]]:
        """Draw tensors to free from the map of ``plan``; returns the name of the way by which they were drawn, and the tensors.

        There may be none if the relaxation agrees with the plan.
        """
        self._turn += 1
        if self._turn == 1 and self._hint is not None:
            return "relaxation", self._find_disagreeing(plan, self._hint)
        way = ("near", "anywhere")[self._turn % 2]
        count = round(self.sizes[way])
        if way == "anywhere":
            return way, {*self._chance.sample(self._tensors, min(count, len(self._tensors)))}
        free: set[Placed] = set()
        layer = self._chance.randrange(len(self._layers))
        reach = 0
        while len(free) < min(count, len(self._tensors)) and reach <= len(self._layers):
            for other in {layer - reach, layer + reach}:
                if 0 <= other < len(self._layers):
                    free.add(Placed(other, True))
                    free |= {Placed(other, False)} if self._layers[other].weight_bytes else set()
            reach += 1
        return way, free

    def learn(self, way: str, *, easy: bool, hard: bool) -> None:
        """Free more tensors in this way next time if the MILP was ``easy``, fewer if it was ``hard``."""
        if way in self.sizes:
            self.sizes[way] = max(
                PARAMS.freed_least, self.sizes[way] * (PARAMS.freed_growth if easy else PARAMS.freed_shrinkage if hard else 1.0)
            )

    def pins(self, plan: Plan, free: set[Placed]) -> dict[tuple[int, bool], int]:
        """Returns, by tensor, the tier of ``plan`` for each tensor that is not in ``free``."""
        return {tensor: tensor.tier(plan) for tensor in self._tensors if tensor not in free}

    def _find_disagreeing(self, plan: Plan, hint: Hint) -> set[Placed]:
        """Returns the tensors whose tier in the plan is not the one that the hint suggests."""
        shares = [hint.values[name] for name in self._tiers]
        return {tensor for number, tensor in enumerate(self._tensors) if shares[tensor.tier(plan)][number] < PARAMS.agrees}


def lns(problem: Problem, context: Context) -> None:
    """The large-neighbourhood search: it improves the best plan until the time is over.

    In a deterministic run, it ends after a number of neighbourhoods. If no candidate has found a plan before, it leaves a note
    and ends at once.
    """
    from stowplan.models.tier_placement.milp import solve_milp

    rounds = context.work(work_rates.TIER_ROUNDS, least=1)
    plan: Plan | None = context.incumbent()[0]
    if plan is None:
        context.note("found no plan to begin with")
        return
    neighbourhoods = Neighbourhoods(problem, next(iter(context.hints()), None), context.seed())
    done = 0
    while not context.closed() and (rounds is None or done < rounds):
        other = context.incumbent()[0]
        if other is not None and other.objective < plan.objective:
            plan = other
        way, free = neighbourhoods.draw(plan)
        done += 1
        if not free:
            continue
        limit, units = context.limits(min(PARAMS.round_seconds, context.remaining()), PARAMS.round_units)
        began = time.monotonic()
        outcome = solve_milp(
            problem,
            time_limit=limit,
            pins=neighbourhoods.pins(plan, free),
            seed=context.seed(done),
            deterministic_limit=units,
            hint=plan,
            should_stop=context.closed,
        )
        better, before = outcome.plan, plan.objective
        if better is not None and better.objective < before:
            plan = better
            context.plan(plan, "lns")
        solved = outcome.status == "optimal"
        quick = rounds is not None or time.monotonic() - began < PARAMS.easy * limit
        neighbourhoods.learn(way, easy=solved and quick, hard=not solved and plan.objective == before)
    sizes = ", ".join(f"{way} {size:.0f}" for way, size in neighbourhoods.sizes.items())
    context.note(f"{done} neighbourhoods ({sizes})")
