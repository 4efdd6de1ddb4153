"""The search for a policy within a limit: plans corrected by previews, jax's own policies, finalists compiled in full."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence

import msgspec

from stowplan.backends.fallback import MemoryLimitError
from stowplan.backends.jax.graph import PLAN_LIMIT, Recomputation, greedy_plans, plan, recomputed
from stowplan.backends.jax.policy import STOCK, Kind, Policy
from stowplan.backends.jax.previews import Previews
from stowplan.backends.jax.report import Candidate, FitReport, StopReason, mib
from stowplan.backends.jax.training import Training
from stowplan.backends.xla.process import CompileError
from stowplan.errors import TimeLimitError
from stowplan.hardware.targets import xla_chip
from stowplan.process_memory import available

#: Previews that are left to jax's own policies, where more are allowed.
_FOR_STOCK = 3
#: Part of the limit that is not worth another preview, and the part that a plan leaves where no preview may correct it.
_SLACK, _CAUTION = 0.02, 0.05
#: A policy of jax's is asked for where it is expected to be this much above the limit at most; further off, where previews are
#: left in the end.
_NEAR, _FAR = 1.1, 1.5
#: Part of the peak of making everything again that a plan is expected to be without: the few bytes that it saves first are what
#: a softmax makes again. And the part of bytes sent to the host that is there at the peak. Both from the programs that
#: ``benchmarks.jax_fit`` calls seen.
_SPARED, _SENT = 0.15, 0.2
#: Budgets that are tried where making everything again is above the limit: parts of its peak. A little that is saved, as what
#: a softmax divides by, often lowers the peak.
SMALL = (0.02, 0.05, 0.1, 0.15)
#: Once a policy fits, a preview or compile of more processor seconds than the first number is made only if what it may gain,
#: over a training run of as many seconds as the second, is more. Processor seconds are those of an idle machine, too.
_CHEAP, _TRAINING_RUN = 10.0, 3600.0
#: Part of a training step by which estimated cycles may favour a policy that modelled seconds do not; 8 % were seen
#: (docs/results/xla.md).
_UNCERTAIN = 0.1
#: A backward pass takes twice the time of its forward pass.
_STEP = 3


class Search:
    """Candidates, as they come.

    Parameters
    ----------
    training
        What is fitted.
    compiler
        What is asked; the search ends with its deadline.
    limit
        Bytes.
    previews, compiles
        How many of either at most.
    say
        Called with a line before and after each preview and compile.
    own_names
        Whether plans are over names that the program has by itself.
    """

    def __init__(
        self,
        training: Training,
        compiler: Previews,
        limit: int,
        previews: int,
        compiles: int,
        say: Callable[[str], None],
        *,
        own_names: bool = False,
    ):
        self._training, self._compiler, self._limit, self._left, self._say = training, compiler, limit, previews, say
        self._compiles, self._deadline = compiles, compiler.deadline
        self._graphs = training.graphs
        self._step_seconds = _STEP * recomputed(self._graphs, ()).seconds
        self._preview_seconds = self._preview_work = 0.0
        """What a preview takes, as learned from those before, the most of them: seconds of the clock, and of processors."""
        self._stop_reason: StopReason = "finished"
        self._kind: Kind = "planned_own_names" if own_names else "planned"
        self._planned_graphs = [graph.with_own_names for graph in self._graphs] if own_names else self._graphs
        self._host_bandwidth = xla_chip(training.target).host_bandwidth
        self.candidates: list[Candidate] = []
        self.notes: list[str] = []
        self._base = 0
        """Peak of making everything again."""
        self._beside = 0
        """What the last plan had beside saved bytes: the budget of the next follows from it."""

    def run(self, first: Policy | None = None) -> None:
        """Preview everything again, then plans and jax's own policies, and compile those within the limit in full.

        ``first`` is previewed before all others. Where the time is over or Ctrl-C is pressed, the search ends there.

        Raises
        ------
        CompileError
            XLA refused the program, or a child died, before any policy was within the limit.
        KeyboardInterrupt
            Ctrl-C was pressed before any policy was within the limit.
        """
        try:
            try:
                self._preview_all(first)
            except (CompileError, TimeLimitError) as error:
                if not self._deadline.expired:
                    if not self._within():
                        raise
                    self.notes.append(str(error))
            self._judge()
        except KeyboardInterrupt:
            self._deadline.cancelled.set()
            if not self._within():
                raise

    def _preview_all(self, first: Policy | None) -> None:
        if first is not None:
            # A preview of it may be kept from the search for a size, and then takes no time.
            self._preview(self._candidate(first, recomputed(self._graphs, first.names)))
        self.start()
        every = [candidate for kind, trait in STOCK.items() if (candidate := self._stock(kind, trait)) is not None]
        # Two that save the same bytes and make the same again are one, as dots are where none has batch dimensions.
        stock = {
            (candidate.saved_bytes, candidate.recomputed_seconds, candidate.host_bytes): candidate
            for candidate in reversed(every)
        }.values()
        near = sorted((candidate for candidate in stock if candidate.predicted_bytes <= _NEAR * self._limit), key=_order)
        far = [candidate for candidate in stock if _NEAR < candidate.predicted_bytes / self._limit <= _FAR]
        if self._base > self._limit:
            self._below(near)
            return
        whole_program = next((candidate for candidate in near if candidate.policy.kind == "as_it_is"), None)
        fits = whole_program is not None and 0 < self._preview(whole_program).hbm_bytes <= self._limit
        if not fits or self._training.has_own:
            self._plans(min(_FOR_STOCK, sum(not candidate.policy.is_offloaded for candidate in near)))
        for candidate in [*near, *sorted(far, key=lambda candidate: candidate.predicted_bytes)]:
            self._preview(candidate)

    def _pays(self, candidate: Candidate, seconds: float, work: float) -> bool:
        """Whether a preview or compile of so many seconds can end in what is left, and may gain more than its work.

        Work is in processor seconds.

        The gain is that of modelled seconds over the best policy within the limit: a plan is the best of its budget, so that
        nothing else within it gains more. What is expected far above the limit gains nothing. While no policy is within the
        limit, everything pays.
        """
        within = self._within()
        if not within:
            return True
        if not self._has_time(seconds):
            return False
        if self._compiler.resident_bytes > available():
            self._stop_reason = "memory"
            return False
        gain = _order(within[0])[0] - _order(candidate)[0] + (_UNCERTAIN * self._step_seconds if self._compiles else 0.0)
        is_near = candidate.predicted_bytes <= _NEAR * self._limit
        pays = work < _CHEAP or (is_near and gain * _TRAINING_RUN > work * self._step_seconds)
        if not pays and self._stop_reason == "finished":
            self._stop_reason = "no_gain"
        return pays

    def _has_time(self, seconds: float) -> bool:
        if seconds < self._deadline.remaining:
            return True
        self._stop_reason = "time_limit"
        return False

    def _tell(self, text: str) -> None:
        """Progress: the time, what is or was done, and the best policy so far."""
        best = self._best()
        known = f"best so far {best.policy.kind}, {mib(best.hbm_bytes)}" if best else f"none within {mib(self._limit)} so far"
        self._say(f"[{self._deadline.elapsed:6.1f} s] {text}; {known}")

    def start(self) -> int:
        """The peak of making everything again, which others are predicted by.

        Raises
        ------
        CompileError
            XLA refused it, or did not say a peak.
        """
        first = self._preview(self._candidate(Policy("everything_again")), is_needed=True)
        if first.error:
            raise CompileError(f"{self._training.name}: {first.error}")
        if not first.hbm_bytes:
            raise CompileError(f"{self._training.name}: this libtpu wrote no report of memory, from which the peak is read")
        self._base = self._beside = first.hbm_bytes
        return self._base

    def least(self) -> Policy:
        """Of everything again and small plans the one of the least peak."""
        try:
            self.start()
            for part in SMALL:
                self._small(part)
        except TimeLimitError:
            if not self._base:
                raise
        return min((seen for seen in self.candidates if seen.hbm_bytes), key=lambda seen: seen.hbm_bytes).policy

    def peak(self, policy: Policy) -> int:
        """What the compiler says of a policy; 0 where it refuses."""
        return self._preview(self._candidate(policy, recomputed(self._graphs, policy.names))).hbm_bytes

    def _plans(self, kept_back: int) -> None:
        """Plans of a budget that follows from the peak of the one before."""
        budget: float = self._limit - self._beside
        low, high = 0, math.inf
        while self._left > kept_back and (self._has_time(self._preview_seconds) or not self._within()):
            # What may be the last preview in the time is of no use above the limit.
            is_last = self._deadline.remaining < 3 * self._preview_seconds
            planned = self._planned(int(budget - is_last * _CAUTION * self._limit))
            policy = Policy(self._kind, planned.saved)
            if not planned.saved or any(candidate.policy.is_same(policy) for candidate in self.candidates):
                return
            peak = self._preview(self._candidate(policy, planned)).hbm_bytes
            if not peak:
                return
            self._beside = peak - planned.bytes
            budget = self._limit - self._beside
            if peak > self._limit:
                high = min(high, planned.bytes)
            elif self._limit - peak < _SLACK * self._limit:
                return
            else:
                low = max(low, planned.bytes)
            if not low < budget < high:
                budget = (low + high) / 2 if high < math.inf else budget

    def _below(self, near: Sequence[Candidate]) -> None:
        """Where making everything again is above the limit: peaks are not monotone in what is saved."""
        for candidate in near:
            if candidate.policy.is_offloaded or self._training.has_own:
                self._preview(candidate)
        for part in SMALL:
            small = self._small(part)
            if 0 < small.hbm_bytes <= self._limit:
                self._beside = small.hbm_bytes - small.saved_bytes
                self._plans(0)
                return

    def _small(self, part: float) -> Candidate:
        """A plan that saves a part of the peak of everything again."""
        planned = self._planned(int(part * self._base))
        return self._preview(self._candidate(Policy(self._kind, planned.saved), planned), is_needed=True)

    def _planned(self, budget: int) -> Recomputation:
        # Of what is left when a preview has had its time, half.
        spare = max(0.0, self._deadline.remaining - self._preview_seconds)
        seconds = min(PLAN_LIMIT, spare / 2)
        return self._compiler.within(lambda: plan(self._planned_graphs, budget, seconds))

    def _stock(self, kind: Kind, trait: str) -> Candidate | None:
        """A policy of jax's, which saves values of a trait; None where the program has none."""
        if kind == "as_it_is":
            # What the user's own checkpoints save is not known before it is asked for.
            size = 0 if self._training.has_own else sum(graph.needed_bytes for graph in self._graphs)
            return self._candidate(Policy(kind), Recomputation(0.0, size, ()))
        names = tuple(dict.fromkeys(name for graph in self._graphs for name in graph.named(trait)))
        made = recomputed(self._graphs, names)
        if not made.saved:
            return None
        return self._candidate(Policy(kind, names if trait == "names" else ()), made)

    def _candidate(self, policy: Policy, made: Recomputation | None = None) -> Candidate:
        made = made or recomputed(self._graphs, ())
        saved, sent = (0, made.bytes) if policy.is_offloaded else (made.bytes, 0)
        return Candidate(
            policy=policy,
            saved_bytes=saved,
            recomputed_seconds=made.seconds,
            recomputed_flops=made.flops,
            predicted_bytes=self._expected(policy, saved, sent) if self._base else 0,
            host_bytes=sent,
            host_seconds=2 * sent / self._host_bandwidth,
        )

    def _expected(self, policy: Policy, saved: int, sent: int) -> int:
        """The peak of a policy: of a plan by the one seen that saves most nearly as much, of others by making all again."""
        if not policy.is_planned:
            return round(self._base + saved + _SENT * sent)
        plans = (seen for seen in self.candidates if seen.policy.is_planned and seen.hbm_bytes)
        nearest = min(plans, key=lambda seen: abs(seen.saved_bytes - saved), default=None)
        return saved + (nearest.hbm_bytes - nearest.saved_bytes if nearest else round((1 - _SPARED) * self._base))

    def _preview(self, candidate: Candidate, *, is_needed: bool = False) -> Candidate:
        """The candidate with its peak, as it was where it is there already; without where no preview is left, or none pays.

        One that ``is_needed`` is not asked whether it pays, nor is one that is kept.
        """
        for tried in self.candidates:
            if tried.policy.is_same(candidate.policy):
                return tried
        policy, seconds = candidate.policy, self._preview_seconds
        if self._left <= 0:
            return candidate
        kept = self._compiler.kept(self._training, policy)
        if kept is None and not is_needed and not self._pays(candidate, seconds, self._preview_work):
            return candidate
        self._left -= 1
        if kept is None:
            self._tell(f"{policy.kind}: preview{f', some {seconds:.0f} s' if seconds else ''}")
        began, worked = self._deadline.elapsed, self._compiler.processor_seconds
        made = kept or self._compiler.of(self._training, policy)
        self._preview_seconds = max(seconds, made.seconds, self._deadline.elapsed - began)
        self._preview_work = max(self._preview_work, self._compiler.processor_seconds - worked)
        seen = msgspec.structs.replace(candidate, hbm_bytes=made.hbm_bytes, error=made.error)
        self.candidates.append(seen)
        self._tell(f"{policy.kind}: {made.error or mib(made.hbm_bytes)} of {mib(self._limit)}")
        return seen

    def _within(self) -> list[Candidate]:
        """Those within the limit, least time expected first."""
        within = (candidate for candidate in self.candidates if 0 < candidate.hbm_bytes <= self._limit and not candidate.error)
        return sorted(within, key=_order)

    def _best(self) -> Candidate | None:
        """The one of fewest cycles within the limit; of least time expected, where fewer than two were compiled."""
        within = self._within()
        compiled = [candidate for candidate in within if candidate.cycles]
        return min(compiled, key=lambda candidate: candidate.cycles) if len(compiled) > 1 else next(iter(within), None)

    def _judge(self) -> None:
        """Compile those within the limit in full: the best plan, jax's own policies, then other plans, and offloads."""
        within = self._within()
        best_plan = next((candidate for candidate in within if candidate.policy.is_planned), None)
        # Making everything again is expected to be the slowest, and by XLA's estimates it often is not.
        finalists = sorted(
            within,
            key=lambda candidate: (
                candidate is not best_plan,
                candidate.policy.is_offloaded,
                candidate.policy.is_planned,
                candidate.policy.kind != "everything_again",
            ),
        )
        # What a full compile takes is learned from the first; that takes longer than a preview.
        seconds, work, compiled = self._preview_seconds, self._preview_work, 0
        if len(finalists) < 2:
            return
        # One alone has nothing to be compared with.
        is_comparison = self._compiles and sum(self._pays(candidate, seconds, work) for candidate in finalists) > 1
        clock, rate = self._training.target.clock, self._host_bandwidth / 1e9
        for candidate in finalists[: self._compiles] if is_comparison else ():
            kind, began, worked = candidate.policy.kind, self._deadline.elapsed, self._compiler.processor_seconds
            if not self._pays(candidate, seconds, work):
                continue
            self._tell(f"{kind}: full compile, some {seconds:.0f} s or more")
            try:
                cycles, peak = self._compiler.compiled(self._training, candidate.policy)
            except (CompileError, TimeLimitError) as error:
                if not self._deadline.expired:
                    self.notes.append(f"{kind}: {error}")
                continue
            finally:
                seconds = max(seconds, self._deadline.elapsed - began)
                work = max(work, self._compiler.processor_seconds - worked)
            compiled += 1
            if sent := round(candidate.host_seconds * clock):
                self.notes.append(
                    f"{kind}: {sent:,} cycles are {mib(candidate.host_bytes)} to the host and back, {rate:g} GB/s"
                )
            place = self.candidates.index(candidate)
            self.candidates[place] = msgspec.structs.replace(
                candidate, cycles=cycles + sent, hbm_bytes=peak or candidate.hbm_bytes
            )
            self._tell(f"{kind}: {cycles + sent:,} cycles")
        if compiled < len(finalists):
            what = f"{compiled} of them were compiled" if compiled else "none was compiled: what makes least again is taken"
            self.notes.append(f"{len(finalists)} policies are within the limit, {what}")

    def report(self) -> FitReport:
        """The best policy within the limit, and all others.

        Raises
        ------
        TimeLimitError
            The time was over before a policy was within the limit.
        MemoryLimitError
            No policy that was tried is.
        """
        best, deadline = self._best(), self._deadline
        training = self._training
        if best is None:
            seen = [candidate for candidate in self.candidates if candidate.hbm_bytes]
            least = min(seen, key=lambda candidate: candidate.hbm_bytes, default=None)
            if least is None or deadline.expired:
                so_far = f"the least peak so far is {mib(least.hbm_bytes)}" if least else "no preview had ended"
                raise TimeLimitError(
                    f"{training.name} on {training.target.name}: the time was over after {deadline.elapsed:.1f} s, before a "
                    f"policy within {mib(self._limit)} was found; {so_far}: give it more"
                )
            raise MemoryLimitError(
                f"{training.name} on {training.target.name}: found no policy within {mib(self._limit)}; the least of "
                f"{len(seen)} has {mib(least.hbm_bytes)} ({least.policy.kind})",
                self._limit,
                least.hbm_bytes,
                0,
            )
        if deadline.expired:
            self._stop_reason = "cancelled" if deadline.was_cancelled else "time_limit"
        plans: list[Recomputation] = []
        with contextlib.suppress(TimeLimitError):
            if not deadline.expired:
                plans = self._compiler.within(lambda: list(greedy_plans(self._planned_graphs)))
        nodes = {node.name: node.line for graph in self._graphs for node in graph.nodes if node.name}
        return FitReport(
            name=training.name,
            target=training.target.name,
            limit=self._limit,
            candidates=tuple(self.candidates),
            best=self.candidates.index(best),
            lines=tuple(f"{name}: {nodes[name]}" for name in best.policy.names),
            own_names=training.own_names,
            frontier=tuple((self._base + saved.bytes, saved.seconds, saved.flops) for saved in plans),
            stop_reason=self._stop_reason,
            preview_seconds=round(self._preview_seconds, 3),
            previews=self._compiler.made,
            compiles=self._compiler.compiles,
            seconds=round(deadline.elapsed, 3),
            processor_seconds=round(self._compiler.processor_seconds, 3),
            notes=tuple(self.notes),
        )


def _order(candidate: Candidate) -> tuple[float, int]:
    return candidate.recomputed_seconds + candidate.host_seconds, candidate.saved_bytes
