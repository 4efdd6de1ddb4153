"""A plan of one joint graph within a limit: torch's own, the portfolio's from those on, and what is proven where none fits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from stowplan.backends.fallback import MemoryLimitError
from stowplan.backends.torch import costs, stock
from stowplan.backends.torch.offload import HostMemory, as_run
from stowplan.backends.torch.reader import Counted, Prices, Reading
from stowplan.document import Document
from stowplan.hardware.targets.toml_files import PS_PER_SECOND
from stowplan.kernel.context import FAMILIES
from stowplan.kernel.solve import solve
from stowplan.log import LOGGER
from stowplan.models.rematerialization import bounds
from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.problem import Problem, Reservation
from stowplan.models.rematerialization.structure import Structure, build
from stowplan.models.rematerialization.verify import load_bytes, verify
from stowplan.portfolio.rematerialization import peaks
from stowplan.portfolio.rematerialization.insertion import Insertion
from stowplan.result import Result

#: Part of the time left for torch's plans at lower budgets.
STOCK_SHARE = 0.3

#: For saying what is possible, seconds and part of the time limit, at least.
LEAST_LEFT, LEAST_SHARE = 3.0, 0.5

#: For the plan of the first steps, seconds at least, and part of the time; and how far its peak may be above the least.
LEAST_FIRST, FIRST_SHARE, SLACK = 2.0, 0.15, 1.05

#: As many uses of a graph may wait at once, as far as the plan of the first steps is concerned: what it saves at the border
#: counts so often beside what its backward pass takes.
USES = 4

#: Planning ends where the best plan adds no more than this part beyond the bound.
GAP = 0.005

#: Seconds below which a heuristic is alone in this process, and which: others would hardly have started.
LEAST_SEARCH = 1.0
QUICK, QUICK_WITH_HOST = ("search",), ("offload",)

#: Seconds of the search at least, where reading the graph has taken all the time there was.
SHORTEST = 0.1


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
    repeats: int | None = None
    """How often a graph runs before its backward pass."""
    is_measured: bool = False
    """Whether what lives beside graphs, and how often they run, is measured in the first steps."""
    workers: int = 2
    seed: int = 0
    prices: Prices = costs.costs
    """What a run of an operator costs."""
    is_timed: bool = False
    """Whether that is in picoseconds."""
    host: HostMemory | None = None
    """Where values may be sent."""


class GraphReport(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What came of one graph. Peaks are bytes of tensors that are live at once, as far as they count: of all its repeats."""

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
    """In floating-point operations, where moved bytes count as those that take as long; or in picoseconds."""
    added_share: float
    """The same as a part of what all operators of both passes cost, each run once."""
    added_seconds: float | None = None
    """Of a step; None where costs are floating-point operations."""
    bound: int
    """No plan within the limit adds less."""
    saved: int
    """Bytes that live from the forward to the backward pass, with inputs and results."""
    host_bytes: int = 0
    """The most that are on the host at once; of repeats, what all of them send there."""
    stalled_seconds: float | None = None
    """Of a step, in which copies are waited for; None without a host."""
    source: str
    """What found the plan: ``stock`` where it stayed torch's own."""
    seconds: float
    format: str = "stowplan.torch.graph.report"
    version: int = 1


class Choice(msgspec.Struct, frozen=True):
    """A plan of a graph, and what is said of it."""

    reading: Reading
    """The graph that the plan is of."""
    plan: Plan
    report: GraphReport
    is_stock: bool
    """Whether torch's own modules at the budget that is set are this plan."""


class Chooser:
    """Finds the plan that adds least within a limit.

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
    uses
        How many uses of the graph there are at once, each with bytes of its own on the host.
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
        uses: int = 1,
    ):
        self.reading, self.limit, self.settings, self.uses = reading, limit, settings, uses
        self.others, self.stock_seconds, self.began = others, stock_seconds, began
        self.free: Structure = build(reading.problem)
        self.own = self._verified("stock", own)
        self.is_infeasible = False
        """It is proven that no plan is within the limit."""

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
        plans = self._plans_at_hand()
        best = min(plans, key=lambda name: (plans[name].objective, plans[name].peak), default=None)
        if best is not None and plans[best].objective == 0:
            return self._choice(plans[best], best, 0)
        if bounds.load_bound(self.free) <= self.limit:
            choice = self._searched(plans)
            if choice is not None:
                return choice
        return self._choice(self._least_peak(), "least peak", 0)

    def first(self, enough: int) -> Choice:
        """A plan of small peak that saves little, for steps in which it is measured what lives beside the graph.

        Parameters
        ----------
        enough
            Bytes of a peak below which no smaller one is sought.
        """
        seconds = max(LEAST_FIRST, FIRST_SHARE * self._left()) / 2
        known = [] if self.own is None else [[*dict.fromkeys(self.own.sequence)]]
        problem, border = self.reading.problem, self.reading.border
        plan = self.free.made(self.free.order)
        if plan.peak > enough:
            plan, _ = peaks.least_peak(problem, known, seconds, enough=enough)
        # Of plans whose peak is not far above that one with few bytes at the border is sought.
        op, sizes = problem.ops[border], problem.tensors
        stays = sum(sizes[tensor].size for tensor in {*problem.inputs, *op.reads, *op.writes})
        between = Reservation(size=max(0, int(max(enough, SLACK * plan.peak)) - stays), since=border, until=border)
        frugal, _ = peaks.least_peak(msgspec.structs.replace(problem, reserved=(between,)), known, seconds)
        plans = [plan, self.free.made(frugal.sequence)]
        given = self.free.made(self.free.order)
        if given.peak <= max(enough, SLACK * plan.peak):
            plans.append(given)

        def rank(made: Plan) -> tuple[bool, int, int]:
            # Less at the border is no gain where the backward pass then takes far more, such as behind a frozen model.
            at_border, *behind = _from_border(problem, made, border)
            return made.peak > self.limit, USES * at_border + max([at_border, *behind]), made.objective

        return self._choice(min(plans, key=rank), "first steps", 0)

    def _plans_at_hand(self) -> dict[str, Plan]:
        """The order given and torch's plans, as far as they are within the limit."""
        given = self.free.made(self.free.order)
        plans = {"given": given, **({} if self.own is None else {"stock": self.own})}
        plans = {name: plan for name, plan in plans.items() if plan.peak <= self.limit}
        if any(plan.objective == 0 for plan in plans.values()):
            return plans
        until = time.monotonic() + STOCK_SHARE * self._left()
        # Another plan of torch's takes as long as the one at hand did.
        for made in self.others(lambda: time.monotonic() + self.stock_seconds >= until):
            name = f"stock at {made.budget}"
            plan = self._verified(name, made.sequence)
            if plan is not None and plan.peak <= self.limit:
                plans[name] = plan
        return plans

    def _searched(self, plans: dict[str, Plan]) -> Choice | None:
        """The portfolio's plan, from those at hand on; None where it has none."""
        result = self._solved(msgspec.structs.replace(self.reading.problem, limit=self.limit), plans, self._left())
        self.is_infeasible = result.status == "infeasible"
        return None if result.plan is None else self._choice(result.plan, result.provenance.candidate, int(result.bound or 0))

    def _solved(self, problem: Problem, plans: dict[str, Plan], seconds: float) -> Result[Plan]:
        """What the portfolio makes of a problem, from plans at hand on."""
        return solve(
            problem,
            time_limit=max(SHORTEST, seconds),
            candidates=FAMILIES if seconds >= LEAST_SEARCH else QUICK if problem.channel is None else QUICK_WITH_HOST,
            plans={name: msgspec.structs.replace(plan, problem=problem.digest) for name, plan in plans.items()},
            workers=self.settings.workers,
            seed=self.settings.seed,
            gap=GAP,
        )

    def _least_peak(self) -> Plan:
        """A plan within the limit that was found by its small peak; an error that says what is possible where none was."""
        seconds = max(LEAST_LEFT, self._left(), LEAST_SHARE * self.settings.time_limit)
        own = [] if self.own is None else [[*dict.fromkeys(self.own.sequence)]]
        plan, bound = peaks.least_peak(self.reading.problem, own, seconds, enough=self.limit)
        if plan.peak <= self.limit:
            mended = Insertion(self.free).repaired(plan.sequence, self.limit)
            plans = [plan] if mended is None else [plan, self.free.made(mended)]
            return min(plans, key=lambda made: made.objective)
        text = f"the least peak found is {plan.peak} bytes, and the limit is {self.limit}"
        is_proven = bound > self.limit
        why = f"proven: no plan is below {bound}" if is_proven else f"no plan found in time; none is below {bound}"
        if self.is_infeasible and not is_proven:
            why, bound = "proven: no plan is within it", self.limit + 1
        raise MemoryLimitError(f"{text} ({why})", self.limit, plan.peak, bound)

    def _verified(self, name: str, sequence: Sequence[int] | None) -> Plan | None:
        """A sequence as a plan without a limit; None where there is none, or it breaks a rule."""
        if sequence is None:
            return None
        plan = self.free.made(sequence)
        found = verify(self.free.problem, plan)
        if not found.ok:
            LOGGER.info("torch: the plan %s breaks a rule: %s", name, found.violations[0])
        return plan if found.ok else None

    def _left(self) -> float:
        return self.settings.time_limit - (time.monotonic() - self.began)

    def _choice(self, plan: Plan, source: str, bound: int) -> Choice:
        reading = self.reading
        plan = as_run(reading, plan)
        sequence = list(plan.sequence)
        is_stock = self.own is not None and sequence == list(self.own.sequence) and not plan.moves
        figures = verify(self.free.problem, plan).figures
        seconds_of = reading.unit / PS_PER_SECOND
        report = GraphReport(
            operators=len(reading.nodes),
            limit=self.limit,
            stock_peak=None if self.own is None else self.own.peak,
            peak=plan.peak,
            added_flops=reading.added_flops(sequence),
            added_runs=len(sequence) - len(reading.nodes),
            added_cost=plan.objective * reading.unit,
            added_share=plan.objective / max(1, sum(op.cost for op in reading.problem.ops)),
            added_seconds=plan.objective * seconds_of if self.settings.is_timed else None,
            bound=min(bound, plan.objective) * reading.unit,
            saved=_from_border(reading.problem, plan, reading.border)[0],
            host_bytes=self.uses * figures.get("host_peak", 0),
            stalled_seconds=figures["stalls"] * seconds_of if "stalls" in figures else None,
            source="stock" if is_stock else source,
            seconds=round(time.monotonic() - self.began, 3),
        )
        return Choice(reading, plan, report, is_stock)


def _from_border(problem: Problem, plan: Plan, border: int) -> list[int]:
    """Live bytes at the border, and at each step behind it."""
    live = load_bytes(problem, plan)
    return list(live[list(plan.steps()).index(("run", border)) :]) if live else [0]
