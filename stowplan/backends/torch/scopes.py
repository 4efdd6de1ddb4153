"""Training steps as scopes: what is live in each is counted, and graphs are planned within what the steps leave.

A scope is said by its user (``with memory.step():``), or opens by itself: at the first call of a compiled graph, and at the
next call that comes after a backward pass. Such a scope has no end that could be seen: what runs behind its backward pass may
belong to others. There an optimizer is certain to be a part of it, and above the limit an error; whatever else is a warning,
once. In a scope that its user says all that runs is a part of it. The first scopes run with the plans of least peak, while
:mod:`~stowplan.backends.torch.timeline` records what lives beside the graphs. Then :mod:`~stowplan.backends.torch.fitting`
plans graphs anew within what is left. A plan changes only between scopes, and never within a backward pass: what is
checkpointed must run again as it ran.

torch.compile restores the set of dispatch keys when a compiled function returns, not the stack of modes: a mode that enters an
empty stack inside sleeps afterwards. So the mode that counts enters when the memory is made, outside of what is compiled, and
stays there, below the modes of others.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from stowplan.backends.fallback import MemoryLimitError, warn
from stowplan.backends.torch import private
from stowplan.backends.torch.fitting import NO_LIMIT, Fitting
from stowplan.backends.torch.measure import Allocator, Storages
from stowplan.backends.torch.partition import Partitioner
from stowplan.backends.torch.report import SPARE, State, StepsReport, naming_out_of_memory, refusal
from stowplan.backends.torch.timeline import Phase
from stowplan.backends.torch.uses import Moment, Part, Running, Stage, Use, Variant, storage_keys
from stowplan.errors import UsageError

#: For how many sizes a graph is planned; those that come later have the plan of least peak, for symbols.
MOST_SIZES = 8

_ALL: weakref.WeakSet[Scopes] = weakref.WeakSet()


class Scopes:
    """The steps of one memory.

    Parameters
    ----------
    margin
        Bytes of the limit that plans leave free; None for what is measured.
    check_every
        Once all graphs are planned, operators are counted in each scope whose number is a multiple.
    hard
        Whether the process may allocate no more on CUDA.
    """

    def __init__(self, planner: Partitioner, margin: int | None = None, check_every: int = 1, hard: bool = False):
        self.planner, self.settings = planner, planner.settings
        self.fitting = Fitting(planner, self.settings.limit + self.settings.outside, margin)
        self.check_every, self.hard = check_every, hard
        self.state = State.IDLE
        self.is_said = self.is_warned = False
        """Whether the scope that is open was said by the user; whether a limit was passed, of which is warned once."""
        self.report = StepsReport(limit=self.limit)
        self.uses: list[Use] = []
        self.trained: dict[int, Any] = {}
        """Weak references to parameters, and the versions that they had, by identity."""
        self.phase: Running | None = None
        self.moments: list[Moment] = []
        self.is_stepping = False
        """Whether an optimizer steps right now."""
        self.unsure = 0
        """The most bytes since torch.compile began to compile what no graph came of yet."""
        self.task = private.NO_TASK
        """The last backward pass in which one of the graphs ran."""
        self.is_given: Callable[[], bool] = lambda: True
        """Whether torch.compile was given the memory."""
        self.meter: Storages | Allocator = Storages()
        self.meter.owner = weakref.ref(self)
        self.meter.on_more = private.weakly(self.check)
        self.meter.finds = False  # What runs before the first step may belong to others.
        _ALL.add(self)
        private.put_below(self.meter, _is_over)
        forget = private.on_compilation(private.weakly(self.compilation_began))
        weakref.finalize(self, forget)

    # ------------------------------------------------------------------------------------------------ scopes

    @contextlib.contextmanager
    def said(self) -> Iterator[None]:
        """A scope that its user says."""
        if self.is_said:
            raise UsageError("found a step inside of a step of the same memory, expected one after the other")
        self._close()
        self.is_said = True
        try:
            with self._counted(), naming_out_of_memory(self):
                self._open(State.EVALUATION)
                yield
                self._close()
        finally:
            self.is_said, self.state, self.phase = False, State.IDLE, None

    def _counted(self) -> Any:
        """A context in which operators of this thread are counted."""
        is_there = not isinstance(self.meter, Storages) or self.meter in private.dispatch_modes()
        return contextlib.nullcontext() if is_there else self.meter

    @property
    def limit(self) -> int:
        """Bytes of a step."""
        return self.fitting.limit

    @property
    def is_counting(self) -> bool:
        """Whether what is live counts in this scope."""
        return not isinstance(self.meter, Storages) or self.meter.is_counting

    def _open(self, state: State) -> None:
        self._close()
        self.state, self.moments = state, []
        self.report.count += 1
        self.task = private.NO_TASK
        if isinstance(self.meter, Storages):
            is_settled = all(part.stage is Stage.DECIDED for part in self.fitting.parts)
            self.meter.is_counting = not is_settled or self.report.count % self.check_every == 0
        self.report.checked += self.is_counting
        self.meter.found_before(0)
        self.fitting.begin(self.meter.live)
        self._begin_phase()

    def _close(self) -> None:
        """The scope that is open, if one is, ends: what was measured in it is known from now on."""
        if self.state in (State.IDLE, State.UNCOMPILED):
            return
        self._end_phase()
        state, self.state, is_news = self.state, State.IDLE, False
        if self.is_counting:
            # What is met where it is not certain to be a part of the step does not count.
            found = max((moment.found for moment in self.moments if moment.is_certain), default=0)
            before = self.meter.found_before(found)
            self.fitting.base += before
            for moment in self.moments:
                # What an operator met later had been there.
                late = max(0, found - moment.found)
                is_news |= self.fitting.learn(moment.phase, moment.rest + late - before)
                if moment.is_certain:
                    self._check_bytes(moment.most + late, is_certain=True)
            self.report.outside = self.fitting.base
        if state in (State.BACKWARD, State.UPDATING):
            self.fitting.quiet = 0 if is_news else self.fitting.quiet + 1
        for key, (ref, version) in self.trained.items():
            now = getattr(ref(), "_version", version)
            self.fitting.is_updated |= now != version
            self.trained[key] = ref, now

    def _called(self, arguments: tuple[Any, ...]) -> None:
        """A graph is called: another scope may begin with it."""
        trained = [each for each in arguments if isinstance(each, torch.nn.Parameter) and each.requires_grad]
        new = (each for each in trained if id(each) not in self.trained or self.trained[id(each)][0]() is None)
        self.trained |= {id(each): (weakref.ref(each), each._version) for each in new}
        self._choose_meter(arguments)
        for tensor in arguments:
            self.meter.find(tensor, self.settings.counted.parameters)
        for tensor in (*trained, *(before := private.parameters_behind(arguments))):
            self.meter.find(tensor.grad)
        for tensor in before:
            self.meter.find(tensor, self.settings.counted.parameters)
        has_gradients = torch.is_grad_enabled()
        if not self.is_said and not private.is_in_backward():
            is_over = self.state in (State.BACKWARD, State.UPDATING) and not any(use.waits for use in self.uses)
            if self.state is State.IDLE or is_over or (self.state is State.EVALUATION and has_gradients):
                for other in [*_ALL]:
                    if other is not self:
                        other.yield_to(self)
                self._open(State.FORWARD if has_gradients else State.EVALUATION)
        if self.state is State.EVALUATION and has_gradients:
            self.state = State.FORWARD

    def yield_to(self, other: Scopes) -> None:
        """Another memory opens a scope: that of this one ends if its step is over, or if its model was compiled again."""
        is_over = self.state is not State.FORWARD and not any(use.waits for use in self.uses)
        if not self.is_said and (is_over or self.trained.keys() & other.trained.keys()):
            self.state, self.phase = State.IDLE, None

    def _choose_meter(self, arguments: tuple[Any, ...]) -> None:
        device = next((each.device for each in arguments if isinstance(each, torch.Tensor) and each.is_cuda), None)
        if device is not None and isinstance(self.meter, Storages):
            self.meter.is_counting = False
            self.meter = Allocator(device)
            self.report.by = "allocator"
            if self.hard:
                self.meter.cap(self.limit)

    def compilation_began(self) -> None:
        """torch.compile compiles something; perhaps nothing comes of it."""
        if self.state is State.IDLE and not self.fitting.parts and self.is_given():
            self.state, self.unsure = State.UNCOMPILED, 0
            self.meter.finds = True

    # ------------------------------------------------------------------------------------------------ phases

    def _begin_phase(self, variant: Variant | None = None, use: Use | None = None, is_backward: bool = False) -> None:
        self._end_phase()
        self.uses = [each for each in self.uses if each.waits]
        if self.state is not State.IDLE:
            self.meter.reset()
            waiting = [each for each in self.uses if each is not use]
            self.phase = Running(variant, use, is_backward, self.meter.live, waiting)
            # Tensors of others that are used where it is not certain to be a part of the step do not count.
            self.meter.finds = self._is_certain()

    def _end_phase(self) -> None:
        if self.phase is None:
            return
        self.check()
        if self.phase is None:
            return
        variant, use, is_backward, first, waiting = self.phase
        if use is not None and is_backward and not use.is_over:
            # The pass keeps it for another.
            waiting = [*waiting, use]
        counts = Counter(each.variant.part.key for each in waiting)
        planned = variant.planned if variant else None
        phase = Phase(variant.part.key if variant and planned else None, is_backward, tuple(counts.items()))
        peak = most = self._peak()
        if planned is not None:
            begun, taken = planned.inputs, planned.taken.forward
            if is_backward:
                # What a plan is said to keep may be more than what it does.
                begun, taken = planned.constant + (use.own if use else planned.own), planned.taken.backward
            most = max(first - begun, peak - taken)
        kept = sum(each.own for each in waiting if each.variant.planned)
        gone = sum(each.gone for each in {*waiting, use} if each is not None)
        is_certain = self.is_said or phase.depends_on_plans or self.state is not State.BACKWARD
        self.moments.append(Moment(phase, most - kept - self.fitting.base + gone, peak, self.meter.found, is_certain))
        self.phase = None

    def run_pass(self, variant: Variant, is_backward: bool, function: Any, arguments: list[Any]) -> Any:
        """Run a pass of a graph."""
        use: Use | None
        if is_backward:
            keys = storage_keys(arguments)
            of_graph = [each for each in reversed(self.uses) if each.variant.part is variant.part and not each.is_over]
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
            made = function(arguments)
        if use is not None and not is_backward:
            use.ran(made)
            self._end_phase()
            self.uses.append(use)
        elif use is not None and not private.keeps_graph():
            use.end()
        self._begin_phase()
        return made

    def _backward_ended(self) -> None:
        self.task = private.NO_TASK
        self._begin_phase()

    # ------------------------------------------------------------------------------------------------ graphs

    def watched(self, compile_graph: Callable[[Any, Variant], Any], inputs: Any, code: Any) -> Callable[..., Any]:
        """A compiled graph whose steps are within the limit.

        Parameters
        ----------
        compile_graph
            Makes it, for inputs, and for the variant that its passes are of.
        code
            What it was compiled from: the same for several graphs that share repeats.

        Raises
        ------
        MemoryLimitError
            When it is called, or in its backward pass: a step went above the limit, and that is an error.
        """
        for scopes in [*_ALL]:
            if scopes.state is State.UNCOMPILED:
                scopes.state = State.IDLE
        key = object()
        whole = self.fitting.add(compile_graph, (key, ()), code, inputs)
        parts: dict[tuple[int, ...], Part] = {(): whole}

        def run(*arguments: Any) -> Any:
            if self._repeats_more(code):
                return whole.least.function(*arguments)
            self._called(arguments)
            part, sizes = whole, tuple(size for size in arguments if type(size) is int)
            if torch.is_grad_enabled() and whole.least.planned:
                if sizes not in parts and len(parts) <= MOST_SIZES:
                    parts[sizes] = self.fitting.add(compile_graph, (key, sizes), code, arguments, instead=whole)
                part = parts.get(sizes, whole)
                # A use that a loop keeps from an earlier step, by retain_graph, say, has its own plan until it goes.
                self.fitting.prepare(part, arguments, [use for use in self.uses if use.step == self.report.count])
            with self._counted() as entered:
                if entered is not None:
                    text = "a graph runs in another thread than the one that made its memory"
                    self._warn_once(f"{text}: graphs alone count there, and steps that are said there")
                results = part.current.function(*arguments)
            self._returned(results)
            return results

        return run

    def _returned(self, results: Any) -> None:
        """A call of a graph has returned: hooks have taken what they take."""
        if self.phase is not None:
            self.phase = self.phase._replace(waiting=[use for use in self.phase.waiting if use.waits])
        use = self.uses[-1] if self.uses else None
        if use is not None and use.waits and not use.saved.keys and (node := private.compiled_node(results)) is not None:
            weakref.finalize(node, use.end)

    def measure_least(self, step: Callable[[], Any], count: int) -> int:
        """The smallest limit that a step runs within, by running it with plans of least peak, and no limit."""
        limit, report = self.limit, self.report
        self._close()
        self.report = StepsReport(limit=limit)
        self.fitting.forget(NO_LIMIT, Stage.STALE)
        try:
            for _ in range(count):
                with self.said():
                    step()
            return math.ceil(self.report.largest * SPARE)
        finally:
            self.report = report
            self.fitting.forget(limit, Stage.MEASURED)

    # ------------------------------------------------------------------------------------------------ limits

    def _repeats_more(self, code: Any) -> bool:
        """Whether code is used more often than was said, where that is a warning; it is said once."""
        most = self.settings.repeats
        if most is None or not torch.is_grad_enabled() or private.is_in_backward():
            return False
        uses = 1 + sum(use.waits for use in self.uses if use.variant.part.code == code)
        if uses > most and not self.is_warned:
            self._refuse(f"a graph runs {uses} times before its backward pass, expected {most}: say repeats={uses}", 0)
        return uses > most

    def _peak(self) -> int:
        parameters = [] if self.settings.counted.gradients else [ref() for ref, _ in self.trained.values()]
        return self.meter.peak - sum(int(each.nbytes) for each in parameters if each is not None)

    def check(self) -> None:
        """Raise the error, or warn once, where this step is above a limit."""
        if self.state is State.IDLE or not self.is_counting:
            return
        host, host_peak = self.settings.host, self.meter.host_peak
        if host is not None and host_peak > host.limit and not self.is_warned:
            text = (
                f"a step took {host_peak} bytes on the host, and its limit is {host.limit}: say how many share it, outside=0, "
            )
            text += f"graphs={len(self.planner.planned())} or repeats={max(1, len(self.uses))}"
            self._refuse(text, host_peak)
        peak, is_certain = self._peak(), self._is_certain()
        if self.state is State.UNCOMPILED:
            # That it was a step is known once a backward pass makes something, which need not be above what was before.
            self.unsure = peak = max(peak, self.unsure)
            self.meter.reset()
        self._check_bytes(peak, is_certain)

    def _is_certain(self) -> bool:
        """Whether what runs now is known to be a part of a step."""
        task = private.backward_task()
        if self.state is State.UNCOMPILED:
            if task != private.NO_TASK:
                self._warn_once("torch.compile made no graph of the model: it runs as eager, and its steps are only checked")
            return self.is_stepping or task != private.NO_TASK
        if self.is_said or self.state is not State.BACKWARD or task == self.task != private.NO_TASK:
            return True
        return self.phase is not None and (self.phase.variant is not None or bool(self.phase.waiting))

    def is_in_use(self) -> bool:
        """Whether any parameter of the graphs exists; else what runs belongs to others."""
        return self.is_said or not self.trained or any(ref() is not None for ref, _ in self.trained.values())

    def _check_bytes(self, peak: int, is_certain: bool) -> None:
        self.report.largest = max(self.report.largest, peak if is_certain else 0)
        if peak <= self.limit or not self.is_in_use() or self.is_warned:
            return
        if is_certain:
            self._refuse(refusal(self, peak), peak)
        elif self.state is not State.UNCOMPILED:
            text = f"{peak} bytes were live behind a backward pass, and the limit is {self.limit}"
            self._warn_once(f"{text}: only inside of memory.step() is that known to be a part of a step", of="behind")

    def _refuse(self, text: str, peak: int) -> None:
        if self.settings.strict:
            self.state, self.phase = State.IDLE, None
            raise MemoryLimitError(text, self.limit, peak, 0)
        self.is_warned = True
        warn(text)

    def _warn_once(self, text: str, of: str = "") -> None:
        if not any((of or text) in said for said in self.report.warnings):
            self.report.warnings.append(text)
            warn(text)


def _is_over(mode: Any) -> bool:
    """Whether a mode is one that counts for steps that nobody has any more, or whose parameters are gone."""
    scopes = mode.owner() if isinstance(mode, Storages) and mode.owner is not None else mode
    return scopes is None or (isinstance(scopes, Scopes) and not scopes.is_in_use())


def _before_optimizer(*_: Any) -> None:
    for scopes in [*_ALL]:
        scopes.is_stepping = True
        if scopes.state is State.BACKWARD:
            scopes._begin_phase()
            scopes.state = State.UPDATING


def _after_optimizer(*_: Any) -> None:
    for scopes in [*_ALL]:
        scopes.is_stepping = False
        if scopes.state is State.UPDATING:
            scopes._begin_phase()
            scopes.state = State.BACKWARD


register_optimizer_step_pre_hook(_before_optimizer)
register_optimizer_step_post_hook(_after_optimizer)
