"""What whole steps take: graphs, and what lives beside them, such as a loss outside, gradients, and the state of an optimizer.

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
import itertools
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import optimizer as optimizers
from torch.utils import _python_dispatch as modes
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from stowplan.backends.fallback import MemoryLimitError, warn
from stowplan.backends.torch.measure import Storages
from stowplan.backends.torch.partition import Partitioner

#: How many calls of a kind are counted: of two steps at least, since an optimizer makes its state at the end of the first.
COUNTED = 8

_ALL: weakref.WeakSet[Steps] = weakref.WeakSet()
#: Of a parameter the steps that were last begun with it: a model may be compiled again for another limit.
_OWNERS: Any = WeakTensorKeyDictionary()


class _Use:
    """A use of a graph whose backward pass is to come: it ends with that, or when nobody needs it any more."""

    def __init__(self, alive: Counter[Any], key: Any):
        self.alive, self.key, self.is_over = alive, key, False
        alive[key] += 1

    def end(self, *_: Any) -> None:
        """The backward pass begins."""
        if not self.is_over:
            self.alive[self.key] -= 1
        self.is_over = True

    __del__ = end


class Steps:
    """The steps of what one back end compiles."""

    def __init__(self, planner: Partitioner):
        self.planner, self.settings = planner, planner.settings
        self.storages = Storages(counts_all=True)
        self.seen: Counter[Any] = Counter()
        """How often a kind of call was counted."""
        self.most: dict[Any, tuple[int, ...]] = {}
        """Largest sizes of a graph."""
        self.trained: dict[int, int] = {}
        """Bytes of parameters, by identity."""
        self.alive: Counter[Any] = Counter()
        """How many uses of some code wait for their backward pass."""
        self.is_warned = self.storages.is_counting = self.is_begun = False
        self.is_wanted = True
        """Whether the mode is to be there: while kinds of calls are new."""
        _ALL.add(self)
        _restack({steps for steps in _ALL if not steps.trained})

    def watched(self, compiled: Callable[..., Any], code: Any) -> Callable[..., Any]:
        """A compiled graph whose steps are within the limit.

        Parameters
        ----------
        code
            What it was compiled from: the same for several graphs that share repeats.

        Raises
        ------
        MemoryLimitError
            When it is called, or in its backward pass: a step went above the limit, and that is an error.
        """
        graph = object()

        def run(*args: Any) -> Any:
            if self.is_warned or self._repeats_more(code):
                return compiled(*args)
            parameter = next(
                (tensor for tensor in args if isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad), None
            )
            has_gradients = parameter is not None and parameter.grad is not None
            sizes = tuple(size for size in args if type(size) is int)
            most = self.most[graph] = tuple(map(max, sizes, self.most.get(graph, sizes)))
            kind = (graph, has_gradients, torch.is_grad_enabled(), sizes)
            self.is_begun, self.is_wanted = True, sizes == most and self.is_new(kind, args)
            if not self.is_wanted:
                self.storages.is_counting = False
                return self._used(compiled(*args), code)
            is_there = self.storages in modes._get_current_dispatch_mode_stack()
            with contextlib.nullcontext() if is_there else self.storages:
                results = compiled(*args)
            self.check()
            for result in tree_leaves(results):
                if isinstance(result, torch.Tensor) and result.grad_fn is not None:
                    result.grad_fn.register_prehook(self._begin_backward)
            return self._used(results, code)

        return run

    def _used(self, results: Any, code: Any) -> Any:
        """Results of a graph, with which its use ends."""
        if self.settings.repeats is not None:
            steps = (result.grad_fn for result in tree_leaves(results) if isinstance(result, torch.Tensor))
            for step in itertools.islice((step for step in steps if step is not None), 1):
                use = step.metadata["stowplan"] = _Use(self.alive, code)
                step.register_prehook(use.end)
        return results

    def _repeats_more(self, code: Any) -> bool:
        """Whether code is used more often than was said, where that is a warning; it is said once."""
        most = self.settings.repeats
        if most is None or not torch.is_grad_enabled() or self.alive[code] < most:
            return False
        limit, found = self.settings.limit + self.settings.outside, self.alive[code] + 1
        text = f"a graph runs {found} times before its backward pass, expected {most}: say repeats={found}"
        if self.settings.strict:
            raise MemoryLimitError(text, limit, 0, 0)
        self.storages.is_counting, self.is_warned = False, True
        warn(text)
        return True

    def is_new(self, kind: Any, tensors: Any) -> bool:
        """Whether a call of this kind is counted once more; then counting begins, with tensors that are there."""
        if kind not in self.seen:
            # What is new lives beside all others: they are counted again.
            self.seen = Counter(dict.fromkeys(self.seen, 0))
        self.seen[kind] += 1
        if self.seen[kind] > COUNTED:
            return False
        if not self.storages.is_counting:
            self.storages.is_counting, self.storages.peak = True, self.storages.live
        trained = [tensor for tensor in tensors if isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad]
        self.trained |= {id(tensor): tensor.nbytes for tensor in trained}
        for tensor in trained:
            _OWNERS[tensor] = self
        for tensor in (*tensors, *(tensor.grad for tensor in trained)):
            self.storages.find(tensor, self.settings.counted.parameters)
        return True

    def check(self, is_graph: bool = True) -> None:
        """Raise the error, or warn once, where a step went above the limit.

        Parameters
        ----------
        is_graph
            Whether graphs ran since the last check; else an optimizer.
        """
        counted, limit = self.settings.counted, self.settings.limit + self.settings.outside
        peak = self.storages.peak - sum(self.trained.values()) * (not counted.gradients)
        if not self.storages.is_counting or peak <= limit:
            return
        text = f"a step took {peak} bytes, and the limit is {limit}: "
        planned, saved = (sum(getattr(report, name) for report in self.planner.planned()) for name in ("peak", "saved"))
        if is_graph and planned:
            text += f"graphs are planned to take {planned}, and are beside a loss with {saved}: "
            text += f"say outside={peak - planned}, at most {peak - saved}, or compute the loss in the model"
        else:
            text += "no plan lowers that of an optimizer (foreach=False may), or of a graph without a plan"
        self.storages.is_counting = False
        if self.settings.strict:
            raise MemoryLimitError(text, limit, peak, 0)
        self.is_warned = True
        warn(text)

    def _begin_backward(self, _: Any) -> None:
        self.storages.is_counting = self.is_wanted
        self.check()
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(self._end_backward)

    def _end_backward(self) -> None:
        self.check()
        # What runs between the steps, of other models say, does not count.
        self.storages.is_counting = False


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
        # A state that is there was there while the graphs ran.
        kind = (id(optimizer), len(optimizer.state))
        steps.is_wanted |= steps.is_new(kind, [*parameters, *tree_leaves([*optimizer.state.values()])])
        steps.check()


def _after_optimizer(optimizer: Any, *_: Any) -> None:
    for steps in _of(optimizer)[1]:
        steps.check(is_graph=False)
        steps.is_begun = steps.storages.is_counting = False
    _restack(set())


optimizers.register_optimizer_step_pre_hook(_before_optimizer)
optimizers.register_optimizer_step_post_hook(_after_optimizer)
