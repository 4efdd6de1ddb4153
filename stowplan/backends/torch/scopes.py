"""Training steps: counts the live bytes in each step, checks the limit, and has graphs planned within the bytes that are left.

A *graph* is a part of a model that ``torch.compile`` has compiled, with its backward pass. Its *plan* says which values it
saves for the backward pass and which it computes again. The *memory* is the ``TrainingMemory`` of the training loop, with its
limit; it is *strict* if a step above the limit raises an error.

A step is called a *scope* here. The user opens it (``with memory.step():``), or it opens by itself at the first call of a
compiled graph, and again at the first call after a backward pass. The end of a scope that opened by itself cannot be seen: code
that runs after its backward pass may belong to other models. Only optimizers are certain to be a part of the step. While they
run, a peak above the limit is an error; a peak in any other code after the backward pass causes one warning. In a scope that
the user opens, everything that runs is a part of the step.

The first scopes run with the plans of least peak, which need the least memory. Meanwhile
:mod:`~stowplan.backends.torch.timeline` records how many bytes are live outside of the graphs in each *phase* of a step: the
time in which a certain pass of a graph runs, or no graph runs. These bytes are the *remainder* of the phase. Then
:mod:`~stowplan.backends.torch.fitting` plans graphs again within the bytes that are left. A plan changes only between scopes,
and never within a backward pass, because a checkpointed region must run a second time exactly as it ran the first time. A *use*
of a graph is one forward pass, until the end of its backward pass (:mod:`~stowplan.backends.torch.uses`).

A *dispatch mode* is torch's hook that sees every operator; here it counts bytes
(:class:`~stowplan.backends.torch.measure.Storages`). ``torch.compile`` restores the set of dispatch keys when a compiled
function returns, but not the stack of dispatch modes. A mode that is pushed onto an empty stack inside of a compiled function
is therefore inactive afterwards. For that reason the mode that counts is pushed when the memory is constructed, outside of
compiled code, and stays below all other modes.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from stowplan.backends.fallback import MemoryLimitError, warn
from stowplan.backends.torch import private
from stowplan.backends.torch.fitting import NO_LIMIT, Fitting
from stowplan.backends.torch.measure import Allocator, Storages
from stowplan.backends.torch.partition import Partitioner
from stowplan.backends.torch.report import SPARE, StepsReport, naming_out_of_memory, refusal
from stowplan.backends.torch.uses import EndedPhase, RunningPhase, SpecializedGraph, Stage, State, Use, Variant, storage_keys
from stowplan.errors import UsageError

#: A graph gets its own plans for at most this many combinations of symbolic sizes. Other sizes use the plan of least peak.
MOST_SIZES = 8

#: The scopes of all memories that exist, so that an optimizer's step and the scope of another memory can reach them.
_ALL: weakref.WeakSet[Scopes] = weakref.WeakSet()


class Scopes:
    """The training steps of one ``TrainingMemory``.

    Parameters
    ----------
    planner
        The partitioner, which plans the graphs.
    margin
        Bytes of the limit that plans leave free; None to measure how much the loop keeps from step to step.
    check_every
        Once all graphs are planned, operators are counted only in scopes whose number is a multiple of this.
    hard
        Whether CUDA's allocator refuses to allocate more than the limit.
    """

    def __init__(self, planner: Partitioner, margin: int | None = None, check_every: int = 1, hard: bool = False):
        self.planner, self.settings = planner, planner.settings
        self.fitting = Fitting(planner, self.settings.limit + self.settings.outside, margin)
        self.check_every, self.hard = check_every, hard
        self.state = State.IDLE
        self.is_explicit = self.is_warned = False
        """Whether the user opened the scope that is open; whether the warning about the limit, which comes once, was issued."""
        self.report = StepsReport(limit=self.limit)
        self.uses: list[Use] = []
        """Forward passes whose backward pass may still come, in the order in which they began."""
        self.trained_parameters: dict[int, Any] = {}
        """Weak references to the parameters that graphs train, with their versions at the end of the last scope, by ``id``."""
        self.phase: RunningPhase | None = None
        """The phase that is running; None if no scope is open."""
        self.ended_phases: list[EndedPhase] = []
        """The phases of the current scope that have ended."""
        self.is_stepping = False
        """Whether an optimizer steps right now."""
        self.unattributed_peak = 0
        """The peak in bytes since ``torch.compile`` began to compile, as long as it has not made a graph."""
        self.task = private.NO_TASK
        """The identifier of the last backward pass in which one of the graphs ran."""
        self.is_used_by_compile: Callable[[], bool] = lambda: True
        """Tells whether the memory was passed to ``torch.compile``."""
        # The meter counts live bytes; it is replaced by the allocator's statistics once a graph runs on CUDA.
        self.meter: Storages | Allocator = Storages()
        self.meter.owner = weakref.ref(self)
        self.meter.on_new_peak = private.weakly(self.check)
        self.meter.counts_operands = False  # Operators that run before the first step may belong to other models.
        _ALL.add(self)
        private.put_below(self.meter, _is_obsolete)
        forget = private.on_compilation(private.weakly(self.compilation_began))
        weakref.finalize(self, forget)

    # ------------------------------------------------------------------------------------------------ scopes

    @contextlib.contextmanager
    def explicit(self) -> Iterator[None]:
        """A context manager for a scope that the user opens.

        Raises
        ------
        UsageError
            A scope that the user opened is open already.
        MemoryLimitError
            More bytes than the limit are live, and the memory is strict; or the device has no memory left.
        """
        if self.is_explicit:
            raise UsageError("found a step inside of a step of the same memory, expected one after the other")
        self._close()
        self.is_explicit = True
        try:
            with self._counted(), naming_out_of_memory(self):
                self._open(State.EVALUATION)
                yield
                self._close()
        finally:
            self.is_explicit, self.state, self.phase = False, State.IDLE, None

    def _counted(self) -> Any:
        """Returns a context in which operators of this thread are counted."""
        is_active = not isinstance(self.meter, Storages) or self.meter in private.dispatch_modes()
        return contextlib.nullcontext() if is_active else self.meter

    @property
    def limit(self) -> int:
        """Memory limit of a step, in bytes."""
        return self.fitting.limit

    @property
    def is_counting(self) -> bool:
        """Whether live bytes are counted in this scope."""
        return not isinstance(self.meter, Storages) or self.meter.is_counting

    def _open(self, state: State) -> None:
        """Begin a scope, which starts in the given state."""
        self._close()
        self.state, self.ended_phases = state, []
        self.report.count += 1
        self.task = private.NO_TASK
        if isinstance(self.meter, Storages):
            is_settled = all(part.stage is Stage.DECIDED for part in self.fitting.graphs)
            self.meter.is_counting = not is_settled or self.report.count % self.check_every == 0
        self.report.checked += self.is_counting
        self.meter.pop_found(0)
        self.fitting.begin(self.meter.live)
        self._begin_phase()

    def _close(self) -> None:
        """Ends the scope that is open, if there is one, and records its phases in the timeline."""
        if self.state in (State.IDLE, State.UNCOMPILED):
            return
        self._end_phase()
        state, self.state, is_news = self.state, State.IDLE, False
        if self.is_counting:
            # A tensor is *found* late if it existed before the meter saw it. Tensors that were found after the last phase that
            # certainly belongs to the step do not count.
            found = max((ended.found for ended in self.ended_phases if ended.is_certain), default=0)
            found_earlier = self.meter.pop_found(found)
            self.fitting.base += found_earlier
            for ended in self.ended_phases:
                # Tensors that were found in later phases were live in this one as well.
                late = max(0, found - ended.found)
                is_news |= self.fitting.learn(ended.phase, ended.remainder + late - found_earlier)
                if ended.is_certain:
                    self._check_bytes(ended.peak + late, is_certain=True)
            self.report.outside = self.fitting.base
        if state in (State.BACKWARD, State.UPDATING):
            self.fitting.quiet_steps = 0 if is_news else self.fitting.quiet_steps + 1
        for key, (ref, version) in self.trained_parameters.items():
            now = getattr(ref(), "_version", version)
            self.fitting.is_updated |= now != version
            self.trained_parameters[key] = ref, now

    def _on_call(self, arguments: tuple[Any, ...]) -> None:
        """Called when a graph is called; a new scope may begin with the call."""
        trained_parameters = [each for each in arguments if isinstance(each, torch.nn.Parameter) and each.requires_grad]
        new = (
            each
            for each in trained_parameters
            if id(each) not in self.trained_parameters or self.trained_parameters[id(each)][0]() is None
        )
        self.trained_parameters |= {id(each): (weakref.ref(each), each._version) for each in new}
        self._choose_meter(arguments)
        for tensor in arguments:
            self.meter.find(tensor, self.settings.counted.parameters)
        for tensor in (*trained_parameters, *(behind_views := private.parameters_behind(arguments))):
            self.meter.find(tensor.grad)
        for tensor in behind_views:
            self.meter.find(tensor, self.settings.counted.parameters)
        has_gradients = torch.is_grad_enabled()
        if not self.is_explicit and not private.is_in_backward():
            is_over = self.state in (State.BACKWARD, State.UPDATING) and not any(use.is_waiting for use in self.uses)
            if self.state is State.IDLE or is_over or (self.state is State.EVALUATION and has_gradients):
                for other in [*_ALL]:
                    if other is not self:
                        other.yield_to(self)
                self._open(State.FORWARD if has_gradients else State.EVALUATION)
        if self.state is State.EVALUATION and has_gradients:
            self.state = State.FORWARD

    def yield_to(self, other: Scopes) -> None:
        """Called when another memory opens a scope: drops the scope of this memory if its step is over, or if graphs of both
        memories train the same parameters."""
        is_over = self.state is not State.FORWARD and not any(use.is_waiting for use in self.uses)
        if not self.is_explicit and (is_over or self.trained_parameters.keys() & other.trained_parameters.keys()):
            self.state, self.phase = State.IDLE, None

    def _choose_meter(self, arguments: tuple[Any, ...]) -> None:
        """Use CUDA's allocator as the meter once a graph is called with tensors on CUDA."""
        device = next((each.device for each in arguments if isinstance(each, torch.Tensor) and each.is_cuda), None)
        if device is not None and isinstance(self.meter, Storages):
            self.meter.is_counting = False
            self.meter = Allocator(device)
            self.report.by = "allocator"
            if self.hard:
                self.meter.cap(self.limit)

    def compilation_began(self) -> None:
        """Called when ``torch.compile`` begins to compile; it may end without a graph."""
        if self.state is State.IDLE and not self.fitting.graphs and self.is_used_by_compile():
            self.state, self.unattributed_peak = State.UNCOMPILED, 0
            self.meter.counts_operands = True

    # ------------------------------------------------------------------------------------------------ phases

    def _begin_phase(self, variant: Variant | None = None, use: Use | None = None, is_backward: bool = False) -> None:
        """End the current phase and begin one in which a pass of this graph runs; without a graph, one in which none runs."""
        self._end_phase()
        self.uses = [each for each in self.uses if each.is_waiting]
        if self.state is not State.IDLE:
            self.meter.reset()
            waiting = [each for each in self.uses if each is not use]
            self.phase = RunningPhase(variant, use, is_backward, self.meter.live, waiting)
            # Outside of the step, operators may use tensors of other models, which do not count.
            self.meter.counts_operands = self._is_certain()

    def _end_phase(self) -> None:
        """End the current phase, if there is one: check its peak, and record its remainder."""
        if self.phase is None:
            return
        # If the check drops the phase, it also raises an error.
        self.check()
        phase, peak = self.phase.key, self._peak()
        remainder = self.phase.remainder(peak, self.fitting.base)
        is_certain = self.is_explicit or phase.depends_on_plans or self.state is not State.BACKWARD
        self.ended_phases.append(EndedPhase(phase, remainder, peak, self.meter.found, is_certain))
        self.phase = None

    def run_pass(self, variant: Variant, is_backward: bool, function: Any, arguments: list[Any]) -> Any:
        """Run the forward or the backward pass of a graph, and begin and end the phases around it.

        Parameters
        ----------
        function
            Runs the pass; it takes the list of arguments.
        """
        use: Use | None
        if is_backward:
            keys = storage_keys(arguments)
            of_graph = [each for each in reversed(self.uses) if each.variant.graph is variant.graph and not each.is_over]
            use = next((each for each in of_graph if each.keys & keys), of_graph[0] if of_graph else None)
            self.task = private.backward_task()
            private.at_end_of_backward(self._backward_ended)
            if self.state is not State.IDLE:
                self.state = State.BACKWARD
        else:
            use = Use(variant, arguments)
            use.step = self.report.count
        self._begin_phase(variant, use, is_backward)
        with naming_out_of_memory(self):
            results = function(arguments)
        if use is not None and not is_backward:
            use.forward_ended(results)
            self._end_phase()
            self.uses.append(use)
        elif use is not None and not private.keeps_graph():
            use.end()
        self._begin_phase()
        return results

    def _backward_ended(self) -> None:
        """Called when the backward pass of the autograd engine has ended."""
        self.task = private.NO_TASK
        self._begin_phase()

    # ------------------------------------------------------------------------------------------------ graphs

    def checked(self, compile_graph: Callable[[Any, Variant], Any], inputs: Any, code: Any) -> Callable[..., Any]:
        """Compiles a graph and returns a function that runs it and checks the limit.

        Parameters
        ----------
        compile_graph
            Compiles the graph for given inputs. Its second argument is the variant, that is, the graph with one plan, for which
            the passes of the graph call :meth:`run_pass`.
        inputs
            Example inputs of the graph.
        code
            Key of the code that the graph was compiled from.

        Returns
        -------
        Callable
            The compiled graph. It, or its backward pass, raises MemoryLimitError if a step is above the limit and the memory is
            strict.
        """
        for scopes in [*_ALL]:
            if scopes.state is State.UNCOMPILED:
                scopes.state = State.IDLE
        key = object()
        generic = self.fitting.add(compile_graph, (key, ()), code, inputs)
        by_sizes: dict[tuple[int, ...], SpecializedGraph] = {(): generic}

        def run(*arguments: Any) -> Any:
            if self._exceeds_repeats(code):
                return generic.least.function(*arguments)
            self._on_call(arguments)
            graph, sizes = generic, tuple(size for size in arguments if type(size) is int)
            if torch.is_grad_enabled() and generic.least.planned:
                if sizes not in by_sizes and len(by_sizes) <= MOST_SIZES:
                    by_sizes[sizes] = self.fitting.add(compile_graph, (key, sizes), code, arguments, instead=generic)
                graph = by_sizes.get(sizes, generic)
                # Only uses of this step prevent a new plan. A use from an earlier step, which ``retain_graph`` may keep, has
                # its own plan until it ends.
                uses = [use for use in self.uses if use.step == self.report.count]
                if not any(use.is_waiting for use in uses):
                    # Tensors that were found late may have taken the place of tensors that have been released since the step
                    # began. No more bytes count than are live now beyond the base.
                    found = min(self.meter.found, self.meter.live - self.fitting.base)
                    self.fitting.return_to_least_if_above_limit(max(0, found))
                self.fitting.prepare(graph, arguments, uses)
            with self._counted() as entered:
                if entered is not None:
                    text = "a graph runs in another thread than the one that made its memory"
                    self._warn_once(f"{text}: graphs alone count there, and steps that are said there")
                results = graph.current.function(*arguments)
            self._on_return(results)
            return results

        return run

    def _on_return(self, results: Any) -> None:
        """Called when a graph has returned its results; hooks on saved tensors have run by then."""
        if self.phase is not None:
            self.phase = self.phase._replace(waiting=[use for use in self.phase.waiting if use.is_waiting])
        use = self.uses[-1] if self.uses else None
        if use is not None and use.is_waiting and not use.saved.keys and (node := private.compiled_node(results)) is not None:
            weakref.finalize(node, use.end)

    def measure_least(self, step: Callable[[], Any], count: int) -> int:
        """Runs a step ``count`` times with the plans of least peak and without a limit.

        Returns the smallest limit that it needs, in bytes, with 1 % to spare. Errors of ``step`` are raised, and UsageError if
        the user has a scope open.
        """
        limit, report = self.limit, self.report
        self._close()
        self.report = StepsReport(limit=limit)
        self.fitting.forget(NO_LIMIT, Stage.STALE)
        try:
            for _ in range(count):
                with self.explicit():
                    step()
            return math.ceil(self.report.largest * SPARE)
        finally:
            self.report = report
            self.fitting.forget(limit, Stage.MEASURED)

    # ------------------------------------------------------------------------------------------------ limits

    def _exceeds_repeats(self, code: Any) -> bool:
        """Whether a graph runs more often before its backward pass than ``repeats`` says; reports that once."""
        most = self.settings.repeats
        if most is None or not torch.is_grad_enabled() or private.is_in_backward():
            return False
        uses = 1 + sum(use.is_waiting for use in self.uses if use.variant.graph.code == code)
        if uses > most and not self.is_warned:
            self._raise_or_warn(f"a graph runs {uses} times before its backward pass, expected {most}: say repeats={uses}", 0)
        return uses > most

    def _peak(self) -> int:
        """Returns the meter's peak in bytes, less the gradients of parameters if they do not count."""
        parameters = [] if self.settings.counted.gradients else [ref() for ref, _ in self.trained_parameters.values()]
        return self.meter.peak - sum(int(each.nbytes) for each in parameters if each is not None)

    def check(self) -> None:
        """Raise the error, or warn once, if this step is above the limit of the device or of the host."""
        if self.state is State.IDLE or not self.is_counting:
            return
        host, host_peak = self.settings.host, self.meter.host_peak
        if host is not None and host_peak > host.limit and not self.is_warned:
            text = (
                f"a step took {host_peak} bytes on the host, and its limit is {host.limit}: say how many share it, outside=0, "
            )
            text += f"graphs={len(self.planner.planned())} or repeats={max(1, len(self.uses))}"
            self._raise_or_warn(text, host_peak)
        peak, is_certain = self._peak(), self._is_certain()
        if self.state is State.UNCOMPILED:
            # Only a backward pass shows that this is a step. It may begin after the peak, so the peak is remembered.
            self.unattributed_peak = peak = max(peak, self.unattributed_peak)
            self.meter.reset()
        self._check_bytes(peak, is_certain)

    def _is_certain(self) -> bool:
        """Whether the operator that runs now is certain to be a part of a step."""
        task = private.backward_task()
        if self.state is State.UNCOMPILED:
            if task != private.NO_TASK:
                self._warn_once("torch.compile made no graph of the model: it runs as eager, and its steps are only checked")
            return self.is_stepping or task != private.NO_TASK
        if self.is_explicit or self.state is not State.BACKWARD or task == self.task != private.NO_TASK:
            return True
        return self.phase is not None and (self.phase.variant is not None or bool(self.phase.waiting))

    def is_in_use(self) -> bool:
        """Whether the scopes are still needed: the user opened one, or some trained parameter still exists."""
        return (
            self.is_explicit
            or not self.trained_parameters
            or any(ref() is not None for ref, _ in self.trained_parameters.values())
        )

    def _check_bytes(self, peak: int, is_certain: bool) -> None:
        """Raise the error, or warn once, if a peak is above the limit; only warn if it may not belong to the step."""
        self.report.largest = max(self.report.largest, peak if is_certain else 0)
        if peak <= self.limit or not self.is_in_use() or self.is_warned:
            return
        if is_certain:
            self._raise_or_warn(refusal(self, peak), peak)
        elif self.state is not State.UNCOMPILED:
            text = f"{peak} bytes were live behind a backward pass, and the limit is {self.limit}"
            self._warn_once(f"{text}: only inside of memory.step() is that known to be a part of a step", topic="behind")

    def _raise_or_warn(self, text: str, peak: int) -> None:
        """Close the scope and raise MemoryLimitError if the memory is strict; otherwise warn."""
        if self.settings.strict:
            self.state, self.phase = State.IDLE, None
            raise MemoryLimitError(text, self.limit, peak, 0)
        self.is_warned = True
        warn(text)

    def _warn_once(self, text: str, topic: str = "") -> None:
        """Warn, unless an earlier warning contains the topic, by default the whole text."""
        if not any((topic or text) in warning for warning in self.report.warnings):
            self.report.warnings.append(text)
            warn(text)


def _is_obsolete(mode: Any) -> bool:
    """Whether a dispatch mode counts for scopes that no longer exist, or whose parameters were all released."""
    scopes = mode.owner() if isinstance(mode, Storages) and mode.owner is not None else mode
    return scopes is None or (isinstance(scopes, Scopes) and not scopes.is_in_use())


def _before_optimizer(*_: Any) -> None:
    """Called before the step of any optimizer; scopes in which a backward pass has begun start a phase for it."""
    for scopes in [*_ALL]:
        scopes.is_stepping = True
        if scopes.state is State.BACKWARD:
            scopes._begin_phase()
            scopes.state = State.UPDATING


def _after_optimizer(*_: Any) -> None:
    """Called after the step of any optimizer; ends the phase that began before it."""
    for scopes in [*_ALL]:
        scopes.is_stepping = False
        if scopes.state is State.UPDATING:
            scopes._begin_phase()
            scopes.state = State.BACKWARD


register_optimizer_step_pre_hook(_before_optimizer)
register_optimizer_step_post_hook(_after_optimizer)
