"""Large-neighbourhood search with CP-SAT for memory mapping.

Each round *frees* some tensors for a part of the program, that is, lets their places in memory change there; this is the
*neighbourhood*. CP-SAT finds the best plan in which only these tensors change, and the search continues from it if it is better
(after Shaw, "Using constraint programming and local search methods to solve vehicle routing problems", CP 1998). Ruin and
recreate (:mod:`.search`) inserts one tensor at a time. This search changes many at once, and so finds exchanges of tensors that
are better only when they are complete.

The ways to choose a neighbourhood (:mod:`.neighbourhoods`) are the *arms* of a multi-armed bandit: an arm that has saved more
time per second of work is chosen more often.

Several searches improve the best plan in parallel and find different improvements. A search that simply continued from another
search's plan would lose its own improvements. It therefore applies its latest changes (:class:`Changes`) to that plan, unless
the other search has changed the same tensors. A *use* is the read or write of a tensor by a step of the program. A *timeline*
is a plan with the times of its steps (:class:`~stowplan.models.memory_mapping.copy_engine.PlanTimeline`). A *residency* is the
stay of a tensor in fast memory, and a *hint* is a guess of how likely each tensor is there. A copy is *sliced* if it is made in
several parts. Nothing in this module raises an error, except as stated.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from stowplan import work_rates
from stowplan.kernel.context import Context
from stowplan.models.hint import Hint
from stowplan.models.memory_mapping.copy_engine import PlanTimeline, ProblemFacts, with_whole_copies
from stowplan.models.memory_mapping.cpsat import Improvement, Neighbourhood, improve, size_estimate
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.memory_mapping.verify import verify
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.memory_mapping import arrays, heuristics
from stowplan.portfolio.memory_mapping.convert import export_plan
from stowplan.portfolio.memory_mapping.learned import GUIDE, LEARNED
from stowplan.portfolio.memory_mapping.neighbourhoods import Chooser
from stowplan.portfolio.memory_mapping.pace import Stopwatch, report_every


class NeighbourhoodsParameters(Parameters, frozen=True):
    """Parameters of large-neighbourhood search."""

    round_seconds: float = 2.0
    """Largest number of seconds for solving one neighbourhood."""
    round_share: float = 0.05
    """Largest fraction of the run's time limit for solving one neighbourhood, if that is less than ``round_seconds``."""
    easy: float = 0.4
    """Fraction of the time limit of a neighbourhood. A neighbourhood that is solved to optimality within it counts as easy, and
    the next one frees more tensors."""
    first_count: int = 16
    """Number of tensors that a neighbourhood frees at first."""
    least_count: int = 3
    """Number of tensors below which the number of freed tensors does not shrink."""
    growth: float = 1.15
    """Factor by which the number of freed tensors grows after an easy round."""
    shrinkage: float = 0.8
    """Factor by which the number of freed tensors shrinks after a round that was too hard."""
    most_literals: int = 8000
    """Largest number of literals (Boolean variables) in the model of a neighbourhood. A larger model is not built."""
    memory: float = 0.9
    """Factor by which an arm's past gains and times are multiplied in each of its rounds."""
    curiosity: float = 0.2
    """Fraction of the rounds in which all arms are chosen with equal probability."""
    wait_for_start: float = 4.0
    """Largest number of seconds that the search waits for a plan of another candidate that uses fast memory."""
    remembered: int = 200
    """Number of changes that are remembered. Older ones have been reported long ago."""


PARAMS = parameters(NeighbourhoodsParameters, __name__)


@dataclass
class Arm:
    """One way to choose neighbourhoods, as an arm of a multi-armed bandit."""

    way: str
    """Name of the way: a key of :attr:`~stowplan.portfolio.memory_mapping.neighbourhoods.Chooser.ways`."""
    frozen: bool
    """Whether the times at which steps begin are constants of the model, taken from the current plan, which makes the model
    smaller."""
    count: float = PARAMS.first_count
    """Number of tensors to free, which is rounded to an integer."""
    gained: float = 0.0
    """Picoseconds that the arm's rounds have saved. Earlier rounds count less (:attr:`NeighbourhoodsParameters.memory`)."""
    spent: float = 0.5
    """Seconds that the arm's rounds took, weighted in the same way. It begins above 0, since rates are divided by it."""

    @property
    def rate(self) -> float:
        """Picoseconds saved for each second."""
        return self.gained / self.spent

    def learn(self, gain: int, seconds: float) -> None:
        """Record the gain (ps) and the seconds of one round."""
        self.gained = PARAMS.memory * self.gained + gain
        self.spent = PARAMS.memory * self.spent + max(0.01, seconds)

    def resize(self, outcome: Improvement, gain: int, seconds: float, limit: float, most: int) -> None:
        """Free more tensors after an easy round, at most ``most``, and fewer after one that ran out of time without a gain.

        ``gain`` is the gain of the round in ps. ``seconds`` is the time that the solver took, of a ``limit`` in seconds.
        """
        if outcome.status == "optimal" and seconds < PARAMS.easy * limit:
            self.count = min(float(most), self.count * PARAMS.growth)
        elif outcome.status in ("feasible", "none") and not gain:
            self.count = max(float(PARAMS.least_count), self.count * PARAMS.shrinkage)


def lns(problem: Problem, context: Context) -> None:
    """The candidate ``lns``: it improves the best plan until the time is over or the plan is proven optimal.

    A problem without uses is left to other candidates, and so is one for which no plan has been found. If the exact model does
    not support the problem, the candidate leaves a note.
    """
    _lns(problem, context, "lns")


def lns2(problem: Problem, context: Context) -> None:
    """A second large-neighbourhood search with other random numbers, which runs in parallel to the first."""
    _lns(problem, context, "lns2", 1)


def _lns(problem: Problem, context: Context, source: str, stream: int = 0) -> None:
    """Run one search, which reports under the name ``source`` and uses the random numbers of one stream."""
    if not problem.use_count:
        return
    facts = ProblemFacts(problem)
    start = _start(problem, context)
    if start is not None and not context.closed():
        try:
            # Neighbourhoods support whole copies only.
            LargeNeighbourhoodSearch(facts, context, with_whole_copies(problem, start), source, stream).run()
        except NotImplementedError as error:
            context.note(f"the exact model does not take this problem: {error}")


def _start(problem: Problem, context: Context) -> Plan | None:
    """The plan to start from; None if there is none.

    It is the best plan of other candidates. In a deterministic run, in which candidates exchange nothing, it is the best of the
    caller's plan and of those that the constructive heuristics make here.
    """
    if context.heard() is not None:
        return _wait_for_plan(context)
    data = arrays.build(problem)
    best: Plan | None = context.start_plan
    for _, steps in heuristics.constructive(data):
        state, _ = heuristics.run(steps, context.closed)
        plan = export_plan(problem, data, state)
        if best is None or plan.objective < best.objective:
            best = plan
            context.plan(plan, "lns")
        if context.closed():
            break
    return best


def _wait_for_plan(context: Context) -> Plan | None:
    """Wait for a plan that uses fast memory; returns the best plan of all candidates, None if there is none.

    It waits for at most :attr:`NeighbourhoodsParameters.wait_for_start` seconds and a fifth of the time limit.
    """
    deadline = time.monotonic() + min(PARAMS.wait_for_start, context.seconds(0.2))
    while True:
        plan: Plan | None = context.incumbent()[0]
        if (plan is not None and plan.residencies) or time.monotonic() >= deadline or context.closed():
            return plan
        time.sleep(0.05)


class LargeNeighbourhoodSearch:
    """The state of one large-neighbourhood search; :meth:`run` runs it, once.

    Parameters
    ----------
    facts
        The problem.
    context
        The context of the candidate.
    plan
        A valid plan to start from, without sliced copies.
    source
        Name under which plans are reported.
    stream
        Number of the stream of random numbers (:meth:`~stowplan.kernel.context.Context.seed`).
    """

    def __init__(self, facts: ProblemFacts, context: Context, plan: Plan, source: str = "lns", stream: int = 0):
        seed = context.seed(stream)
        self._facts = facts
        self._problem = facts.problem
        self._context = context
        self._source, self._seed = source, seed
        self._chooser = Chooser(facts, seed)
        self._hint: Hint | None = None
        self._random = random.Random(seed)
        self._changes = Changes(facts)
        self._clock = Stopwatch(context.heard() is None)
        self._examined_plan: Plan | None = context.incumbent()[0] if self._clock.is_counted else None
        """The plan of another candidate that was examined last."""
        work_seconds = context.units(work_rates.MAPPING_NEIGHBOURHOODS)
        self._end = math.inf if work_seconds is None else self._clock.now() + work_seconds
        self._timeline = PlanTimeline(facts, plan)
        self._verified_timeline = self._timeline
        """The last plan that was verified."""
        self._is_careful = self._clock.is_counted
        """Whether every plan is verified when it is found. Deterministic runs always do so, other runs once a plan has turned
        out not to be valid."""
        self._reported = plan.objective
        self._report_at = 0.0
        self.arms: list[Arm] = []
        self._untried: list[Arm] = []
        self._update_hints_and_arms()

    def run(self) -> None:
        """Solve neighbourhoods until the time is over or the plan is proven optimal.

        Raises NotImplementedError if the exact model does not support the problem. If no tensor is worth freeing, nothing is
        done.
        """
        rounds = 0
        while self._chooser.count and not self._is_over():
            self._update_hints_and_arms()
            arm = self._choose()
            arm.learn(*self._round(arm, rounds))
            rounds += 1
            if time.monotonic() >= self._report_at:
                self._report()
                self._adopt()
        self._report()
        used = ", ".join(f"{arm.way}{'*' if arm.frozen else ''} {arm.count:.0f}" for arm in self.arms)
        self._context.note(f"{rounds} neighbourhoods ({used})")

    def _update_hints_and_arms(self) -> None:
        """Choose the hint to follow, and add arms for ways to choose neighbourhoods that are new.

        It is the first hint that is not from the learned guide (a neural network), or else the learned guide's.
        """
        hint = min(self._context.hints(), key=lambda hint: hint.source == LEARNED, default=None)
        if hint is not None and hint is not self._hint:
            self._hint = hint
            self._chooser.follow(hint)
            if hint.source == LEARNED:
                self._context.follows(GUIDE.file_and_digest)
        clocks = [False, True] if self._problem.stalls == "allowed" and self._problem.channels == 1 else [True]
        present_ways = {arm.way for arm in self.arms}
        added = [Arm(way, frozen) for way in self._chooser.ways if way not in present_ways for frozen in clocks]
        self.arms += added
        self._untried += added

    def _is_over(self) -> bool:
        """Whether the time is over or the plan, once verified, meets the bound."""
        if self._clock.now() >= self._end:
            return True
        _, bound = self._context.incumbent()
        if bound is not None and self._timeline.objective <= bound:
            # The report verifies the plan. If it is not valid, the search goes on.
            self._report()
        return self._context.closed() or (bound is not None and self._timeline.objective <= bound)

    def _choose(self) -> Arm:
        """Choose an arm: first each of them once, then at random, in proportion to their rates or sometimes uniformly."""
        if self._untried:
            return self._untried.pop(0)
        rates = [arm.rate for arm in self.arms]
        if self._random.random() < PARAMS.curiosity or not any(rates):
            return self._random.choice(self.arms)
        return self._random.choices(self.arms, weights=rates)[0]

    def _round(self, arm: Arm, number: int) -> tuple[int, float]:
        """Solve one neighbourhood and keep its plan if it is better; returns the gain (ps) and the seconds that it took."""
        began = self._clock.now()
        limit = min(PARAMS.round_seconds, self._context.seconds(PARAMS.round_share))
        gain = 0
        free = self._chooser.ways[arm.way](self._timeline, round(arm.count))
        if free is not None:
            tensors = free.tensors[: round(arm.count)]
            neighbourhood = Neighbourhood(self._timeline, tensors, free.start, free.end, frozen=arm.frozen)
            size = size_estimate(neighbourhood.sequences)
            self._clock.spend(0.0, work_rates.BUILD_SECONDS + work_rates.LITERAL_SECONDS * size)
            if size > PARAMS.most_literals:
                arm.count = max(float(PARAMS.least_count), arm.count * PARAMS.shrinkage)
            else:
                seconds, work = self._context.limits(min(limit, self._context.remaining()), limit / work_rates.CPSAT_SECONDS)
                outcome = improve(
                    neighbourhood,
                    time_limit=seconds,
                    seed=self._seed + number,
                    deterministic_limit=work,
                    should_stop=self._context.closed,
                )
                solving = self._clock.spend(outcome.seconds, work_rates.CPSAT_SECONDS * outcome.deterministic)
                gain = self._accept(outcome.plan)
                arm.resize(outcome, gain, solving, limit, self._chooser.count)
        return gain, self._clock.now() - began

    def _accept(self, plan: Plan | None) -> int:
        """Continue from a plan if it is better than the current one; returns the gain (ps), 0 if it is not better."""
        if plan is None:
            return 0
        improved = PlanTimeline(self._facts, plan, self._timeline)
        gain = self._timeline.objective - improved.objective
        if gain <= 0:
            return 0
        better = msgspec.structs.replace(plan, objective=improved.objective)
        if self._is_careful and not verify(self._problem, better).ok:
            return 0
        improved.plan = better
        self._changes.add(self._timeline, improved)
        self._timeline = improved
        return gain

    def _report(self) -> None:
        """Verify and report the plan if it has improved. Not every plan is verified, because that takes too long."""
        if self._timeline.objective < self._reported:
            if self._is_careful or verify(self._problem, self._timeline.plan).ok:
                self._verified_timeline = self._timeline
                self._reported = self._timeline.objective
                self._context.plan(self._timeline.plan, self._source)
            else:
                self._timeline, self._is_careful = self._verified_timeline, True
                self._context.note("a neighbourhood's plan was not valid: back to the last that was")
        self._report_at = time.monotonic() + report_every(self._problem)

    def _adopt(self) -> None:
        """Continue from another candidate's plan if it is better, with this search's own changes if possible."""
        plan, _ = self._context.incumbent()
        if plan is None or plan is self._examined_plan:
            return
        self._examined_plan = plan
        theirs = PlanTimeline(self._facts, with_whole_copies(self._problem, plan))
        merged = self._with_own_changes(theirs)
        if merged is not None:
            self._timeline = self._verified_timeline = merged
            self._reported = merged.objective
            self._context.plan(merged.plan, self._source)
        elif theirs.objective < self._timeline.objective:
            self._timeline = self._verified_timeline = theirs
            self._reported = min(self._reported, theirs.objective)

    def _with_own_changes(self, theirs: PlanTimeline) -> PlanTimeline | None:
        """Another candidate's plan with the latest changes of this search.

        The result is None if no change can be applied, or if the plan is not valid or not better than both plans.
        """
        plan = self._changes.applied_to(theirs)
        if plan is None:
            return None
        merged = PlanTimeline(self._facts, plan, theirs)
        merged.plan = msgspec.structs.replace(plan, objective=merged.objective)
        is_better = merged.objective < min(theirs.objective, self._timeline.objective)
        return merged if is_better and verify(self._problem, merged.plan).ok else None


class Standing(NamedTuple):
    """The part of a plan that concerns one tensor, by which changes are compared."""

    residencies: tuple[Residency, ...]
    """Its stays in fast memory."""
    copies: tuple[Copy, ...]
    """Its copies, in the order of the plan's list."""
    fast: tuple[int, ...]
    """Numbers of its uses that are served from fast memory."""


class Placed(NamedTuple):
    """The part of a plan that concerns one tensor, with the positions of the tensor's copies in the plan's list."""

    standing: Standing
    """The part of the plan."""
    places: tuple[float, ...]
    """Position of each copy, as a fraction of the length of the list."""


class Change(NamedTuple):
    """The tensors that a step of the search has changed, with their parts of the plan before and after the step."""

    before: dict[int, Standing]
    """The parts before the step, by tensor."""
    after: dict[int, Placed]
    """The parts after the step, by tensor."""


class Changes:
    """The latest changes of a search, at most :attr:`NeighbourhoodsParameters.remembered`, in the order in which they were
    made."""

    def __init__(self, facts: ProblemFacts):
        self._facts = facts
        self._owner = facts.problem.tensor_of_use
        self._changes: deque[Change] = deque(maxlen=PARAMS.remembered)

    def add(self, before: PlanTimeline, after: PlanTimeline) -> None:
        """Remember the differences between two plans. The second one was made from the first."""
        tensors = {residency.tensor for residency in {*before.plan.residencies} ^ {*after.plan.residencies}}
        tensors |= {copy.tensor for copy in {*before.plan.copies} ^ {*after.plan.copies}}
        tensors |= {self._owner[use] for use in {*before.plan.fast_uses} ^ {*after.plan.fast_uses}}
        if tensors:
            ordered = sorted(tensors)
            old = {tensor: self._placed(before, tensor).standing for tensor in ordered}
            self._changes.append(Change(old, {tensor: self._placed(after, tensor) for tensor in ordered}))

    def applied_to(self, timeline: PlanTimeline) -> Plan | None:
        """Apply the changes to another plan; returns None if none can be applied.

        A change is applied if the other plan is, for each of its tensors, as this search's plan was before the change. The
        result need not be valid, and its objective is not set.
        """
        new: dict[int, Placed] = {}
        for change in self._changes:
            if all(
                (new.get(tensor) or self._placed(timeline, tensor)).standing == old for tensor, old in change.before.items()
            ):
                new |= change.after
        return self._with(timeline.plan, new) if new else None

    def _placed(self, timeline: PlanTimeline, tensor: int) -> Placed:
        """The part of a plan that concerns one tensor."""
        copies = timeline.copies.get(tensor, [])
        accesses = self._facts.sequences[tensor].accesses
        standing = Standing(
            tuple(timeline.residencies.get(tensor, ())),
            tuple(copy for _, copy in copies),
            tuple(use for access in accesses for use in access.uses if timeline.fast[use]),
        )
        return Placed(standing, tuple(place / len(timeline.plan.copies) for place, _ in copies))

    def _with(self, plan: Plan, new: dict[int, Placed]) -> Plan:
        """The plan in which ``new`` replaces the parts of some tensors."""
        count = len(plan.copies)
        residencies = [residency for residency in plan.residencies if residency.tensor not in new]
        queue = [(copy.start, place / count, copy) for place, copy in enumerate(plan.copies) if copy.tensor not in new]
        fast = [use for use in plan.fast_uses if self._owner[use] not in new]
        for standing, places in new.values():
            residencies += standing.residencies
            queue += [(copy.start, place, copy) for place, copy in zip(places, standing.copies, strict=True)]
            fast += standing.fast
        queue.sort(key=lambda entry: entry[:2])
        return msgspec.structs.replace(
            plan,
            residencies=tuple(sorted(residencies, key=lambda residency: (residency.start, residency.tensor))),
            copies=tuple(copy for _, _, copy in queue),
            fast_uses=tuple(sorted(fast)),
        )
