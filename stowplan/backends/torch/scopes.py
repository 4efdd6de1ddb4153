"""Training steps as scopes: what is live in each is counted, and graphs are planned within what the steps leave.

A scope is said by its user (``with memory.step():``), or opens by itself: at the first call of a compiled graph, and at the next
call that comes after a backward pass. Scopes that open by themselves leave no gap, so that whatever runs counts. The first
scopes run with the plans of least peak, while :mod:`~stowplan.backends.torch.timeline` records what lives beside the graphs.
Once a scope brought nothing new, graphs are planned anew within what is left. A plan changes only between scopes, and never
within a backward pass: what is checkpointed must run again as it ran.

torch.compile restores the set of dispatch keys when a compiled function returns, not the stack of modes: a mode that enters an
empty stack inside sleeps afterwards. So the mode that counts enters when the memory is made, outside of what is compiled, and
stays there, below the modes of others.
"""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from enum import Enum
from typing import Any, NamedTuple

import torch

from stowplan.backends.fallback import MemoryLimitError, warn
from stowplan.backends.torch import private
from stowplan.backends.torch.measure import Allocator, Storages
from stowplan.backends.torch.partition import Partitioner, Task
from stowplan.backends.torch.preserved import preserved
from stowplan.backends.torch.report import SPARE, StepsReport, refusal
from stowplan.backends.torch.timeline import Phase, Planned, Timeline
from stowplan.backends.torch.uses import Part, Stage, Use, Variant, storage_keys
from stowplan.errors import UsageError

#: For how many sizes a graph is planned; those that come later have the plan of least peak, for symbols.
MOST_SIZES = 8

#: A margin that is not said: this part of the limit at least and at most, and the growth of so many steps as the last.
LEAST_MARGIN, MOST_MARGIN, GROWTH_STEPS = 0.01, 0.05, 10

#: Scopes that bring nothing new before graphs are planned anew, where parameters were updated, and where they never were.
QUIET, QUIET_WITHOUT_UPDATE = 1, 2

#: A phase is news if its rest grew by more than this part of the limit.
NEWS = 0.002

#: The limit while the smallest is measured.
NO_LIMIT = 1 << 62

_ALL: weakref.WeakSet[Scopes] = weakref.WeakSet()


class State(Enum):
    """Where a step is."""

    IDLE = "no scope is open"
    UNCOMPILED = "torch.compile began to compile something, and no graph came of it yet"
    EVALUATION = "a scope is open, and no graph was called with gradients"
    FORWARD = "a graph was called with gradients, and no backward pass ran since"
    BACKWARD = "a backward pass of a graph began"


class Running(NamedTuple):
    """A phase that is not over."""

    variant: Variant | None
    """The graph that runs; None where none does."""
    use: Use | None
    is_backward: bool
    first: int
    """Bytes live when it began."""
    waiting: list[Use]


class Moment(NamedTuple):
    """A phase that is over."""

    phase: Phase
    rest: int
    most: int
    """Bytes live at most."""
    found: int
    """Bytes found up to then."""


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

    states = State

    def __init__(self, planner: Partitioner, margin: int | None = None, check_every: int = 1, hard: bool = False):
        self.planner, self.settings = planner, planner.settings
        self.limit = self.settings.limit + self.settings.outside
        self.margin, self.check_every, self.hard = margin, check_every, hard
        self.state = State.IDLE
        self.is_said = self.is_warned = False
        """Whether the scope that is open was said by the user; whether a limit was passed, of which is warned once."""
        self.report = StepsReport(limit=self.limit)
        self.timeline = Timeline()
        self.parts: list[Part] = []
        self.uses: list[Use] = []
        self.trained: dict[int, Any] = {}
        """Weak references to parameters, and the versions that they had, by identity."""
        self.base = self.drift = self.quiet = 0
        """Bytes live when the scope began, growth since the one before, and how many scopes brought nothing new."""
        self.is_updated = False
        """Whether parameters were ever changed."""
        self.phase: Running | None = None
        self.moments: list[Moment] = []
        self.thread = threading.get_ident()
        self.meter: Storages | Allocator = Storages()
        self.meter.owner = itself = weakref.ref(self)
        self.meter.on_more = lambda: (scopes := itself()) and scopes.check()
        _ALL.add(self)
        private.put_below(self.meter, lambda mode: isinstance(mode, Storages) and mode.owner is not None and mode.owner() is None)
        forget = private.on_compilation(lambda: (scopes := itself()) and scopes.compilation_began())
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
            with self._counted(), self._named_out_of_memory():
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
    def is_counting(self) -> bool:
        """Whether what is live counts in this scope."""
        return not isinstance(self.meter, Storages) or self.meter.is_counting

    def _open(self, state: State) -> None:
        self._close()
        self.state, self.moments = state, []
        self.report.count += 1
        if isinstance(self.meter, Storages):
            is_settled = all(part.stage is Stage.DECIDED for part in self.parts)
            self.meter.is_counting = not is_settled or self.report.count % self.check_every == 0
        self.meter.found_before()
        self.drift, self.base = max(0, self.meter.live - self.base), self.meter.live
        self._decide()
        self._begin_phase()

    def _close(self) -> None:
        """The scope that is open, if one is, ends: what was measured in it is known from now on."""
        if self.state in (State.IDLE, State.UNCOMPILED):
            return
        self._end_phase()
        state, self.state, found, is_news = self.state, State.IDLE, self.meter.found, False
        if self.is_counting:
            before = self.meter.found_before()
            self.base += before
            for moment in self.moments:
                # What an operator met later had been there.
                late = found - moment.found
                grown = self.timeline.record(moment.phase, moment.rest + late - before)
                is_news |= moment.phase.depends_on_plans and grown > NEWS * self.limit
                self._check_bytes(moment.most + late)
            self.report.checked += 1
            self.report.outside = self.base
        if state is State.BACKWARD:
            self.quiet = 0 if is_news else self.quiet + 1
        for key, (ref, version) in self.trained.items():
            now = getattr(ref(), "_version", version)
            self.is_updated |= now != version
            self.trained[key] = ref, now

    def _called(self, arguments: tuple[Any, ...]) -> None:
        """A graph is called: another scope may begin with it."""
        trained = [each for each in arguments if isinstance(each, torch.nn.Parameter) and each.requires_grad]
        for each in trained:
            self.trained.setdefault(id(each), (weakref.ref(each), each._version))
        self._choose_meter(arguments)
        for tensor in arguments:
            self.meter.find(tensor, self.settings.counted.parameters)
        for tensor in trained:
            self.meter.find(tensor.grad)
        has_gradients = torch.is_grad_enabled()
        if not self.is_said and not private.is_in_backward():
            is_over = self.state is State.BACKWARD and not any(use.waits for use in self.uses)
            if self.state is State.IDLE or is_over or (self.state is State.EVALUATION and has_gradients):
                # A model that is compiled again has the memory of the later one.
                for other in [*_ALL]:
                    if other is not self and not other.is_said and other.trained.keys() & self.trained.keys():
                        other.state, other.phase = State.IDLE, None
                self._open(State.FORWARD if has_gradients else State.EVALUATION)
        if self.state is State.EVALUATION and has_gradients:
            self.state = State.FORWARD

    def _choose_meter(self, arguments: tuple[Any, ...]) -> None:
        if not isinstance(self.meter, Storages):
            return
        device = next((each.device for each in arguments if isinstance(each, torch.Tensor) and each.is_cuda), None)
        if device is not None:
            self.meter.is_counting = False
            self.meter = Allocator(device)
            self.report.by = "allocator"
            if self.hard:
                self.meter.cap(self.limit)

    def compilation_began(self) -> None:
        """torch.compile compiles something; perhaps nothing comes of it."""
        if self.state is State.IDLE and not self.parts:
            self.state = State.UNCOMPILED

    # ------------------------------------------------------------------------------------------------ phases

    def _begin_phase(self, variant: Variant | None = None, use: Use | None = None, is_backward: bool = False) -> None:
        self._end_phase()
        self.uses = [each for each in self.uses if each.waits]
        if self.state is not State.IDLE:
            self.meter.reset()
            waiting = [each for each in self.uses if each is not use]
            self.phase = Running(variant, use, is_backward, self.meter.live, waiting)

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
        self.moments.append(Moment(phase, most - kept - self.base + gone, peak, self.meter.found))
        self.phase = None

    def run_pass(self, variant: Variant, is_backward: bool, function: Any, arguments: list[Any]) -> Any:
        """Run a pass of a graph."""
        use: Use | None
        if is_backward:
            keys = storage_keys(arguments)
            of_graph = [each for each in reversed(self.uses) if each.variant.part is variant.part and not each.is_over]
            use = next((each for each in of_graph if each.keys & keys), of_graph[0] if of_graph else None)
            if self.state is not State.IDLE:
                self.state = State.BACKWARD
        else:
            use = Use(variant, arguments)
        self._begin_phase(variant, use, is_backward)
        with self._named_out_of_memory():
            made = function(arguments)
        if use is not None and not is_backward:
            use.ran(made)
            self._end_phase()
            self.uses.append(use)
        elif use is not None and not private.keeps_graph():
            use.end()
        self._begin_phase()
        return made

    @contextlib.contextmanager
    def _named_out_of_memory(self) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError as error:
            text = f"the device has no memory left with {self.meter.live} bytes live, and the limit is {self.limit}"
            line = str(error).partition("\n")[0]
            raise MemoryLimitError(f"{text} ({line})", self.limit, self.meter.peak, 0) from error

    # ------------------------------------------------------------------------------------------------ plans

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
        key = object()
        whole = self._part(compile_graph, (key, ()), code, inputs)
        parts: dict[tuple[int, ...], Part] = {(): whole}

        def run(*arguments: Any) -> Any:
            if self._repeats_more(code):
                return whole.least.function(*arguments)
            self._called(arguments)
            part, sizes = whole, tuple(size for size in arguments if type(size) is int)
            if self.settings.is_measured and torch.is_grad_enabled() and whole.least.planned:
                if sizes not in parts and len(parts) <= MOST_SIZES:
                    parts[sizes] = self._part(compile_graph, (key, sizes), code, arguments)
                part = parts.get(sizes, whole)
                if not private.is_in_backward() and not any(use.variant.part is part and use.waits for use in self.uses):
                    self._plan(part, arguments)
            with self._counted() as entered:
                if entered is not None:
                    # The mode is in the thread that made the memory.
                    self._warn_once("a graph runs in another thread than the one that made its memory: graphs alone count there")
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

    def _part(self, compile_graph: Callable[[Any, Variant], Any], key: Any, code: Any, inputs: Any) -> Part:
        part = Part(compile_graph, key, code)
        self.parts.append(part)
        if self.state is State.UNCOMPILED:
            self.state, self.phase = State.IDLE, None
        self._seek_least(part, inputs)
        return part

    def _seek_least(self, part: Part, inputs: Any) -> None:
        enough = 0 if self.limit == NO_LIMIT else self.limit // 4
        part.least = self._compiled(part, inputs, Task(part.key, enough=enough) if self.settings.is_measured else None)
        part.stage = Stage.MEASURED if part.least.planned else Stage.DECIDED

    def _compiled(self, part: Part, inputs: Any, task: Task | None) -> Variant:
        variant, was = Variant(part), self.is_counting
        if isinstance(self.meter, Storages):
            self.meter.is_counting = False
        self.planner.task = task
        try:
            # Modes of others would count what is traced.
            with private.without_modes(), preserved():
                variant.function = part.compile_graph(inputs, variant)
        finally:
            self.planner.task = None
            if isinstance(self.meter, Storages):
                self.meter.is_counting = was
        variant.results = self.planner.results
        if task is not None:
            variant.planned, variant.cost = task.planned, task.cost
        return variant

    def _plans(self) -> dict[Hashable, Planned]:
        plans = {part.key: part.current.planned for part in self.parts}
        return {key: plan for key, plan in plans.items() if plan is not None}

    def _decide(self) -> None:
        """At the beginning of a scope: which graphs are planned anew, and which return to the plans of least peak."""
        if self.timeline.peak(self.base, self._plans()) > self.limit and any(part.fitted for part in self.parts):
            # What lives outside has grown.
            for part in self.parts:
                part.fitted, part.stage = None, Stage.MEASURED if part.least.planned else Stage.DECIDED
        if self.limit < NO_LIMIT and self.quiet >= (QUIET if self.is_updated else QUIET_WITHOUT_UPDATE):
            known = self.timeline.graphs()
            for part in self.parts:
                if part.stage is Stage.MEASURED and part.key in known:
                    part.stage = Stage.DUE

    def _plan(self, part: Part, inputs: Any) -> None:
        """Plan a graph that is due within what the steps leave; the plan that runs stays where that fails, or gains nothing."""
        if part.stage is Stage.STALE:
            self._seek_least(part, inputs)
        if part.stage is not Stage.DUE:
            return
        part.stage = Stage.DECIDED
        others = {other.key for other in self.parts if other.stage is Stage.DUE}
        plans, limit = self._plans(), self.limit - self.free
        left = self.timeline.left(part.key, limit, self.base, plans, others)
        try:
            variant = self._compiled(part, inputs, Task(part.key, left, self.timeline.uses(part.key)))
        except MemoryLimitError:
            return
        if variant.planned is not None and variant.cost < part.least.cost:
            peaks = [self.timeline.peak(self.base, each) for each in (plans, plans | {part.key: variant.planned})]
            part.fitted = variant if peaks[1] <= max(limit, peaks[0]) else None

    @property
    def free(self) -> int:
        """Bytes of the limit that plans leave free."""
        if self.margin is not None:
            return self.margin
        measured = max(LEAST_MARGIN * self.limit, GROWTH_STEPS * self.drift)
        return math.ceil(min(MOST_MARGIN * self.limit, measured))

    def least(self) -> int | None:
        """The smallest limit that the steps so far would have run within; None before one has ended."""
        plans = {part.key: part.least.planned for part in self.parts if part.least.planned is not None}
        fixed = max((rest for phase, rest in self.timeline.rests.items() if not phase.depends_on_plans), default=0)
        most = max(self.timeline.peak(self.base, plans), self.base + fixed)
        return math.ceil(most * SPARE) if self.timeline.rests else None

    def measure_least(self, step: Callable[[], Any], count: int) -> int:
        """The smallest limit that a step runs within, by running it with plans of least peak, and no limit."""
        limit, report = self.limit, self.report
        self._close()
        self.limit, self.report, self.timeline = NO_LIMIT, StepsReport(limit=limit), Timeline()
        for part in self.parts:
            part.fitted, part.stage = None, Stage.STALE
        try:
            for _ in range(count):
                with self.said():
                    step()
            return math.ceil(self.report.largest * SPARE)
        finally:
            self.limit, self.report, self.quiet, self.is_updated = limit, report, 0, False
            for part in self.parts:
                part.stage = Stage.MEASURED if part.least.planned else Stage.DECIDED

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
        return self.meter.peak - sum(each.nbytes for each in parameters if each is not None)

    def check(self) -> None:
        """Raise the error, or warn once, where this step is above a limit."""
        if self.state is State.IDLE or not self.is_counting:
            return
        host, host_peak = self.settings.host, self.meter.host_peak
        if host is not None and host_peak > host.limit and not self.is_warned:
            text = f"a step took {host_peak} bytes on the host, and its limit is {host.limit}: "
            repeats = max(1, len(self.uses))
            self._refuse(f"{text}say how many share it, outside=0, graphs={len(self.planner.planned())} or repeats={repeats}", host_peak)
        self._check_bytes(self._peak())

    def _check_bytes(self, peak: int) -> None:
        if self.state is State.UNCOMPILED and private.is_in_backward():
            self._warn_once("torch.compile made no graph of the model: it runs as eager, and its steps are only checked")
        self.report.largest = max(self.report.largest, peak)
        # Without any of its parameters what runs belongs to others.
        is_in_use = self.is_said or not self.trained or any(ref() is not None for ref, _ in self.trained.values())
        if peak > self.limit and is_in_use and not self.is_warned:
            self._refuse(refusal(self, peak), peak)

    def _refuse(self, text: str, peak: int) -> None:
        if self.settings.strict:
            self.state, self.phase = State.IDLE, None
            raise MemoryLimitError(text, self.limit, peak, 0)
        self.is_warned = True
        warn(text)

    def _warn_once(self, text: str) -> None:
        if text not in self.report.warnings:
            self.report.warnings.append(text)
            warn(text)
