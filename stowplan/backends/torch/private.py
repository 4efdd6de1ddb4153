"""Private names of torch; all other modules of this back end import them from here, so that a new version breaks one file.

There are two exceptions: ``halves`` calls a private function of torch's partitioner, and ``scopes`` reads the versions of
tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch._functorch import config as functorch_config
from torch._functorch import partitioners as partitioners
from torch._functorch._activation_checkpointing.knapsack import dp_knapsack as dp_knapsack
from torch._functorch.compile_utils import fx_graph_cse as fx_graph_cse
from torch._guards import CompileContext
from torch._inductor.custom_graph_pass import CustomKnapsackSolver as CustomKnapsackSolver
from torch._inductor.custom_graph_pass import CustomPartitionerFn as CustomPartitionerFn
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch.utils import _python_dispatch as modes
from torch.utils._mode_utils import no_dispatch as no_dispatch
from torch.utils._ordered_set import OrderedSet as OrderedSet
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map

config: Any = functorch_config

DispatchMode: Any = modes.TorchDispatchMode

_C: Any = torch._C

#: Value of :func:`backward_task` if no backward pass runs.
NO_TASK = -1


def weakly(method: Callable[[], None]) -> Callable[[], None]:
    """A function that calls a method as long as the method's object exists; it does not keep the object alive."""
    reference = weakref.WeakMethod(method)

    def call() -> None:
        bound = reference()
        if bound is not None:
            bound()

    return call


def storage_key(storage: Any) -> int:
    """A key that is unique among the storages that exist at the same time."""
    return int(storage._cdata)


def code_key() -> int | None:
    """A key of the code that ``torch.compile`` is compiling now; None if it is not known."""
    return getattr(CompileContext.current_compile_id(), "frame_id", None)


def backward_task() -> int:
    """The identifier of the backward pass that the autograd engine runs in this thread; NO_TASK if none runs."""
    return int(_C._current_graph_task_id())


def is_in_backward() -> bool:
    """Whether the autograd engine is running a backward pass in this thread."""
    return backward_task() != NO_TASK


def is_passed_to_compile(backend: Any) -> bool:
    """Whether ``torch.compile`` was called with this back end."""
    from torch._dynamo.eval_frame import cached_backends

    return any(getattr(each, "compiler_fn", each) is backend for each in [*cached_backends.values()])


def at_end_of_backward(function: Callable[[], None]) -> None:
    """Call a function when the backward pass that is running has ended."""
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(function)


def keeps_graph() -> bool:
    """Whether the backward pass that is running keeps the saved values (``retain_graph``)."""
    return bool(_C._autograd._get_current_graph_task_keep_graph())


def has_saved_tensor_hooks() -> bool:
    """Whether hooks on saved tensors are active, such as those of checkpointing."""
    return _C._autograd._top_saved_tensors_default_hooks(True) is not None


def is_selectively_checkpointed() -> bool:
    """Whether a dispatch mode of selective checkpointing is active, which keeps the results of some operators."""
    from torch.utils import checkpoint

    kinds = checkpoint._CachingTorchDispatchMode, checkpoint._CachedTorchDispatchMode
    return any(isinstance(mode, kinds) for mode in dispatch_modes())


def compiled_node(results: Any) -> Any:
    """The autograd node of the compiled graph that returned these results; None if no result needs gradients.

    If a result is a view of an output of the graph, its own autograd node is that of the view, and the node of the compiled
    graph is among the ``next_functions`` of that node.
    """
    every: list[Any] = [tensor.grad_fn for tensor in tree_leaves(results) if isinstance(tensor, torch.Tensor)]
    nodes = [node for node in every if node is not None]
    operands = [other for node in nodes for other, _ in node.next_functions if other is not None]
    return next((node for node in (*nodes, *operands) if "CompiledFunction" in node.name()), None)


def parameters_behind(tensors: Any) -> list[Any]:
    """Parameters from which operators outside of compiled graphs computed these tensors."""
    parameters, seen = [], set()
    nodes = [tensor.grad_fn for tensor in tensors if isinstance(tensor, torch.Tensor)]
    while nodes:
        node: Any = nodes.pop()
        if node is None or node in seen or "CompiledFunction" in node.name():
            continue
        seen.add(node)
        parameters += [node.variable] if hasattr(node, "variable") else []
        nodes += [other for other, _ in node.next_functions]
    return parameters


def dispatch_modes() -> list[Any]:
    """The stack of dispatch modes of this thread; the last one sees operators first."""
    return list(modes._get_current_dispatch_mode_stack())


def without_modes() -> Any:
    """A context manager in which no dispatch mode sees operators."""
    return modes._disable_current_modes()


def put_below(mode: Any, is_over: Callable[[Any], bool]) -> None:
    """Push a dispatch mode below all others of this thread, so that none of them removes it when it exits.

    Parameters
    ----------
    mode
        The mode to push.
    is_over
        A function that says whether a mode is no longer needed; such modes are removed.
    """
    above = []
    while dispatch_modes():
        above.append(modes._pop_mode())
    for each in (mode, *reversed(above)):
        if each is not None and not is_over(each):
            modes._push_mode(each)


def compile_passes(module: Any, inputs: Any, partition: Any, wrap: Callable[[Any, bool], Any]) -> Any:
    """Compile a graph with AOTAutograd into a function whose passes run operator by operator.

    Parameters
    ----------
    module, inputs
        The graph and its example inputs, as ``torch.compile`` passes them to a back end.
    partition
        The partitioner, which cuts the joint graph in two.
    wrap
        Called for each pass with the function that runs it, and with a flag that is true for the backward pass. It returns the
        function that runs in its place. Both functions take one argument: the list of the pass's inputs.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import boxed_nop

    def compiler(is_backward: bool) -> Any:
        def compile_pass(graph: Any, example_inputs: Any) -> Any:
            run = wrap(boxed_nop(graph, example_inputs), is_backward)
            run._boxed_call = True
            return run

        return compile_pass

    make = aot_autograd(
        fw_compiler=compiler(False),
        bw_compiler=compiler(True),
        inference_compiler=boxed_nop,
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )
    return make(module, inputs)


def compile_with_inductor(module: Any, inputs: Any, partition: Any, **options: Any) -> Any:
    """Compile a graph with Inductor and the given partitioner."""
    from torch._inductor.compile_fx import compile_fx

    with inductor_config().patch(custom_partitioner_fn=partition):
        return compile_fx(module, inputs, **options)


def inductor_config() -> Any:
    """The module with Inductor's settings."""
    from torch._inductor import config as settings

    return settings


def inductor_memory() -> Any:
    """Inductor's module that orders nodes for a low peak."""
    from torch._inductor import memory

    return memory


def inductor_graph() -> Any:
    """The graph that Inductor is lowering."""
    from torch._inductor.virtualized import V

    return V.graph


def on_compilation(function: Callable[[], Any]) -> Callable[[], None]:
    """Call a function whenever ``torch.compile`` begins to compile something, for any back end.

    Returns
    -------
    Callable
        A function that ends these calls.
    """
    from torch._dynamo.callback import callback_handler

    def on_start(_: Any) -> None:
        function()

    callback_handler.register_start_callback(on_start)

    def end() -> None:
        # A reset of ``torch.compile`` may have removed the callback already.
        if on_start in callback_handler.start_callbacks:
            callback_handler.remove_start_callback(on_start)

    return end
