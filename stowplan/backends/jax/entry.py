"""Fitting: plans corrected by what the compiler says of them, beside jax's own policies; and the policy that is taken."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from stowplan.arguments import number, size, whole
from stowplan.backends.fallback import MemoryLimitError
from stowplan.backends.jax.graph import Recomputation, plan, recomputed
from stowplan.backends.jax.losses import losses_of, marked, with_policy
from stowplan.backends.jax.policy import STOCK, Policy
from stowplan.backends.jax.previews import Previews
from stowplan.backends.jax.report import Candidate, FitReport, mib
from stowplan.backends.xla.compiler import COMPILE_LIMIT
from stowplan.backends.xla.process import CompileError
from stowplan.backends.xla.sharding import partition_of
from stowplan.backends.xla.workload import Workload, of_function, shapes_of, versions
from stowplan.deadline import Deadline
from stowplan.errors import StowplanError, TimeLimitError, UsageError
from stowplan.hardware.targets import Target, load_target, xla_chip

#: Previews and full compiles at most, unless told otherwise.
PREVIEWS, COMPILES = 6, 4

#: Previews that are left to jax's own policies, where more are allowed.
_FOR_STOCK = 2
#: Part of the limit that is not worth another preview.
_SLACK = 0.02
#: A policy of jax's is asked for where it is expected to be this much above the limit at most.
_NEAR = 1.1
#: Budgets that are tried where making everything again is above the limit: parts of its peak. A little that is saved, as what
#: a softmax divides by, often lowers the peak.
_SMALL = (0.02, 0.05, 0.1, 0.15)


class Fitted(NamedTuple):
    """What came of it."""

    function: Callable[..., Any]
    """The function with its policy, not jitted."""
    report: FitReport
    policy: str
    """Lines to paste."""


def fit(
    loss_or_step: Callable[..., Any],
    arguments: Sequence[Any],
    hbm: int | str,
    chip: str = "v5e",
    *,
    argnums: int | Sequence[int] = 0,
    donated: Sequence[int] = (),
    previews: int = PREVIEWS,
    compiles: int = COMPILES,
    folder: str | Path | None = None,
    time_limit: float | None = None,
    compile_limit: float = COMPILE_LIMIT,
    on_progress: Callable[[str], None] | None = None,
    cancel: threading.Event | None = None,
) -> Fitted:
    """A policy of ``jax.checkpoint`` with which a training step is within so many bytes of a TPU's memory. No TPU is needed.

    Parameters
    ----------
    loss_or_step
        A loss: returns one float, and is compiled with its gradient. Or a step, which calls its loss by
        :class:`~stowplan.backends.jax.marked`. Not jitted.
    arguments
        Its arguments: trees of arrays or ``jax.ShapeDtypeStruct``; only shapes, types and shardings count.
    hbm
        Bytes that the program may have on a device at most, arguments and results included, or text such as ``"14 GiB"``.
    chip
        ``"v5e"``, or the name of its target, ``"tpu-v5e"``.
    argnums
        Of a loss: the arguments it is differentiated by.
    donated
        Positions of arguments whose memory the results may take.
    previews
        Previews at most, kept ones included.
    compiles
        Full compiles at most, by which policies within the limit are compared; 0 to go by what is made again.
    folder
        Where results are kept, and looked for.
    time_limit, compile_limit
        Seconds, of all and of one preview or compile.
    on_progress
        Called with a line after each of them.
    cancel
        Setting this event is as if the time were over.

    Raises
    ------
    MemoryLimitError
        No policy that was tried is within the limit; says the least peak.
    UsageError
        Arguments that make no sense, a function without a backward pass, a limit below the arguments alone.
    CompileError
        A function that does not trace, or that XLA does not compile.
    MissingDependencyError
        Without jax, libtpu or cloudpickle.
    TimeLimitError
        The time was over before a policy was within the limit.
    """
    limit = size("a limit of {}", hbm, 1)
    whole("{} previews", previews, least=1)
    whole("{} compiles", compiles, least=0)
    if time_limit is not None:
        number("a time limit of {} s", time_limit, least=0, or_least=False)
    target = load_target(chip if chip.startswith("tpu-") else f"tpu-{chip}")
    xla_chip(target)
    versions()
    function = loss_or_step.loss if isinstance(loss_or_step, marked) else loss_or_step
    name = getattr(function, "__name__", "function")
    fixed = _argument_bytes(arguments)
    if fixed > limit:
        raise UsageError(f"{name}: found a limit of {mib(limit)}, expected more than the arguments alone have, {mib(fixed)}")
    program = _Program(function, tuple(arguments), argnums, tuple(donated), target, name)
    deadline = Deadline(time_limit, cancel)
    with Previews(target, name, program.identity, folder, compile_limit, deadline) as compiler:
        search = _Search(program, compiler, limit, previews, on_progress or (lambda line: None))
        search.run()
        search.judge(compiles)
        return search.result(deadline)


class _Program:
    """What is fitted, traced: its graphs, and how it is compiled with a policy."""

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        argnums: int | Sequence[int],
        donated: tuple[int, ...],
        target: Target,
        name: str,
    ):
        import jax

        from stowplan.backends.jax.program import Loss, has_checkpoints, text_of

        self.function, self.arguments, self.donated, self.name, self.target = function, arguments, donated, name, target
        argnums = argnums if isinstance(argnums, int) else tuple(argnums)
        try:
            losses = losses_of(function, arguments)
            self._argnums = None if losses else argnums
            if not losses:
                self._check_loss(jax.eval_shape(function, *arguments))
                losses = [Loss(function, arguments)]
            self.graphs = [graph for loss in losses for graph in loss.graphs(target.roofline)]
            traced = jax.make_jaxpr(self.with_policy(Policy("as_it_is")))(*arguments)
        except StowplanError:
            raise
        except Exception as error:
            raise CompileError(f"{name}: cannot trace the function: {type(error).__name__}: {error}") from error
        shapes, mesh = shapes_of(arguments)
        self.identity = f"{text_of(traced)} {shapes} {mesh} {donated}"
        self.has_own = has_checkpoints(traced)

    def _check_loss(self, result: Any) -> None:
        import jax
        import jax.numpy as jnp

        leaves = jax.tree.leaves(result)
        if len(leaves) != 1 or leaves[0].shape or not jnp.issubdtype(leaves[0].dtype, jnp.floating):
            returned = ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves[:4]) or "nothing"
            raise UsageError(
                f"{self.name}: found a function without a backward pass, which returns {returned}; expected a loss, one float, "
                "or a step that calls its loss by stowplan.backends.jax.marked"
            )

    def with_policy(self, policy: Policy) -> Callable[..., Any]:
        """What is compiled."""
        planned, argnums = with_policy(self.function, policy), self._argnums
        if argnums is None:
            return planned

        def differentiated(*arguments: Any) -> Any:
            import jax

            return jax.value_and_grad(planned, argnums)(*arguments)

        return differentiated

    def workload(self, policy: Policy) -> Workload:
        """The same for another process."""
        return of_function(self.with_policy(policy), *self.arguments, donated=self.donated, name=self.name)


class _Search:
    """Candidates, as they come."""

    def __init__(self, program: _Program, compiler: Previews, limit: int, previews: int, say: Callable[[str], None]):
        self._program, self._compiler, self._limit, self._left, self._say = program, compiler, limit, previews, say
        self._graphs = program.graphs
        self.candidates: list[Candidate] = []
        self.notes: list[str] = []
        self._base = 0
        """Peak of making everything again."""
        self._beside = 0
        """What the last plan had beside saved bytes: the next is predicted by it."""

    def run(self) -> None:
        """Everything again, then plans and jax's own policies, until the previews are spent."""
        first = self._preview(self._candidate(Policy("everything_again")))
        if first.error:
            raise CompileError(f"{self._program.name}: {first.error}")
        if not first.hbm_bytes:
            raise CompileError(f"{self._program.name}: this libtpu wrote no report of memory, from which the peak is read")
        self._base = self._beside = first.hbm_bytes
        every = [candidate for kind in STOCK if (candidate := self._stock(kind)) is not None]
        # Two that save the same bytes and make the same again are one, as dots are where none has batch dimensions.
        stock = {
            (candidate.saved_bytes, candidate.recomputed_seconds, candidate.host_bytes): candidate
            for candidate in reversed(every)
        }.values()
        near = sorted((candidate for candidate in stock if candidate.predicted_bytes <= _NEAR * self._limit), key=_order)
        try:
            if self._base > self._limit:
                self._below(near)
            else:
                whole_program = next((candidate for candidate in near if candidate.policy.kind == "as_it_is"), None)
                fits = whole_program is not None and self._preview(whole_program).hbm_bytes <= self._limit
                if not fits or self._program.has_own:
                    self._plans(min(_FOR_STOCK, sum(not candidate.host_bytes for candidate in near)))
                for candidate in near:
                    # The host's link is not in the compiler's estimates: what is offloaded is a last resort.
                    if not candidate.host_bytes and candidate is not whole_program:
                        self._preview(candidate)
        except (CompileError, TimeLimitError) as error:
            if not self._within():
                raise
            self.notes.append(str(error))

    def _plans(self, kept_back: int) -> None:
        """Plans of a budget that follows from the peak of the one before."""
        budget: float = self._limit - self._beside
        low, high = 0, math.inf
        while self._left > kept_back:
            planned = plan(self._graphs, int(budget))
            policy = Policy("planned", planned.saved)
            if not planned.saved or any(candidate.policy == policy for candidate in self.candidates):
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
            if candidate.host_bytes or self._program.has_own:
                self._preview(candidate)
        for part in _SMALL:
            planned = plan(self._graphs, int(part * self._base))
            made = self._preview(self._candidate(Policy("planned", planned.saved), planned))
            if 0 < made.hbm_bytes <= self._limit:
                self._beside = made.hbm_bytes - planned.bytes
                self._plans(0)
                return

    def _stock(self, kind: Any) -> Candidate | None:
        """A policy of jax's; None where the program has nothing for it."""
        trait = kind.replace("offload_dots", "dots_no_batch").replace("offload_", "")
        if kind == "as_it_is":
            # What the user's own checkpoints save is not known before it is asked for.
            size = 0 if self._program.has_own else sum(graph.needed_bytes for graph in self._graphs)
            return self._candidate(Policy(kind), Recomputation(0.0, size, ()))
        names = tuple(dict.fromkeys(name for graph in self._graphs for name in graph.named(trait)))
        made = recomputed(self._graphs, names)
        if not made.saved:
            return None
        policy = Policy(kind, names if "names" in kind else ())
        if "offload" in kind:
            kept = self._candidate(policy, msgspec.structs.replace(made, bytes=0))
            return msgspec.structs.replace(kept, host_bytes=made.bytes)
        return self._candidate(policy, made)

    def _candidate(self, policy: Policy, made: Recomputation | None = None) -> Candidate:
        made = made or recomputed(self._graphs, ())
        return Candidate(
            policy=policy,
            saved_bytes=made.bytes,
            recomputed_seconds=made.seconds,
            predicted_bytes=(self._beside if policy.kind == "planned" else self._base) + made.bytes if self._base else 0,
        )

    def _preview(self, candidate: Candidate) -> Candidate:
        """The candidate with its peak; without where no preview is left, or it is there already."""
        if self._left <= 0 or any(tried.policy == candidate.policy for tried in self.candidates):
            return candidate
        self._left -= 1
        made = self._compiler.of(candidate.policy, partial(self._program.workload, candidate.policy))
        seen = msgspec.structs.replace(candidate, hbm_bytes=made.hbm_bytes, error=made.error)
        self.candidates.append(seen)
        self._say(f"{candidate.policy.kind}: {made.error or mib(made.hbm_bytes)} of {mib(self._limit)}")
        return seen

    def _within(self) -> list[Candidate]:
        """Those within the limit, least made again first; offloads only where there is no other."""
        within = sorted(
            (candidate for candidate in self.candidates if 0 < candidate.hbm_bytes <= self._limit and not candidate.error),
            key=_order,
        )
        return [candidate for candidate in within if not candidate.host_bytes] or within

    def judge(self, compiles: int) -> None:
        """Compile those within the limit in full: the best plan, then jax's own policies, then other plans."""
        within = self._within()
        plans = [candidate for candidate in within if candidate.policy.kind == "planned"]
        finalists = [*plans[:1], *(candidate for candidate in within if candidate.policy.kind != "planned"), *plans[1:]]
        if len(finalists) < 2:
            return
        if len(finalists) > compiles:
            what = f"{compiles} of them were compiled" if compiles else "none was compiled: what makes least again is taken"
            self.notes.append(f"{len(finalists)} policies are within the limit, {what}")
        for candidate in finalists[:compiles]:
            try:
                cycles, peak = self._compiler.compiled(self._program.workload(candidate.policy))
            except (CompileError, TimeLimitError) as error:
                self.notes.append(f"{candidate.policy.kind}: {error}")
                continue
            place = self.candidates.index(candidate)
            self.candidates[place] = msgspec.structs.replace(candidate, cycles=cycles, hbm_bytes=peak or candidate.hbm_bytes)
            self._say(f"{candidate.policy.kind}: {cycles:,} cycles")

    def result(self, deadline: Deadline) -> Fitted:
        """The one of fewest cycles within the limit.

        Raises
        ------
        MemoryLimitError
            None is.
        """
        within = self._within()
        if not within:
            seen = [candidate for candidate in self.candidates if candidate.hbm_bytes]
            least = min(seen, key=lambda candidate: candidate.hbm_bytes)
            raise MemoryLimitError(
                f"{self._program.name} on {self._program.target.name}: found no policy within {mib(self._limit)}; the least of "
                f"{len(seen)} has {mib(least.hbm_bytes)} ({least.policy.kind})",
                self._limit,
                least.hbm_bytes,
                0,
            )
        best = min(within, key=lambda candidate: (not candidate.cycles, candidate.cycles, _order(candidate)))
        nodes = {node.name: node.line for graph in self._graphs for node in graph.nodes if node.name}
        report = FitReport(
            name=self._program.name,
            target=self._program.target.name,
            limit=self._limit,
            candidates=tuple(self.candidates),
            best=self.candidates.index(best),
            lines=tuple(f"{name}: {nodes[name]}" for name in best.policy.names),
            previews=self._compiler.made,
            compiles=self._compiler.compiles,
            seconds=round(deadline.elapsed, 3),
            processor_seconds=round(self._compiler.processor_seconds, 3),
            notes=tuple(self.notes),
        )
        return Fitted(with_policy(self._program.function, best.policy), report, report.policy_text)


def _order(candidate: Candidate) -> tuple[float, int]:
    return candidate.recomputed_seconds, candidate.saved_bytes


def _argument_bytes(arguments: Sequence[Any]) -> int:
    """Bytes of the arguments on one device, without what layouts add."""
    import jax

    total = 0
    for leaf in jax.tree.leaves(tuple(arguments)):
        if not hasattr(leaf, "dtype"):
            continue
        partition, mesh = partition_of(leaf)
        sizes = dict(zip(mesh.names, mesh.sizes, strict=True)) if mesh else {}
        parts = math.prod(sizes.get(axis, 1) for axes in partition or () for axis in axes)
        total += math.prod(leaf.shape) * getattr(leaf.dtype, "itemsize", 0) // parts
    return total
