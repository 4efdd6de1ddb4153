"""Finds the plan of one joint graph that adds the least work within a memory limit.

A *joint graph* has the forward and the backward pass of a model as one graph. Its plan is the sequence in which operators run,
some of them twice because a value was not saved. A *reading* is a joint graph with its rematerialization problem
(:class:`~stowplan.backends.torch.reader.Reading`). Plans of torch's own partitioner (*stock* plans) come first. The
*candidates* of :func:`stowplan.solve`, that is, the methods that it runs, start from them and search for better ones. If no
plan is within the limit, the error says which peak is possible and what is proven. The *border* is the moment between the
forward and the backward pass.

If a training loop measures its steps, the *first steps* run with plans of small peak, while the bytes outside of the graphs are
measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from stowplan.backends.fallback import MemoryLimitError
from stowplan.backends.torch import costs, stock
from stowplan.backends.torch.offload import HostMemory, with_sends_ended
from stowplan.backends.torch.reader import CostFunction, Counted, Reading
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

#: Share of the remaining time in which torch's partitioner may make plans at lower budgets.
STOCK_SHARE = 0.3

#: If no plan fits, the search for the lowest possible peak takes at least this many seconds, and at least this share of
#: the time limit.
MIN_DIAGNOSIS_SECONDS, DIAGNOSIS_SHARE = 3.0, 0.5

#: The searches for the plan of the first steps do work in proportion to this many seconds or this share of the time limit,
#: whichever is more. The peak of the plan may be ``PEAK_SLACK`` times the least peak that was found.
MIN_FIRST_SECONDS, FIRST_SHARE, PEAK_SLACK = 2.0, 0.15, 1.05

#: How many forward passes of a graph are assumed to wait for their backward pass when the plan of the first steps is chosen.
#: The bytes that the plan saves are multiplied by this number.
ASSUMED_USES = 4

#: The search ends once ``(objective - bound) / objective`` is at most this.
GAP = 0.005

#: If there is less time than this many seconds, only one heuristic runs, in this process: other processes would hardly have
#: started.
MIN_PORTFOLIO_SECONDS = 1.0
#: The name of that heuristic, and its name if values may be sent to the host.
QUICK, QUICK_WITH_HOST = ("search",), ("offload",)

#: The search takes at least this many seconds, even if reading the graph has used up the time limit.
MIN_SEARCH_SECONDS = 0.1


@dataclass(frozen=True)
class Settings:
    """The options of a partitioner."""

    limit: int
    """Bytes that all graphs together may use."""
    outside: int = 0
    """Bytes of a step that are reserved for tensors outside of the graphs; they are not part of ``limit``."""
    counted: Counted = field(default_factory=Counted)
    """Which tensors count against the limit."""
    time_limit: float = 20.0
    """Seconds for each graph."""
    strict: bool = True
    """Whether a limit that cannot be met is an error; otherwise a warning is issued."""
    graphs: int = 1
    """How many graphs share the limit."""
    repeats: int | None = None
    """How often a graph runs before its backward pass; None if the user did not say it, which counts as once."""
    is_measured: bool = False
    """Whether the first steps measure how many bytes are live outside of the graphs, and how often each graph runs."""
    workers: int = 2
    """Maximum number of worker processes; see :func:`stowplan.solve`."""
    seed: int = 0
    """Seed of all random numbers."""
    cost_function: CostFunction = costs.costs
    """Returns the cost of running each of several operators once."""
    is_timed: bool = False
    """Whether costs are in picoseconds rather than floating-point operations."""
    host: HostMemory | None = None
    """Memory of the host to which values may be sent; None if there is none."""


class GraphReport(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A report about the plan of one graph.

    A peak is the largest number of bytes that are live at once, over all tensors that count against the limit. If the graph
    runs several times before its backward pass, the peak is that of all these runs together.
    """

    operators: int
    """How many operators the joint graph has."""
    limit: int
    """This graph's share of the memory limit, in bytes."""
    stock_peak: int | None
    """Peak in bytes of the plan that torch's own partitioner makes at the value of ``activation_memory_budget`` that is set in
    torch. None if that plan is not valid, for example because it reads a value that was overwritten."""
    peak: int
    """Peak of the plan that is used, in bytes."""
    added_flops: int
    """Floating-point operations of the plan, minus the operations of running each operator once."""
    added_runs: int
    """How many runs of operators the plan adds."""
    added_cost: int
    """Cost that the plan adds: picoseconds, or floating-point operations, in which moved bytes count as the operations that
    take as long."""
    added_share: float
    """``added_cost`` divided by the cost of all operators of both passes, each run once."""
    added_seconds: float | None = None
    """Seconds that the plan adds to a step; None if costs are floating-point operations."""
    bound: int | None
    """Proven lower bound on ``added_cost``: no plan within the limit adds less. None if no bound was computed, because no plan
    was searched for that adds as little as possible."""
    saved: int
    """Bytes that are live between the forward and the backward pass, including inputs and results."""
    host_bytes: int = 0
    """The most bytes that are on the host at once. If the graph runs several times before its backward pass, the bytes of all
    these runs."""
    stalled_seconds: float | None = None
    """Seconds of a step in which operators wait for copies; None if nothing may be sent to the host."""
    source: str
    """Where the plan comes from: the candidate of :func:`stowplan.solve` that found it; ``stock`` or ``stock at BUDGET`` for a
    plan of torch's own partitioner; ``given`` for the original order; ``first steps`` or ``least peak`` for a plan of low
    peak."""
    seconds: float
    """Seconds of planning."""
    format: str = "stowplan.torch.graph.report"
    version: int = 1


class Choice(msgspec.Struct, frozen=True):
    """A plan of a graph, with its report."""

    reading: Reading
    """The graph and its problem."""
    plan: Plan
    """Runs of operators, and moves of values to the host and back."""
    report: GraphReport
    """Peaks, costs and bounds of the plan."""
    is_stock: bool
    """Whether the plan equals the plan of torch's own partitioner at the budget that is set in torch. Then torch's modules can
    be used."""


class Chooser:
    """Finds the plan of a joint graph that adds the least cost within a limit.

    Parameters
    ----------
    reading
        The joint graph and its problem.
    limit
        The largest peak that a plan may have, in bytes.
    settings
        The options of the partitioner.
    stock_plan
        The plan of torch's own partitioner at the budget that is set in torch, as a sequence of operators; None if it cannot be
        read.
    more_stock_plans
        Makes torch's plans at other budgets, one after the other. Its argument is a function that says whether to stop.
    stock_seconds
        Seconds that torch's partitioner needed for its plan.
    began
        When the time limit began, by ``time.monotonic``.
    uses
        How many uses of the graph (forward passes, until the end of their backward passes) are in progress at once. Each has
        its own bytes on the host.
    """

    def __init__(
        self,
        reading: Reading,
        limit: int,
        settings: Settings,
        stock_plan: Sequence[int] | None,
        more_stock_plans: Callable[[Callable[[], bool]], Iterator[stock.StockPlan]],
        stock_seconds: float,
        began: float,
        uses: int = 1,
    ):
        self.reading, self.limit, self.settings, self.uses = reading, limit, settings, uses
        self.more_stock_plans, self.stock_seconds, self.began = more_stock_plans, stock_seconds, began
        self.unlimited: Structure = build(reading.problem)
        self.stock_plan = self._verified("stock", stock_plan)
        self.is_infeasible = False
        """Whether it is proven that no plan is within the limit."""

    def choose(self, keep_stock: bool) -> Choice:
        """Finds the plan.

        Parameters
        ----------
        keep_stock
            Whether torch's own plan is used unchanged if it is within the limit.

        Raises
        ------
        MemoryLimitError
            No plan was found; the message says whether it is proven that there is none.
        """
        if self.stock_plan is not None:
            if keep_stock and self.stock_plan.peak <= self.limit:
                return self._choice(self.stock_plan, "stock")
            # The plan never needs more memory than torch's own, even if the limit allows more.
            self.limit = min(self.limit, max(self.stock_plan.peak, 1))
        plans = self._starting_plans()
        best = min(plans, key=lambda name: (plans[name].objective, plans[name].peak), default=None)
        if best is not None and plans[best].objective == 0:
            return self._choice(plans[best], best)
        if bounds.load_bound(self.unlimited) <= self.limit:
            choice = self._search_from(plans)
            if choice is not None:
                return choice
        return self._choice(self._plan_of_least_peak(), "least peak")

    def choose_for_first_steps(self, enough: int) -> Choice:
        """Finds a plan with a low peak that saves few bytes, for the steps that measure the bytes outside of the graph.

        The peak may be above the limit; this raises no error.

        Parameters
        ----------
        enough
            A peak of this many bytes is low enough; the search for a lower one ends. 0 asks for the least peak.
        """
        # The work is limited, not the time: on a busy machine, too, a limit that was once found to be enough has to be enough.
        seconds = peaks.PLAN_SHARE * max(MIN_FIRST_SECONDS, FIRST_SHARE * self.settings.time_limit) / 2
        starting_orders = [] if self.stock_plan is None else [[*dict.fromkeys(self.stock_plan.sequence)]]
        problem, border = self.reading.problem, self.reading.border
        plan = self.unlimited.made(self.unlimited.order)
        # A search that ends at ``enough`` and a search for the least peak (0) find different plans. ``TrainingMemory.least``
        # measures with plans of the latter, so it is also made here unless the first search succeeds.
        aims = dict.fromkeys((enough if enough >= bounds.load_bound(self.unlimited) else 0, 0))
        for aim in aims:
            if plan.peak > enough:
                plan = min(plan, self._least_peak(problem, starting_orders, seconds, aim), key=lambda made: made.peak)
        # A second search looks for a plan that saves few bytes, among plans whose peak is not far above that of the first.
        op, sizes = problem.ops[border], problem.tensors
        always_at_border = sum(sizes[tensor].size for tensor in {*problem.inputs, *op.reads, *op.writes})
        saved_bytes = Reservation(
            size=max(0, int(max(enough, PEAK_SLACK * plan.peak)) - always_at_border), since=border, until=border
        )
        frugal = self._least_peak(msgspec.structs.replace(problem, reserved=(saved_bytes,)), starting_orders, seconds)
        plans = [plan, self.unlimited.made(frugal.sequence)]
        original = self.unlimited.made(self.unlimited.order)
        if original.peak <= max(enough, PEAK_SLACK * plan.peak):
            plans.append(original)

        def rank(made: Plan) -> tuple[bool, int, int]:
            # Saving fewer bytes gains nothing if the backward pass then needs far more, for example behind a frozen model.
            at_border, *after_border = _live_from_border(problem, made, border)
            return made.peak > self.limit, ASSUMED_USES * at_border + max([at_border, *after_border]), made.objective

        return self._choice(min(plans, key=rank), "first steps")

    @staticmethod
    def _least_peak(problem: Problem, orders: Iterable[Sequence[int]], seconds: float, enough: int = 0) -> Plan:
        """Returns a plan of small peak, found with the work of this many seconds; see :func:`peaks.minimize_peak`."""
        structure = build(msgspec.structs.replace(problem, limit=None))
        return peaks.minimize_peak(structure, orders, peaks.is_work_done(structure, seconds), enough)

    def _starting_plans(self) -> dict[str, Plan]:
        """Returns the original order and plans of torch's partitioner, by name, without plans whose peak is above the limit."""
        given = self.unlimited.made(self.unlimited.order)
        plans = {"given": given, **({} if self.stock_plan is None else {"stock": self.stock_plan})}
        plans = {name: plan for name, plan in plans.items() if plan.peak <= self.limit}
        if any(plan.objective == 0 for plan in plans.values()):
            return plans
        until = time.monotonic() + STOCK_SHARE * self._seconds_left()
        # Another plan of torch's partitioner is assumed to take as long as the first one.
        for made in self.more_stock_plans(lambda: time.monotonic() + self.stock_seconds >= until):
            name = f"stock at {made.budget}"
            plan = self._verified(name, made.sequence)
            if plan is not None and plan.peak <= self.limit:
                plans[name] = plan
        return plans

    def _search_from(self, plans: dict[str, Plan]) -> Choice | None:
        """Returns the best plan that :func:`stowplan.solve` finds from the given plans, as a choice; None if it finds none."""
        result = self._solve(msgspec.structs.replace(self.reading.problem, limit=self.limit), plans, self._seconds_left())
        self.is_infeasible = result.status == "infeasible"
        return None if result.plan is None else self._choice(result.plan, result.provenance.candidate, result.bound)

    def _solve(self, problem: Problem, plans: dict[str, Plan], seconds: float) -> Result[Plan]:
        """Solves a problem; candidates start from the given plans."""
        return solve(
            problem,
            time_limit=max(MIN_SEARCH_SECONDS, seconds),
            candidates=FAMILIES if seconds >= MIN_PORTFOLIO_SECONDS else QUICK if problem.channel is None else QUICK_WITH_HOST,
            plans={name: msgspec.structs.replace(plan, problem=problem.digest) for name, plan in plans.items()},
            workers=self.settings.workers,
            seed=self.settings.seed,
            gap=GAP,
        )

    def _plan_of_least_peak(self) -> Plan:
        """Searches for a plan with the lowest possible peak, which may be within the limit.

        Raises
        ------
        MemoryLimitError
            Even the lowest peak that was found is above the limit.
        """
        seconds = max(MIN_DIAGNOSIS_SECONDS, self._seconds_left(), DIAGNOSIS_SHARE * self.settings.time_limit)
        stock_plan = [] if self.stock_plan is None else [[*dict.fromkeys(self.stock_plan.sequence)]]
        plan, bound = peaks.least_peak(self.reading.problem, stock_plan, seconds, enough=self.limit)
        if plan.peak <= self.limit:
            cheaper = Insertion(self.unlimited).repaired(plan.sequence, self.limit)
            plans = [plan] if cheaper is None else [plan, self.unlimited.made(cheaper)]
            return min(plans, key=lambda candidate: candidate.objective)
        text = f"the least peak found is {plan.peak} bytes, and the limit is {self.limit}"
        is_proven = bound > self.limit
        why = f"proven: no plan is below {bound}" if is_proven else f"no plan found in time; none is below {bound}"
        if self.is_infeasible and not is_proven:
            why, bound = "proven: no plan is within it", self.limit + 1
        raise MemoryLimitError(f"{text} ({why})", self.limit, plan.peak, bound)

    def _verified(self, name: str, sequence: Sequence[int] | None) -> Plan | None:
        """Returns a sequence of operators as a plan; None if there is no sequence, or if the verifier rejects the plan."""
        if sequence is None:
            return None
        plan = self.unlimited.made(sequence)
        result = verify(self.unlimited.problem, plan)
        if not result.ok:
            LOGGER.info("torch: the plan %s breaks a rule: %s", name, result.violations[0])
        return plan if result.ok else None

    def _seconds_left(self) -> float:
        return self.settings.time_limit - (time.monotonic() - self.began)

    def _choice(self, plan: Plan, source: str, bound: int | None = None) -> Choice:
        """Returns a plan with its report.

        ``bound`` is a proven lower bound on the objective, in the problem's unit of cost; None if no bound was computed.
        """
        # No plan adds less than nothing.
        bound = 0 if plan.objective == 0 else bound
        reading = self.reading
        plan = with_sends_ended(reading, plan)
        sequence = list(plan.sequence)
        is_stock = self.stock_plan is not None and sequence == list(self.stock_plan.sequence) and not plan.moves
        figures = verify(self.unlimited.problem, plan).figures
        seconds_of = reading.unit / PS_PER_SECOND
        report = GraphReport(
            operators=len(reading.nodes),
            limit=self.limit,
            stock_peak=None if self.stock_plan is None else self.stock_plan.peak,
            peak=plan.peak,
            added_flops=reading.added_flops(sequence),
            added_runs=len(sequence) - len(reading.nodes),
            added_cost=plan.objective * reading.unit,
            added_share=plan.objective / max(1, sum(op.cost for op in reading.problem.ops)),
            added_seconds=plan.objective * seconds_of if self.settings.is_timed else None,
            bound=None if bound is None else min(bound, plan.objective) * reading.unit,
            saved=_live_from_border(reading.problem, plan, reading.border)[0],
            host_bytes=self.uses * figures.get("host_peak", 0),
            stalled_seconds=figures["stalls"] * seconds_of if "stalls" in figures else None,
            source="stock" if is_stock else source,
            seconds=round(time.monotonic() - self.began, 3),
        )
        return Choice(reading, plan, report, is_stock)


def _live_from_border(problem: Problem, plan: Plan, border: int) -> list[int]:
    """Live bytes at the border between the passes, and at each step after it; 0 if the plan is not valid."""
    live = load_bytes(problem, plan)
    return list(live[list(plan.steps()).index(("run", border)) :]) if live else [0]
