"""The candidates for memory mapping, as functions of (problem, context); each runs in a process of its own."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

from stowplan.compiled import mark_warm
from stowplan.errors import InputError
from stowplan.models.hint import Hint
from stowplan.models.memory_mapping.problem import Problem
from stowplan.portfolio.context import Context, Options, asks_for_heuristics, presolve_seconds
from stowplan.portfolio.memory_mapping import arrays, heuristics
from stowplan.portfolio.memory_mapping.convert import export_best, export_plan, import_plan
from stowplan.portfolio.memory_mapping.guided import best_guided
from stowplan.portfolio.memory_mapping.learned import GUIDE
from stowplan.portfolio.memory_mapping.reports import report_every
from stowplan.portfolio.memory_mapping.search import new_search, note_best, ruin_and_recreate
from stowplan.portfolio.memory_mapping.standstill import Standstill, makes_way
from stowplan.portfolio.memory_mapping.state import State

#: Rounds of ruin and recreate that a deterministic run does for each second of its limit, times uses. A run at full speed does
#: about three times as many.
DETERMINISTIC_ROUNDS = 300_000

#: Rounds between two looks at the clock in a deterministic run, and seconds in another.
DETERMINISTIC_PIECE = 20
LOOK_EVERY = 0.01

#: Part of its time that the exact side may take for the hint of a program of more uses than this; and part of the limit that a
#: search may take for a hint of its own.
LARGE_USES, LARGE_PART, WITHIN_PART = 15_000, 0.5, 0.25

#: Seconds that the learned guide takes for a use, and the one that learns nothing, generously; they are asked where all of it
#: is at most that part of the limit.
GUIDE_SECONDS, FILLED_SECONDS = 2e-5, 1e-5

#: In a deterministic run so many simplex iterations for each second of the limit, fewer for large programs, of which each takes
#: longer.
ITERATIONS, ITERATION_USES = 6000.0, 5000.0

#: Largest loss that a round may make at the beginning, of what lies between the first plan and the floor.
LOSS = 2e-3


def greedy(problem: Problem, context: Context) -> None:
    """The production-style greedy and nothing more: what runs while compiled code is not there yet."""
    data = arrays.build(problem)
    state, complete = heuristics.run(heuristics.production_greedy(data), context.stop)
    if complete:
        context.plan(export_plan(problem, data, state), "greedy")


def presolve(problem: Problem, context: Context) -> None:
    """The greedy, which is the baseline, then the complete model, on a small problem."""
    if asks_for_heuristics(context):
        greedy(problem, context)
    _solve_complete(problem, context, presolve_seconds(context))


def search(problem: Problem, context: Context) -> None:
    """Greedy, then other constructive heuristics and those that follow hints, then ruin and recreate until time is up."""
    data = arrays.build(problem)
    guides = Guides(problem, context, data)
    best: State | None = None
    for source, steps in heuristics.constructive(data):
        state, is_complete = heuristics.run(steps, context.stop)
        if not is_complete:
            # Half a greedy is no baseline.
            source = "search"
        if source == "greedy" or best is None or state.totals[0].total < best.totals[0].total:
            context.plan(export_plan(problem, data, state), source)
        for other in (state, guides.better(int(state.totals[0].total))):
            if other is not None and (best is None or other.totals[0].total < best.totals[0].total):
                best = other
        if context.stop():
            return
    if best is None or not problem.use_count:
        return
    if context.start_plan is not None:
        given = import_plan(problem, data, context.start_plan)
        if given.totals[0].total < best.totals[0].total:
            best = given
    _ruin_and_recreate(problem, context, data, best, guides)


class Guides:
    """Takes up hints as they come, and makes plans that follow them.

    Where there is none at the beginning, the first is the learned guide's; where learned candidates are left out, or the guide
    would take too long, that which fills memory by density. Where no other candidate solves the relaxation beside this one, it
    is solved here, in the time of the search.
    """

    def __init__(self, problem: Problem, context: Context, data: arrays.Data):
        self._problem, self._context, self._data = problem, context, data
        self._taken = 0
        self._is_first = True
        self._learned: Hint | None = None
        self._is_alone = relaxes_in_search(context.options)

    @property
    def has_heard(self) -> bool:
        """Whether another candidate has given a hint, and it was taken up."""
        return self._taken > 0

    def better(self, objective: int) -> State | None:
        """The best plan that follows a hint not taken up before, where it is better than this; it is reported."""
        best: State | None = None
        for hint in self._news():
            if self._context.stop():
                break
            if hint is self._learned:
                self._context.follows(GUIDE.described)
            state = best_guided(self._data, hint, self._context.stop, objective)
            if state.totals[0].total < (objective if best is None else best.totals[0].total):
                best = state
                self._context.plan(export_plan(self._problem, self._data, state), "guided")
        return best

    def _news(self) -> list[Hint]:
        hints = self._context.hints()
        found = [*hints[self._taken :]]
        self._taken = len(hints)
        if self._is_first:
            self._is_first = False
            own = [] if hints else self._own()
            if own:
                return own
        if self._is_alone:
            self._is_alone = False
            hint, bound = solve_relaxation(self._problem, self._context)
            self._context.bound(bound, "relaxation")
            found += [] if hint is None else [hint]
        return found

    def _own(self) -> list[Hint]:
        """What can be had at once where nobody has given a hint."""
        problem, context = self._problem, self._context
        self._learned = learned_hint(problem, context) if "learned" in context.options.candidates else None
        # Beside the learned guide's, the hint that learns nothing gains nothing more.
        found = filled_hint(problem, context) if self._learned is None else self._learned
        return [] if found is None else [found]


def _ruin_and_recreate(problem: Problem, context: Context, data: arrays.Data, state: State, guides: Guides) -> None:
    search = new_search(data, state, heuristics.densities(data, 1), context.options.seed)
    status = search.status[0]
    started = reported = int(status.best)
    pause = report_every(problem)
    report_at = time.monotonic() + pause
    floor = problem.floor_ps
    may_end = makes_way(problem, context.options)
    standstill = Standstill(time.monotonic())
    for part, rounds in _schedule(problem, context):
        guided = guides.better(int(status.best))
        if guided is not None:
            state = guided
            note_best(state, search)
            reported = int(status.best)
        before = int(status.best)
        # Threshold that falls to nothing: small losses are accepted early on.
        ruin_and_recreate(data, state, search, rounds, LOSS * (started - floor) * (1.0 - part) ** 2)
        standstill.add(before - int(status.best))
        if time.monotonic() >= report_at:
            report_at = time.monotonic() + pause
            _, bound = context.incumbent()
            if status.best < reported:
                reported = int(status.best)
                context.plan(export_best(problem, data, search), "search")
            if bound is not None and reported <= bound:
                return
            adopted = _adopt(problem, context, data, reported)
            if adopted is not None:
                state = adopted
                note_best(state, search)
                reported = int(status.best)
        # Not before the relaxation's hint is there: plans that follow it are built here.
        if may_end and guides.has_heard:
            gap = int(status.best) - max(floor, context.incumbent()[1] or 0)
            if standstill.is_reached(time.monotonic(), context.remaining(), gap):
                break
    mark_warm()
    if status.best < reported:
        context.plan(export_best(problem, data, search), "search")


def _schedule(problem: Problem, context: Context) -> Iterator[tuple[float, int]]:
    """Progress from 0 to 1, and rounds until the next look at the clock: by rounds in deterministic runs, else by time."""
    if context.options.deterministic:
        total = max(50, int(DETERMINISTIC_ROUNDS * context.options.time_limit / (problem.use_count + 50)))
        for done in range(0, total, DETERMINISTIC_PIECE):
            if context.stop():
                return
            yield done / total, min(DETERMINISTIC_PIECE, total - done)
    else:
        began, left = time.monotonic(), max(1e-3, context.remaining())
        rounds = 1
        while not context.stop():
            now = time.monotonic()
            yield min(1.0, (now - began) / left) if math.isfinite(left) else 0.5, rounds
            rounds = max(1, rounds // 2) if time.monotonic() - now > LOOK_EVERY else rounds + 1


def _adopt(problem: Problem, context: Context, data: arrays.Data, objective: int) -> State | None:
    """A plan of another candidate, where it is better and this state can hold it."""
    plan, _ = context.incumbent()
    if plan is None or plan.objective_ps >= objective:
        return None
    given = import_plan(problem, data, plan)
    return given if given.totals[0].total < objective else None


def learned_hint(problem: Problem, context: Context) -> Hint | None:
    """The learned guide's hint; None where it would take too long, or, with a note, where there is no such guide."""
    from stowplan.learned_guidance.memory_mapping.guide import guide

    if not 0 < GUIDE_SECONDS * problem.use_count <= WITHIN_PART * context.options.time_limit:
        return None
    try:
        return guide.learned_hint(problem, GUIDE.path)
    except InputError as error:
        context.note(f"the learned guide: {error}")
        return None


def filled_hint(problem: Problem, context: Context) -> Hint | None:
    """The hint that learns nothing; None where it would take too long."""
    from stowplan.learned_guidance.memory_mapping.guide import guide

    is_quick = 0 < FILLED_SECONDS * problem.use_count <= WITHIN_PART * context.options.time_limit
    return guide.filled_hint(problem) if is_quick else None


def relaxes_in_search(options: Options) -> bool:
    """Whether the search solves the relaxation for its hint itself: where the exact side has its turn only after it."""
    wanted = not {"exact", "relaxation"}.isdisjoint(options.candidates)
    return wanted and (options.deterministic or options.workers == 1)


def solve_relaxation(problem: Problem, context: Context) -> tuple[Hint | None, int]:
    """The plain relaxation's hint, None where it takes too long, and its bound (ps)."""
    from stowplan.models.memory_mapping.milp.hint import relaxation_hint
    from stowplan.models.memory_mapping.milp.solve import Effort

    options = context.options
    seconds = context.remaining()
    if relaxes_in_search(options):
        seconds = min(seconds, WITHIN_PART * options.time_limit)
    elif problem.use_count > LARGE_USES:
        seconds *= LARGE_PART
    iterations = int(ITERATIONS * options.time_limit / (1.0 + problem.use_count / ITERATION_USES))
    deterministic = options.deterministic
    effort = Effort(
        end=time.monotonic() + (context.remaining() if deterministic else seconds),
        seed=options.seed,
        iteration_limit=iterations if deterministic else None,
        should_stop=context.stop,
    )
    return relaxation_hint(problem, effort)


def relaxation(problem: Problem, context: Context) -> None:
    """A hint for the others; then bounds from detailed relaxations of segments, first linear, then with cuts and integers."""
    from stowplan.models.memory_mapping.milp.segments import SegmentBounds
    from stowplan.models.memory_mapping.milp.solve import Effort

    options = context.options
    if not relaxes_in_search(options):
        hint, bound = solve_relaxation(problem, context)
        context.bound(bound, "relaxation")
        if hint is not None:
            context.hint(hint)
    SegmentBounds(
        problem,
        Effort(
            end=time.monotonic() + context.remaining(),
            seed=options.seed,
            iteration_limit=int(2000 * options.time_limit) if options.deterministic else None,
            node_limit=int(5 * options.time_limit) if options.deterministic else None,
            should_stop=context.stop,
        ),
        on_bound=lambda bound: context.bound(bound, "relaxation"),
    ).run()


def complete(problem: Problem, context: Context) -> None:
    """The complete CP-SAT model, hinted with the best plan known; where the problem is beyond it, a note."""
    _solve_complete(problem, context, context.remaining())


def _solve_complete(problem: Problem, context: Context, seconds: float) -> None:
    from stowplan.models.memory_mapping.cpsat import solve as solve_complete

    plan, bound = context.incumbent()
    try:
        outcome = solve_complete(
            problem,
            time_limit=seconds,
            workers=1,
            seed=context.options.seed,
            deterministic_limit=context.options.time_limit / 12 if context.options.deterministic else None,
            hint=plan,
            lower_bound_ps=bound,
            on_plan=lambda found: context.plan(found, "cpsat"),
            on_bound=lambda bound: context.bound(bound, "cpsat"),
            should_stop=context.stop,
        )
    except NotImplementedError as error:
        context.note(f"the complete model does not take this problem: {error}")
        return
    context.plan(outcome.plan, "cpsat")
    context.bound(outcome.bound_ps, "cpsat")
