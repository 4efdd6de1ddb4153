"""What whole steps take: graphs, and what lives beside them, such as a loss outside, gradients, and the state of an optimizer.

Unless it is said what lives beside them, the first steps run with plans that save little, so that it is measured; graphs are
planned anew, within what is left, once a step had nothing new in it. A graph for other sizes begins anew.

A dispatch mode counts storages, as :func:`measure_peak` does, from the making of the back end on: in the first calls of each
graph, with and without gradients that are there, of each larger size, and of each optimizer of its parameters, once more after
its state is there. Later calls run without it, and take as much. All counts that an operator of this thread uses meanwhile.

torch.compile restores the set of dispatch keys when a compiled function returns, not the stack of modes: a mode that enters an
empty stack inside sleeps afterwards, and one that leaves it empty breaks torch. So it enters and leaves outside alone, where an
optimizer says that a step is over; of a later kind of step the graph is counted first, and the whole from the next one on.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch.optim import optimizer as optimizers
from torch.utils import _python_dispatch as modes
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from stowplan.backends.fallback import MemoryLimitError, warn
from stowplan.backends.torch.measure import Storages, made_of
from stowplan.backends.torch.partition import Partitioner, Task
from stowplan.backends.torch.timeline import Phase, Planned, Timeline

#: For how many sizes a graph is planned; those that come later have the plan of the first steps, for symbols.
MOST_SIZES = 8

#: How many calls of a kind are counted: of two steps at least, since an optimizer makes its state at the end of the first.
COUNTED = 8

_ALL: weakref.WeakSet[Steps] = weakref.WeakSet()
#: Of a parameter the steps that were last begun with it: a model may be compiled again for another limit.
_OWNERS: Any = WeakTensorKeyDictionary()


class _Part:
    """A graph for some sizes: as it runs in the first steps, and as it was planned anew."""

    def __init__(self, compile_graph: Callable[[Any], Any], key: Any, code: Any):
        self.compile_graph, self.key, self.code = compile_graph, key, code
        self.first: Any = None
        self.first_plan: Planned | None = None
        """None where there is no plan: it does not train, say."""
        self.later: Any = None
        self.later_plan: Planned | None = None
        self.cost = 0
        """That the plan of the first steps adds."""
        self.is_open = False
        """Whether it is to be planned anew when it is called."""


class _Use:
    """A use of a graph whose backward pass is to come: it ends with that, or when nobody needs it any more."""

    def __init__(self, waiting: Counter[Any], part: _Part, plan: Planned | None):
        self.waiting, self.part, self.plan, self.is_over = waiting, part, plan, False
        waiting[part, plan] += 1

    def end(self, *_: Any) -> None:
        """The backward pass begins."""
        if not self.is_over:
            self.waiting[self.part, self.plan] -= 1
        self.is_over = True

    __del__ = end


class Steps:
    """The steps of what one back end compiles."""

    def __init__(self, planner: Partitioner):
        self.planner, self.settings = planner, planner.settings
        self.storages = Storages(counts_all=True)
        self.storages.on_more = self._check_evaluation
        self.is_evaluation = False
        """Whether a graph was last called without gradients, and no backward pass is to come."""
        self.seen: Counter[Any] = Counter()
        """How often a kind of call was counted."""
        self.most: dict[Any, tuple[int, ...]] = {}
        """Largest sizes of a graph."""
        self.trained: dict[int, int] = {}
        """Bytes of parameters, by identity."""
        self.waiting: Counter[tuple[_Part, Planned | None]] = Counter()
        """How many uses of a graph, with a plan, wait for their backward pass."""
        self.repeats = 1
        """How many uses of one graph were there at once, at most."""
        self.states: dict[int, tuple[int, int]] = {}
        """How many parameters an optimizer had a state of when it last began, and bytes that were live."""
        self.parts: list[_Part] = []
        self.timeline = Timeline(self.settings.limit)
        self.phase: tuple[_Part | None, Planned | None, bool, int] | None = None
        """The graph that runs, its plan, whether that is its backward pass, and bytes live when it began; None if not known."""
        self.is_new_kind = self.is_to_plan = False
        """Whether something new is to be measured; whether graphs are to be planned anew."""
        self.is_warned = self.storages.is_counting = self.is_begun = False
        self.is_wanted = True
        """Whether the mode is to be there: while kinds of calls are new."""
        _ALL.add(self)
        _restack({steps for steps in _ALL if not steps.trained})

    def watched(self, compile_graph: Callable[[Any], Any], inputs: Any, code: Any) -> Callable[..., Any]:
        """A compiled graph whose steps are within the limit.

        Parameters
        ----------
        compile_graph
            Makes it, for inputs.
        code
            What it was compiled from: the same for several graphs that share repeats.

        Raises
        ------
        MemoryLimitError
            When it is called, or in its backward pass: a step went above the limit, and that is an error.
        """
        graph = object()
        whole = self._part(compile_graph, (graph, ()), code, inputs)
        parts: dict[tuple[int, ...], _Part] = {(): whole}

        def run(*args: Any) -> Any:
            if self.is_warned or self._repeats_more(code):
                return whole.first(*args)
            self.is_evaluation = not torch.is_grad_enabled() and not any(self.waiting.values())
            parameter = next(
                (tensor for tensor in args if isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad), None
            )
            has_gradients = parameter is not None and parameter.grad is not None
            sizes = tuple(size for size in args if type(size) is int)
            most = self.most[graph] = tuple(map(max, sizes, self.most.get(graph, sizes)))
            part = whole
            if self.settings.is_measured:
                self._begin_step()
                if torch.is_grad_enabled() and sizes not in parts and len(parts) <= MOST_SIZES and whole.first_plan:
                    parts[sizes] = self._part(compile_graph, (graph, sizes), code, args)
                part = parts.get(sizes, whole)
            kind = (graph, has_gradients, torch.is_grad_enabled(), sizes, self._uses(part))
            is_counted = part is not whole or sizes == most
            self.is_begun, self.is_wanted = True, is_counted and self.is_new(kind, args)
            compiled, plan = self._current(part, args)
            if not self.is_wanted:
                self.storages.is_counting, self.phase = False, None
                return self._used(compiled(*args), part, plan)
            is_there = self.storages in modes._get_current_dispatch_mode_stack()
            self._switch(part, plan)
            with contextlib.nullcontext() if is_there else self.storages:
                results = compiled(*args)
            self._switch()
            return self._used(results, part, plan)

        return run

    def _part(self, compile_graph: Callable[[Any], Any], key: Any, code: Any, inputs: Any) -> _Part:
        part = _Part(compile_graph, key, code)
        if not self.settings.is_measured:
            part.first = compile_graph(inputs)
            return part
        part.first, task = self._compiled(part, inputs, Task(key))
        part.first_plan, part.cost = task.planned, task.cost
        self.parts.append(part)
        return part

    def _compiled(self, part: _Part, inputs: Any, task: Task) -> tuple[Any, Task]:
        counting = self.storages.is_counting
        self.storages.is_counting, self.planner.task = False, task
        try:
            # Modes of others would count what is traced.
            with modes._disable_current_modes():
                return part.compile_graph(inputs), task
        finally:
            self.storages.is_counting, self.planner.task = counting, None

    def _uses(self, part: _Part) -> int:
        return sum(count for (other, _), count in self.waiting.items() if other is part)

    def _used(self, results: Any, part: _Part, plan: Planned | None) -> Any:
        """Results of a graph, with which its use ends."""
        made = (tensor.grad_fn for tensor in tree_leaves(results) if isinstance(tensor, torch.Tensor))
        node = next((node for node in made if node is not None), None)
        if node is None:
            return results
        # A result that is a view was made of one of the graph's.
        behind = (other for other, _ in node.next_functions if other is not None and "CompiledFunction" in other.name())
        node = node if "CompiledFunction" in node.name() else next(behind, node)
        use = _Use(self.waiting, part, plan)
        # It is there as long as the node is.

        def begin(_: Any) -> None:
            self._begin_backward(use)

        node.register_prehook(begin)
        node.register_hook(lambda *_: self._switch())
        return results

    def _repeats_more(self, code: Any) -> bool:
        """Whether code is used more often than was said, where that is a warning; it is said once."""
        most = self.settings.repeats
        uses = 1 + sum(count for (part, _), count in self.waiting.items() if part.code == code)
        self.repeats = max(self.repeats, uses)
        if most is None or not torch.is_grad_enabled() or uses <= most:
            return False
        text = f"a graph runs {uses} times before its backward pass, expected {most}: say repeats={uses}"
        self._refuse(text, 0)
        return True

    # ------------------------------------------------------------------------------------------------ plans made anew

    def _begin_step(self) -> None:
        """A graph is called: where none waits, another step begins."""
        if any(self.waiting.values()) or not torch.is_grad_enabled():
            return
        is_measured, self.is_new_kind = not self.is_new_kind, False
        if self.is_to_plan and (is_measured or self.timeline.peak(self._plans()) > self.timeline.limit):
            self.is_to_plan = False
            known = {phase.active for phase in self.timeline.beside if phase.is_backward}
            able = [part for part in self.parts if part.first_plan is not None and part.key in known]
            if any(part.later is None for part in able) or self.timeline.peak(self._plans()) > self.timeline.limit:
                for part in able:
                    part.is_open, part.later, part.later_plan = True, None, None

    def _plans(self) -> dict[Hashable, Planned]:
        plans = {part.key: part.later_plan or part.first_plan for part in self.parts}
        return {key: plan for key, plan in plans.items() if plan is not None}

    def _current(self, part: _Part, inputs: Any) -> tuple[Any, Planned | None]:
        """The graph as it is to run now, and its plan."""
        if self.is_new_kind or not torch.is_grad_enabled():
            return part.first, part.first_plan
        if part.is_open:
            part.is_open = False
            others = {other.key for other in self.parts if other.is_open}
            left = self.timeline.left(part.key, self._plans(), others)
            is_above = self.timeline.peak(self._plans()) > self.timeline.limit
            try:
                compiled, task = self._compiled(part, inputs, Task(part.key, left, self.timeline.uses(part.key)))
            except MemoryLimitError:
                # The plan of the first steps is within the limit, or nothing is.
                if is_above:
                    raise
                compiled, task = part.first, Task(part.key, left)
            if task.planned is not None and (is_above or task.cost < part.cost):
                part.later, part.later_plan = compiled, task.planned
                # That it is within the limit is counted.
                self.seen = Counter(dict.fromkeys(self.seen, 0))
        return (part.first, part.first_plan) if part.later is None else (part.later, part.later_plan)

    def _switch(self, part: _Part | None = None, plan: Planned | None = None, is_backward: bool = False) -> None:
        """A phase of a step ends and another begins."""
        if self.storages.is_counting:
            self._record()
            self.check()
            self.storages.peak = self.storages.live
            self.phase = part, plan, is_backward, self.storages.live

    def _record(self) -> None:
        if self.phase is None or not self.settings.is_measured:
            return
        part, plan, is_backward, first = self.phase
        taken = sum(count * kept.own for (_, kept), count in self.waiting.items() if kept is not None)
        waiting: Counter[Hashable] = Counter()
        for (other, _), count in self.waiting.items():
            waiting[other.key] += count
        active = part.key if part is not None and plan is not None else None
        phase = Phase(active, is_backward, tuple((key, count) for key, count in waiting.items() if count))
        most = self._peak()
        first -= self.storages.peak - most
        self.timeline.record(phase, (most if plan is None else plan.beside(is_backward, first, most)) - taken)

    # ------------------------------------------------------------------------------------------------ what is counted

    def is_new(self, kind: Any, tensors: Any, is_graph: bool = True) -> bool:
        """Whether a call of this kind is counted once more; then counting begins, with tensors that are there."""
        if kind not in self.seen:
            # What is new lives beside all others: they are counted again.
            self.seen = Counter(dict.fromkeys(self.seen, 0))
            if is_graph:
                self.is_new_kind = self.is_to_plan = True
        self.seen[kind] += 1
        if self.seen[kind] > COUNTED:
            return False
        if not self.storages.is_counting:
            self.storages.is_counting, self.storages.peak, self.phase = True, self.storages.live, None
        tensors = [*tensors, *made_of(tensors)] if is_graph else tensors
        trained = [tensor for tensor in tensors if isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad]
        self.trained |= {id(tensor): tensor.nbytes for tensor in trained}
        for tensor in trained:
            _OWNERS[tensor] = self
        for tensor in (*tensors, *(tensor.grad for tensor in trained)):
            self.storages.find(tensor, self.settings.counted.parameters)
        return True

    def _peak(self) -> int:
        return self.storages.peak - sum(self.trained.values()) * (not self.settings.counted.gradients)

    def _check_evaluation(self) -> None:
        # Nothing comes behind it that would tell: no backward pass, no optimizer, perhaps no other step.
        if self.is_evaluation:
            self.check()

    def check(self, is_graph: bool = True) -> None:
        """Raise the error, or warn once, where a step went above the limit.

        Parameters
        ----------
        is_graph
            Whether graphs ran since the last check; else an optimizer.
        """
        limit, peak = self.settings.limit + self.settings.outside, self._peak()
        if not self.storages.is_counting:
            return
        host, host_peak = self.settings.host, self.storages.host_peak
        if host is not None and host_peak > host.limit:
            text = f"a step took {host_peak} bytes on the host, and its limit is {host.limit}: "
            text += f"say how many share it, outside=0, graphs={len(self.planner.planned())} or repeats={self.repeats}"
            self._refuse(text, host_peak)
            return
        if peak <= limit:
            return
        text = f"a step took {peak} bytes, and the limit is {limit}: "
        planned, saved = (sum(getattr(report, name) for report in self.planner.planned()) for name in ("peak", "saved"))
        if self.is_evaluation:
            text += "no plan lowers that of a step without gradients: take a smaller batch, or say a larger memory"
        elif is_graph and planned and self.settings.is_measured:
            text += f"with plans that save little; say memory={peak}, take a smaller batch, or compute the loss in the model"
            text += f", or say repeats={self.repeats}, outside=0" if self.repeats > 1 else ""
        elif is_graph and planned:
            text += f"graphs are planned to take {planned}, and are beside a loss with {saved}: "
            text += f"say outside={peak - planned}, at most {peak - saved}, or compute the loss in the model"
        else:
            text += "no plan lowers that of an optimizer (foreach=False may), or of a graph without a plan"
        self._refuse(text, peak)

    def _refuse(self, text: str, peak: int) -> None:
        self.storages.is_counting, self.phase = False, None
        if self.settings.strict:
            raise MemoryLimitError(text, self.settings.limit + self.settings.outside, peak, 0)
        self.is_warned = True
        warn(text)

    def _begin_backward(self, use: _Use) -> None:
        self.is_evaluation = False
        if not self.is_wanted:
            self.storages.is_counting, self.phase = False, None
        elif not self.storages.is_counting:
            self.storages.is_counting, self.phase = True, None
        # It waits to the end of the phase that is over.
        self._switch()
        use.end()
        self.phase = None
        self._switch(use.part, use.plan, is_backward=True)
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(self._end_backward)

    def _end_backward(self) -> None:
        self._switch()
        # What runs between the steps, of other models say, does not count.
        self.storages.is_counting, self.phase = False, None


def _restack(waiting: set[Steps]) -> None:
    """Have the modes that count below all others, where none that leaves takes them along, and no others of this module.

    Parameters
    ----------
    waiting
        Steps that are counted though none has begun.
    """
    frame = inspect.currentframe()
    while frame and frame.f_code.co_name != "compile_wrapper":
        frame = frame.f_back
    stack: list[Any] = []
    while not frame and modes._get_current_dispatch_mode_stack():
        stack.insert(0, modes._pop_mode())
    counting = [steps.storages for steps in {*_OWNERS.values()} | waiting if steps.is_wanted and not steps.is_warned]
    for mode in () if frame else (*counting, *(mode for mode in stack if not getattr(mode, "counts_all", False))):
        modes._push_mode(mode)


def _of(optimizer: Any) -> tuple[list[Any], list[Steps]]:
    """Parameters of an optimizer, and the steps that it belongs to."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    owners = {_OWNERS.get(parameter) for parameter in parameters}
    return parameters, [steps for steps in owners if steps and steps.is_begun and not steps.is_warned]


def _before_optimizer(optimizer: Any, *_: Any) -> None:
    parameters, owners = _of(optimizer)
    for steps in owners:
        steps.is_evaluation = False
        # A state that is there was there while the graphs ran.
        kind = (id(optimizer), len(optimizer.state))
        steps.is_wanted |= steps.is_new(kind, [*parameters, *tree_leaves([*optimizer.state.values()])], is_graph=False)
        steps.states[id(optimizer)] = len(optimizer.state), steps.storages.live
        steps.check()


def _after_optimizer(optimizer: Any, *_: Any) -> None:
    for steps in _of(optimizer)[1]:
        steps.check(is_graph=False)
        count, live = steps.states[id(optimizer)]
        if len(optimizer.state) != count:
            # The state is beside the graphs from now on.
            steps.timeline.add(max(0, steps.storages.live - live))
            steps.is_new_kind = steps.is_to_plan = True
        steps.is_begun = steps.storages.is_counting = False
        steps.phase = None
    _restack(set())


optimizers.register_optimizer_step_pre_hook(_before_optimizer)
optimizers.register_optimizer_step_post_hook(_after_optimizer)
