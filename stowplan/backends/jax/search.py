"""The search for a policy of ``jax.checkpoint`` within a memory limit.

A policy says which values of the forward pass are saved for the backward pass. A *plan* is a list of values to save, which
stowplan chooses within a budget of bytes. The *peak* is the largest number of bytes that the compiled program needs at once. A
*preview* is a compilation that ends once XLA has assigned memory, and reports the peak. The policy that recomputes everything
is previewed first, because the peaks of other policies are predicted from its peak. Then plans are previewed, and the
difference between the predicted and the previewed peak corrects the budget of the next plan. Jax's own policies are previewed
as well. The best policies within the limit are compiled in full, and the one with the fewest cycles wins.

A policy may also *offload* values: they are sent to the host's memory instead of being saved on the device. Times of
recomputation are predicted by the *roofline model* of the target, from floating-point operations and bytes.
"""

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

#: At most this many of the previews are set aside for jax's own policies while plans are previewed.
_PREVIEWS_FOR_STOCK = 3
#: If a plan leaves less than the first share of the limit unused, no further plan is previewed. If there is time for only one
#: more preview before the deadline, its plan leaves the second share unused, because it cannot be corrected.
_SLACK, _PLAN_MARGIN = 0.02, 0.05
#: One of jax's own policies is previewed if its predicted peak is at most the first factor times the limit. The factor is above
#: 1 because predictions are some percent off. Policies up to the second factor are previewed last, if previews are left.
_NEAR_LIMIT, _FAR_FROM_LIMIT = 1.1, 1.5
#: The first number predicts the peak of a plan before any plan was previewed. The peak less the saved bytes is expected to be
#: lower than the peak of recomputing everything, by this share of the latter. The reason is that the few bytes that a plan
#: saves first make it unnecessary to recompute the large intermediate values of a softmax. The second number is the share of
#: the offloaded bytes that is assumed to be on the device at the peak. Both were measured on the programs that
#: ``benchmarks.jax_fit`` tunes its constants on (its *seen* programs).
_SAVING_OF_A_PLAN, _SENT_AT_PEAK = 0.15, 0.2
#: If recomputing everything is above the limit, plans with these shares of its peak as their budgets are tried. Saving a few
#: bytes, such as the sums by which a softmax divides, often lowers the peak.
SMALL_SHARES = (0.02, 0.05, 0.1, 0.15)
#: Once a policy is within the limit, a preview or compilation that needs less CPU time than the first number, in seconds, is
#: always worth its time. A longer one is worth it only if it may save more time than that in a training run of the second
#: number of seconds.
_CHEAP_SECONDS, _TRAINING_SECONDS = 10.0, 3600.0
#: A policy that the roofline model predicts to be slower may still be faster by XLA's cycles. This is the share of a training
#: step by which it may be; 8 % were measured (docs/results/xla.md).
_TIME_UNCERTAINTY = 0.1
#: A training step takes this many times as long as its forward pass, because a backward pass takes twice as long.
_STEP_FACTOR = 3


class PolicySearch:
    """A search for a policy of one training step, with the policies that were tried so far.

    Parameters
    ----------
    training
        The training step.
    compiler
        Makes previews and compilations. The search ends at its deadline.
    limit
        Memory limit in bytes.
    previews, compiles
        The largest numbers of previews, including stored ones, and of full compilations.
    say
        Is called with a line of progress before and after each preview and compilation.
    own_names
        Whether plans only save values that the program itself has named.
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
        self._training, self._compiler, self._limit, self._previews_left, self._say = training, compiler, limit, previews, say
        self._compiles, self._deadline = compiles, compiler.deadline
        self._graphs = training.graphs
        self._step_seconds = _STEP_FACTOR * recomputed(self._graphs, ()).seconds
        self._preview_seconds = self._preview_work = 0.0
        """The longest preview so far: wall time and CPU time, in seconds."""
        self._stop_reason: StopReason = "finished"
        self._kind: Kind = "planned_own_names" if own_names else "planned"
        self._planned_graphs = [graph.with_own_names for graph in self._graphs] if own_names else self._graphs
        self._host_bandwidth = xla_chip(training.target).host_bandwidth
        self.candidates: list[Candidate] = []
        """The policies that were previewed."""
        self.notes: list[str] = []
        """Remarks for users."""
        self._peak_of_recomputing_all = 0
        """The peak in bytes of the policy that recomputes everything; 0 before its preview."""
        self._unsaved_bytes = 0
        """The peak of the last plan without the bytes that it saves; the budget of the next plan is the limit minus this."""

    def run(self, first: Policy | None = None) -> None:
        """Search for the best policy.

        The policy that recomputes everything is previewed, then plans and jax's own policies. After that, policies within the
        limit are compiled in full. The search ends early at the time limit or at Ctrl-C. If no policy is within the memory
        limit at the end, this method raises no error, but :meth:`report` does.

        Parameters
        ----------
        first
            A policy to preview before all others; None if there is none.

        Raises
        ------
        CompileError
            XLA refused the program, or the compiling process died, before any policy was within the limit.
        TimeLimitError
            One preview took longer than its own limit, before any policy was within the limit.
        UsageError, MissingDependencyError, InputError
            See :meth:`Previews.make <stowplan.backends.jax.previews.Previews.make>`.
        KeyboardInterrupt
            Ctrl-C was pressed before any policy was within the limit.
        """
        try:
            try:
                self._preview_all(first)
            except (CompileError, TimeLimitError) as error:
                if not self._deadline.expired:
                    if not self._policies_within_limit():
                        raise
                    self.notes.append(str(error))
            self._compile_finalists()
        except KeyboardInterrupt:
            self._deadline.cancelled.set()
            if not self._policies_within_limit():
                raise

    def _preview_all(self, first: Policy | None) -> None:
        """Preview policies until no previews or no time are left.

        The order is: ``first`` if there is one, the policy that recomputes everything, plans, and jax's own policies.
        """
        if first is not None:
            # The search for the largest size may have stored a preview of this policy, which then takes no time.
            self._preview(self._candidate(first, recomputed(self._graphs, first.names)))
        self.start()
        every = [candidate for kind, trait in STOCK.items() if (candidate := self._stock_candidate(kind, trait)) is not None]
        # Policies that save the same bytes and recompute the same are tried once, such as ``dots`` and ``dots_no_batch`` in a
        # program without batch dimensions.
        stock = {
            (candidate.saved_bytes, candidate.recomputed_seconds, candidate.host_bytes): candidate
            for candidate in reversed(every)
        }.values()
        near = sorted(
            (candidate for candidate in stock if candidate.predicted_bytes <= _NEAR_LIMIT * self._limit), key=_time_and_bytes
        )
        far = [candidate for candidate in stock if _NEAR_LIMIT < candidate.predicted_bytes / self._limit <= _FAR_FROM_LIMIT]
        if self._peak_of_recomputing_all > self._limit:
            self._search_below(near)
            return
        whole_program = next((candidate for candidate in near if candidate.policy.kind == "as_it_is"), None)
        fits = whole_program is not None and 0 < self._preview(whole_program).hbm_bytes <= self._limit
        if not fits or self._training.has_own_checkpoints:
            self._plans(min(_PREVIEWS_FOR_STOCK, sum(not candidate.policy.is_offloaded for candidate in near)))
        for candidate in [*near, *sorted(far, key=lambda candidate: candidate.predicted_bytes)]:
            self._preview(candidate)

    def _pays(self, candidate: Candidate, seconds: float, work: float) -> bool:
        """Whether a preview or compilation of a candidate is worth its time.

        It has to end before the deadline, and must be cheap or be able to gain more than it costs. Its gain is the difference
        in time per training step between the best policy within the limit and the candidate, by the roofline model. A candidate
        whose predicted peak is far above the limit gains nothing. As long as no policy is within the limit, every preview is
        worth its time.

        Parameters
        ----------
        seconds, work
            Wall time and CPU time of the preview or compilation, in seconds.
        """
        within = self._policies_within_limit()
        if not within:
            return True
        if not self._has_time(seconds):
            return False
        if self._compiler.resident_bytes > available():
            self._stop_reason = "memory"
            return False
        gain = (
            _time_and_bytes(within[0])[0]
            - _time_and_bytes(candidate)[0]
            + (_TIME_UNCERTAINTY * self._step_seconds if self._compiles else 0.0)
        )
        is_near = candidate.predicted_bytes <= _NEAR_LIMIT * self._limit
        pays = work < _CHEAP_SECONDS or (is_near and gain * _TRAINING_SECONDS > work * self._step_seconds)
        if not pays and self._stop_reason == "finished":
            self._stop_reason = "no_gain"
        return pays

    def _has_time(self, seconds: float) -> bool:
        """Whether more than this number of seconds is left."""
        if seconds < self._deadline.remaining:
            return True
        self._stop_reason = "time_limit"
        return False

    def _report_progress(self, text: str) -> None:
        """Report a line of progress: the time, the text, and the best policy so far."""
        best = self._best()
        state = f"best so far {best.policy.kind}, {mib(best.hbm_bytes)}" if best else f"none within {mib(self._limit)} so far"
        self._say(f"[{self._deadline.elapsed:6.1f} s] {text}; {state}")

    def start(self) -> int:
        """Preview the policy that recomputes everything; returns its peak, from which other peaks are predicted.

        Raises
        ------
        CompileError
            XLA refused the program, or did not report a peak.
        CompileError, TimeLimitError, UsageError, MissingDependencyError, InputError
            See :meth:`Previews.make <stowplan.backends.jax.previews.Previews.make>`.
        """
        first = self._preview(self._candidate(Policy("everything_again")), is_needed=True)
        if first.error:
            raise CompileError(f"{self._training.name}: {first.error}")
        if not first.hbm_bytes:
            raise CompileError(f"{self._training.name}: this libtpu wrote no report of memory, from which the peak is read")
        self._peak_of_recomputing_all = self._unsaved_bytes = first.hbm_bytes
        return self._peak_of_recomputing_all

    def least(self) -> Policy:
        """Returns the policy with the lowest peak among recomputing everything and the plans of :data:`SMALL_SHARES`.

        It raises the errors of :meth:`start`. If the time is over after the first preview, the plans that were previewed by
        then are compared.
        """
        try:
            self.start()
            for part in SMALL_SHARES:
                self._small_plan(part)
        except TimeLimitError:
            if not self._peak_of_recomputing_all:
                raise
        return min((previewed for previewed in self.candidates if previewed.hbm_bytes), key=lambda each: each.hbm_bytes).policy

    def peak(self, policy: Policy) -> int:
        """Returns the peak of a policy in bytes, by its preview; 0 if the compiler refuses or no preview was made.

        It raises the errors of :meth:`Previews.make <stowplan.backends.jax.previews.Previews.make>`.
        """
        return self._preview(self._candidate(policy, recomputed(self._graphs, policy.names))).hbm_bytes

    def _plans(self, reserve: int) -> None:
        """Preview plans; the budget of each plan follows from the peak of the plan before.

        Parameters
        ----------
        reserve
            How many previews to leave for other policies.
        """
        budget: float = self._limit - self._unsaved_bytes
        low, high = 0, math.inf
        while self._previews_left > reserve and (self._has_time(self._preview_seconds) or not self._policies_within_limit()):
            # If this may be the last preview before the deadline, the plan leaves a margin, since it could not be corrected.
            is_last = self._deadline.remaining < 3 * self._preview_seconds
            planned = self._plan_within(int(budget - is_last * _PLAN_MARGIN * self._limit))
            policy = Policy(self._kind, planned.saved)
            if not planned.saved or any(candidate.policy.is_same(policy) for candidate in self.candidates):
                return
            peak = self._preview(self._candidate(policy, planned)).hbm_bytes
            if not peak:
                return
            self._unsaved_bytes = peak - planned.bytes
            budget = self._limit - self._unsaved_bytes
            if peak > self._limit:
                high = min(high, planned.bytes)
            elif self._limit - peak < _SLACK * self._limit:
                return
            else:
                low = max(low, planned.bytes)
            if not low < budget < high:
                budget = (low + high) / 2 if high < math.inf else budget

    def _search_below(self, near: Sequence[Candidate]) -> None:
        """Search for a policy whose peak is lower than that of recomputing everything: saving a few bytes may lower the peak.

        ``near`` are jax's own policies with a predicted peak near the limit.
        """
        for candidate in near:
            if candidate.policy.is_offloaded or self._training.has_own_checkpoints:
                self._preview(candidate)
        for part in SMALL_SHARES:
            small = self._small_plan(part)
            if 0 < small.hbm_bytes <= self._limit:
                self._unsaved_bytes = small.hbm_bytes - small.saved_bytes
                self._plans(0)
                return

    def _small_plan(self, part: float) -> Candidate:
        """Preview a plan whose budget is a share of the peak of recomputing everything."""
        planned = self._plan_within(int(part * self._peak_of_recomputing_all))
        return self._preview(self._candidate(Policy(self._kind, planned.saved), planned), is_needed=True)

    def _plan_within(self, budget: int) -> Recomputation:
        """Returns a plan that saves at most this many bytes. Raises TimeLimitError if the deadline passes first."""
        # Planning may take half of the time that is left if the time of one preview is set aside.
        spare = max(0.0, self._deadline.remaining - self._preview_seconds)
        seconds = min(PLAN_LIMIT, spare / 2)
        return self._compiler.within(lambda: plan(self._planned_graphs, budget, seconds))

    def _stock_candidate(self, kind: Kind, trait: str) -> Candidate | None:
        """Returns the candidate for one of jax's own policies; None if the backward pass reads no value that it saves.

        ``trait`` is the word for these values in :data:`~stowplan.backends.jax.policy.STOCK`.
        """
        if kind == "as_it_is":
            # How much the user's own checkpoints save is not known before a preview.
            size = 0 if self._training.has_own_checkpoints else sum(graph.needed_bytes for graph in self._graphs)
            return self._candidate(Policy(kind), Recomputation(0.0, size, ()))
        names = tuple(dict.fromkeys(name for graph in self._graphs for name in graph.named(trait)))
        recomputation = recomputed(self._graphs, names)
        if not recomputation.saved:
            return None
        return self._candidate(Policy(kind, names if trait == "names" else ()), recomputation)

    def _candidate(self, policy: Policy, recomputation: Recomputation | None = None) -> Candidate:
        """Returns a policy with its predicted figures; without a ``recomputation``, the policy saves nothing."""
        recomputation = recomputation or recomputed(self._graphs, ())
        saved, sent = (0, recomputation.bytes) if policy.is_offloaded else (recomputation.bytes, 0)
        return Candidate(
            policy=policy,
            saved_bytes=saved,
            recomputed_seconds=recomputation.seconds,
            recomputed_flops=recomputation.flops,
            predicted_bytes=self._expected_peak(policy, saved, sent) if self._peak_of_recomputing_all else 0,
            host_bytes=sent,
            host_seconds=2 * sent / self._host_bandwidth,
        )

    def _expected_peak(self, policy: Policy, saved: int, sent: int) -> int:
        """Predicts the peak in bytes of a policy.

        The prediction for a plan is based on the previewed plan that saves the most similar number of bytes. For other
        policies, it is based on the peak of recomputing everything.

        Parameters
        ----------
        saved, sent
            Bytes that the policy saves on the device and bytes that it offloads.
        """
        if not policy.is_planned:
            return round(self._peak_of_recomputing_all + saved + _SENT_AT_PEAK * sent)
        plans = (previewed for previewed in self.candidates if previewed.policy.is_planned and previewed.hbm_bytes)
        nearest = min(plans, key=lambda previewed: abs(previewed.saved_bytes - saved), default=None)
        return saved + (
            nearest.hbm_bytes - nearest.saved_bytes
            if nearest
            else round((1 - _SAVING_OF_A_PLAN) * self._peak_of_recomputing_all)
        )

    def _preview(self, candidate: Candidate, *, is_needed: bool = False) -> Candidate:
        """Preview a candidate and return it with its peak, or without one if no preview was made.

        No preview is made if none is left, or if it is not worth its time and none is stored. For a policy that was previewed
        before, the earlier candidate is returned.

        Parameters
        ----------
        is_needed
            Whether to make the preview even if it is not worth its time.
        """
        for earlier in self.candidates:
            if earlier.policy.is_same(candidate.policy):
                return earlier
        policy, seconds = candidate.policy, self._preview_seconds
        if self._previews_left <= 0:
            return candidate
        stored_record = self._compiler.stored(self._training, policy)
        if stored_record is None and not is_needed and not self._pays(candidate, seconds, self._preview_work):
            return candidate
        self._previews_left -= 1
        if stored_record is None:
            self._report_progress(f"{policy.kind}: preview{f', some {seconds:.0f} s' if seconds else ''}")
        began, worked = self._deadline.elapsed, self._compiler.processor_seconds
        record = stored_record or self._compiler.make(self._training, policy)
        self._preview_seconds = max(seconds, record.seconds, self._deadline.elapsed - began)
        self._preview_work = max(self._preview_work, self._compiler.processor_seconds - worked)
        previewed = msgspec.structs.replace(candidate, hbm_bytes=record.hbm_bytes, error=record.error)
        self.candidates.append(previewed)
        self._report_progress(f"{policy.kind}: {record.error or mib(record.hbm_bytes)} of {mib(self._limit)}")
        return previewed

    def _policies_within_limit(self) -> list[Candidate]:
        """Returns the previewed candidates within the limit, sorted by the time that they are predicted to add to a step."""
        within = (candidate for candidate in self.candidates if 0 < candidate.hbm_bytes <= self._limit and not candidate.error)
        return sorted(within, key=_time_and_bytes)

    def _best(self) -> Candidate | None:
        """Returns the best candidate within the limit; None if there is none.

        It is the best by cycles if at least two were compiled in full, otherwise by predicted time.
        """
        within = self._policies_within_limit()
        compiled = [candidate for candidate in within if candidate.cycles]
        return min(compiled, key=lambda candidate: candidate.cycles) if len(compiled) > 1 else next(iter(within), None)

    def _compile_finalists(self) -> None:
        """Compile candidates within the limit in full, as long as a compilation is worth its time.

        The order is: the best plan, recomputing everything, jax's other policies, other plans, and policies that offload.
        """
        within = self._policies_within_limit()
        best_plan = next((candidate for candidate in within if candidate.policy.is_planned), None)
        # Recomputing everything is predicted to be slowest. By XLA's estimates it often is not, so that it is compiled early.
        finalists = sorted(
            within,
            key=lambda candidate: (
                candidate is not best_plan,
                candidate.policy.is_offloaded,
                candidate.policy.is_planned,
                candidate.policy.kind != "everything_again",
            ),
        )
        # The first full compilation shows how long one takes; before it, the time of a preview is used, which is shorter.
        seconds, work, compiled = self._preview_seconds, self._preview_work, 0
        if len(finalists) < 2:
            return
        # A single compilation would have nothing to be compared with.
        is_comparison = self._compiles and sum(self._pays(candidate, seconds, work) for candidate in finalists) > 1
        clock, rate = self._training.target.clock, self._host_bandwidth / 1e9
        for candidate in finalists[: self._compiles] if is_comparison else ():
            kind, began, worked = candidate.policy.kind, self._deadline.elapsed, self._compiler.processor_seconds
            if not self._pays(candidate, seconds, work):
                continue
            self._report_progress(f"{kind}: full compile, some {seconds:.0f} s or more")
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
            self._report_progress(f"{kind}: {cycles + sent:,} cycles")
        if compiled < len(finalists):
            none = "none was compiled: the one that recomputes least is chosen"
            what = f"{compiled} of them were compiled" if compiled else none
            self.notes.append(f"{len(finalists)} policies are within the limit, {what}")

    def report(self) -> FitReport:
        """Returns a report about the best policy within the limit and about all other policies that were previewed.

        Raises
        ------
        TimeLimitError
            No policy is within the memory limit, and the time limit was reached or no preview has a peak.
        MemoryLimitError
            No policy that was tried is within the memory limit.
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
            frontier=tuple((self._peak_of_recomputing_all + saved.bytes, saved.seconds, saved.flops) for saved in plans),
            stop_reason=self._stop_reason,
            preview_seconds=round(self._preview_seconds, 3),
            previews=self._compiler.previews_made,
            compiles=self._compiler.compiles,
            seconds=round(deadline.elapsed, 3),
            processor_seconds=round(self._compiler.processor_seconds, 3),
            notes=tuple(self.notes),
        )


def _time_and_bytes(candidate: Candidate) -> tuple[float, int]:
    """Returns a key that ranks candidates.

    It has the seconds that the candidate is predicted to add to a training step, and then its saved bytes.
    """
    return candidate.recomputed_seconds + candidate.host_seconds, candidate.saved_bytes
