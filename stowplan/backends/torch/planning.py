"""A plan of one joint graph within a limit: what is at hand, what is found in time, and what is proven where nothing fits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from stowplan.backends.torch import stock
from stowplan.backends.torch.errors import MemoryLimitError
from stowplan.backends.torch.reader import Counted, Reading
from stowplan.log import LOGGER
from stowplan.models.rematerialization import bounds
from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.problem import Problem
from stowplan.models.rematerialization.structure import Structure, build
from stowplan.models.rematerialization.verify import live_bytes, verify
from stowplan.portfolio.rematerialization import peaks
from stowplan.portfolio.rematerialization.greedy import Policy, simulate
from stowplan.portfolio.rematerialization.insertion import Insertion
from stowplan.portfolio.solve import solve

#: Parts of the time left for the simulations, where they reach nothing for the search for the least peak, and then for torch's
#: plans at lower budgets.
SIMULATION_SHARE, SEARCH_SHARE, STOCK_SHARE = 0.4, 0.6, 0.3

#: Weights of the simulations: the first of those for the least peak.
POLICIES = peaks.POLICIES[:3]

#: For saying what is possible, seconds and part of the time limit, at least.
LEAST_LEFT, LEAST_SHARE = 3.0, 0.5

#: Seconds below which no search begins: its processes would hardly have started.
LEAST_SEARCH = 1.0


@dataclass(frozen=True)
class Settings:
    """What the partitioner was asked for."""

    limit: int
    """Bytes of the graphs."""
    outside: int = 0
    """Bytes beside them, within the limit of a step."""
    counted: Counted = field(default_factory=Counted)
    time_limit: float = 20.0
    """Seconds for each graph."""
    strict: bool = True
    """Whether a limit that cannot be met is an error."""
    graphs: int = 1
    """How many graphs share the limit."""
    workers: int = 2
    seed: int = 0


class GraphReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one graph. Peaks are bytes of tensors that are live at once, as far as they count."""

    operators: int
    limit: int
    """Bytes: this graph's part of the limit."""
    stock_peak: int | None
    """Of torch's own plan at the budget that is set; None where that breaks a rule (it reads what was written over, say)."""
    peak: int
    added_flops: int
    """Floating-point operations beyond those of each operator once."""
    added_runs: int
    added_cost: int
    """In floating-point operations; moved bytes count as those that take as long."""
    bound: int
    """No plan within the limit adds less."""
    saved: int
    """Bytes that live from the forward to the backward pass, with inputs and results."""
    source: str
    """What found the plan: ``stock`` where it stayed torch's own."""
    seconds: float


class Choice(msgspec.Struct, frozen=True):
    """A plan of a graph, and what is said of it."""

    sequence: tuple[int, ...]
    report: GraphReport
    is_stock: bool
    """Whether torch's own modules at the budget that is set are this plan."""


class Chooser:
    """Seeks the plan that adds least within a limit.

    Parameters
    ----------
    reading
        The joint graph.
    limit
        Bytes.
    own
        Runs of torch's own plan at the budget that is set.
    others
        Its plans at other budgets, as long as what it is given says that there is time.
    stock_seconds
        That each of torch's plans takes.
    began
        When the time limit began, by ``time.monotonic``.
    """

    def __init__(
        self,
        reading: Reading,
        limit: int,
        settings: Settings,
        own: Sequence[int] | None,
        others: Callable[[Callable[[], bool]], Iterator[stock.Stock]],
        stock_seconds: float,
        began: float,
    ):
        self.reading, self.limit, self.settings = reading, limit, settings
        self.others, self.stock_seconds, self.began = others, stock_seconds, began
        self.free: Structure = build(reading.problem)
        self.own = None if own is None else self.free.made(own)
        if self.own is not None and not verify(self.free.problem, self.own).ok:
            self.own = None
        self.plans: dict[str, Plan] = {}
        self.insertion = Insertion(self.free)
        self.least = self.free.made(self.free.order).peak
        """Bytes of the least peak reached, and what no plan is below."""
        self.bound = bounds.load_bound(self.free)

    def choose(self, keep_own: bool) -> Choice:
        """The plan; with ``keep_own`` torch's own stays where it is within the limit.

        Raises
        ------
        MemoryLimitError
            No plan was found; says whether it is proven that there is none.
        """
        if self.own is not None:
            if keep_own and self.own.peak <= self.limit:
                return self._choice(self.own, "stock", 0)
            # Never above torch's own peak, however much is allowed.
            self.limit = min(self.limit, max(self.own.peak, 1))
        self._offer("given", self.free.order)
        if self.own is not None:
            self._offer("stock", self.own.sequence)
        if self._best() is None or self._best_plan().objective:
            self._look_around()
        best = self._best()
        if best is not None and self.plans[best].objective == 0:
            return self._choice(self.plans[best], best, 0)
        return self._search()

    def _look_around(self) -> None:
        """What costs little time: simulations of two orders, runs added, and torch's plans at other budgets."""
        own = self._own_orders()
        orders = [self.free.order, *own]
        until = time.monotonic() + SIMULATION_SHARE * self._left()
        # Without a plan there is nothing to say: the first takes the time that it needs.
        tried = [
            (self._simulated(order, POLICIES[0], lambda: bool(self.plans) and self._left() < 0), order) for order in orders
        ]
        # Runs are added to the order that did better; then it is simulated with other weights.
        order = min(tried, key=lambda pair: pair[0])[1]
        self._mended("insertion", order)
        for policy in POLICIES[1:]:
            if not self.plans or time.monotonic() < until:
                self._simulated(order, policy, lambda: self._left() < 0)
        if not self.plans and self.bound <= self.limit:
            until = time.monotonic() + SEARCH_SHARE * self._left()
            self._reached(peaks.lowered(self.free, own, lambda: time.monotonic() >= until, self.limit))
        until = time.monotonic() + STOCK_SHARE * self._left()
        # Another plan of torch's takes as long as the one at hand did.
        for plan in self.others(lambda: time.monotonic() + self.stock_seconds >= until):
            self._offer(f"stock at {plan.budget}", plan.sequence)

    def _simulated(self, order: Sequence[int], policy: Policy, should_stop: Callable[[], bool]) -> float:
        """Added cost of a simulation's plan without what it can do without; infinite where it found none."""
        sequence = simulate(self.free, order, self.limit, policy, should_stop)
        if sequence is None:
            return math.inf
        self._offer("simulation", sequence)
        return self._mended("descent", sequence)

    def _mended(self, name: str, sequence: Sequence[int]) -> float:
        """Added cost of a sequence with the runs that make it fit, and without those that it does not need."""
        mended = self.insertion.mended(sequence, self.limit, lambda: self._left() < 0)
        if mended is None:
            return math.inf
        self._offer(name, mended)
        return float(self.free.made(mended).objective)

    def _search(self) -> Choice:
        problem = msgspec.structs.replace(self.reading.problem, limit=self.limit)
        at_hand = {name: msgspec.structs.replace(plan, problem=problem.digest) for name, plan in self.plans.items()}
        if self.bound <= self.limit and self._left() >= LEAST_SEARCH:
            result = solve(
                problem, time_limit=self._left(), plans=at_hand, workers=self.settings.workers, seed=self.settings.seed
            )
            if result.plan is not None:
                return self._choice(result.plan, result.provenance.candidate, int(result.bound or 0))
        best = self._best()
        return self._least() if best is None else self._choice(self.plans[best], best, 0)

    def _reached(self, plan: Plan) -> None:
        """Take a plan of small peak, or what becomes of it within the limit."""
        self._mended("least peak", plan.sequence)
        self._offer("least peak", plan.sequence)
        self.least = min(self.least, plan.peak)

    def _least(self) -> Choice:
        """A plan of small peak; raises the error that says what is possible where that is above the limit."""
        seconds = max(LEAST_LEFT, self._left(), LEAST_SHARE * self.settings.time_limit)
        plan, bound = peaks.least_peak(self.reading.problem, self._own_orders(), seconds, enough=self.limit)
        self._reached(plan)
        self.bound = max(self.bound, bound)
        best = self._best()
        if best is not None:
            return self._choice(self.plans[best], best, 0)
        text = f"the least peak found is {self.least} bytes, and the limit is {self.limit}"
        is_proven = self.bound > self.limit
        why = f"proven: no plan is below {self.bound}" if is_proven else f"no plan found in time; none is below {self.bound}"
        raise MemoryLimitError(f"{text} ({why})", self.limit, self.least, self.bound)

    def _own_orders(self) -> list[list[int]]:
        """The order of first runs in torch's own plan, where there is one."""
        return [] if self.own is None else [[*dict.fromkeys(self.own.sequence)]]

    def _left(self) -> float:
        return self.settings.time_limit - (time.monotonic() - self.began)

    def _offer(self, name: str, sequence: Sequence[int] | None) -> None:
        if sequence is None:
            return
        plan = self.free.made(sequence)
        if not verify(self.free.problem, plan).ok:
            LOGGER.info("torch: the plan %s breaks a rule: %s", name, verify(self.free.problem, plan).violations[0])
            return
        known = self.plans.get(name)
        if plan.peak <= self.limit and (known is None or (plan.objective, plan.peak) < (known.objective, known.peak)):
            self.plans[name] = plan

    def _best(self) -> str | None:
        return min(self.plans, key=lambda name: (self.plans[name].objective, self.plans[name].peak), default=None)

    def _best_plan(self) -> Plan:
        return self.plans[self._best() or ""]

    def _choice(self, plan: Plan, source: str, bound: int) -> Choice:
        reading = self.reading
        sequence = list(plan.sequence)
        is_stock = self.own is not None and sequence == list(self.own.sequence)
        report = GraphReport(
            operators=len(reading.nodes),
            limit=self.limit,
            stock_peak=None if self.own is None else self.own.peak,
            peak=plan.peak,
            added_flops=reading.added_flops(sequence),
            added_runs=len(sequence) - len(reading.nodes),
            added_cost=plan.objective * reading.unit,
            bound=min(bound, plan.objective) * reading.unit,
            saved=_held(reading.problem, plan, reading.border),
            source="stock" if is_stock else source,
            seconds=round(time.monotonic() - self.began, 3),
        )
        return Choice(tuple(sequence), report, is_stock)


def _held(problem: Problem, plan: Plan, border: int) -> int:
    live = live_bytes(problem, plan)
    return live[plan.sequence.index(border)] if live else 0
