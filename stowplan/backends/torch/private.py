"""Names that torch keeps private; the other modules of this back end import them from here.

Two reach into what these name: ``halves`` calls a function of the partitioner, and ``scopes`` reads versions of tensors.
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

#: No backward pass runs.
NO_TASK = -1


def weakly(method: Callable[[], None]) -> Callable[[], None]:
    """A function that calls a method as long as somebody has its object."""
    reference = weakref.WeakMethod(method)

    def call() -> None:
        bound = reference()
        if bound is not None:
            bound()

    return call


def storage_key(storage: Any) -> int:
    """What tells a storage from all others that exist at the same time."""
    return int(storage._cdata)


def code_key() -> int | None:
    """What tells the code apart that is compiled right now; None where that is not known."""
    return getattr(CompileContext.current_compile_id(), "frame_id", None)


def backward_task() -> int:
    """The backward pass that the autograd engine runs in this thread right now; NO_TASK for none."""
    return int(_C._current_graph_task_id())


def is_in_backward() -> bool:
    """Whether the autograd engine runs a backward pass in this thread right now."""
    return backward_task() != NO_TASK


def is_given_to_compile(backend: Any) -> bool:
    """Whether torch.compile was called with a back end."""
    from torch._dynamo.eval_frame import cached_backends

    return any(getattr(each, "compiler_fn", each) is backend for each in [*cached_backends.values()])


def at_end_of_backward(function: Callable[[], None]) -> None:
    """Have a function called when the backward pass that runs now has ended."""
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(function)


def keeps_graph() -> bool:
    """Whether the backward pass that runs now was asked to keep what the forward pass saved."""
    return bool(_C._autograd._get_current_graph_task_keep_graph())


def has_saved_tensor_hooks() -> bool:
    """Whether hooks (checkpointing, say) take what a forward pass saves right now."""
    return _C._autograd._top_saved_tensors_default_hooks(True) is not None


def is_selectively_checkpointed() -> bool:
    """Whether a mode of torch.utils.checkpoint keeps results of some operators right now, or hands them out again."""
    from torch.utils import checkpoint

    kinds = checkpoint._CachingTorchDispatchMode, checkpoint._CachedTorchDispatchMode
    return any(isinstance(mode, kinds) for mode in dispatch_modes())


def compiled_node(results: Any) -> Any:
    """The autograd node of a compiled graph that made results; None where nothing needs gradients.

    A result that is a view was made of one of the graph's, one node further.
    """
    every: list[Any] = [tensor.grad_fn for tensor in tree_leaves(results) if isinstance(tensor, torch.Tensor)]
    nodes = [node for node in every if node is not None]
    behind = [other for node in nodes for other, _ in node.next_functions if other is not None]
    return next((node for node in (*nodes, *behind) if "CompiledFunction" in node.name()), None)


def parameters_behind(tensors: Any) -> list[Any]:
    """Parameters that tensors were made of by operators outside of compiled graphs."""
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
    """The dispatch modes of this thread, the outermost last."""
    return list(modes._get_current_dispatch_mode_stack())


def without_modes() -> Any:
    """A context in which no dispatch mode sees operators."""
    return modes._disable_current_modes()


def put_below(mode: Any, is_over: Callable[[Any], bool]) -> None:
    """Enter a mode below all others of this thread, so that none of those takes it along when it leaves.

    Parameters
    ----------
    is_over
        Says of which modes nobody has use any more: they leave.
    """
    above = []
    while dispatch_modes():
        above.append(modes._pop_mode())
    for each in (mode, *reversed(above)):
        if each is not None and not is_over(each):
            modes._push_mode(each)


def compile_passes(module: Any, inputs: Any, partition: Any, wrap: Callable[[Any, bool], Any]) -> Any:
    """Have AOTAutograd make a function of a graph, whose passes run operator by operator.

    Parameters
    ----------
    partition
        Cuts the joint graph in two.
    wrap
        Is given the function of a pass and whether that is the backward one, and returns what is to run in its place; both
        take a list of arguments.
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
    """Have Inductor compile a graph whose passes a partitioner of ours makes."""
    from torch._inductor.compile_fx import compile_fx

    with inductor_config().patch(custom_partitioner_fn=partition):
        return compile_fx(module, inputs, **options)


def inductor_config() -> Any:
    """Inductor's settings."""
    from torch._inductor import config as settings

    return settings


def inductor_memory() -> Any:
    """Inductor's module that orders nodes for a small peak."""
    from torch._inductor import memory

    return memory


def inductor_graph() -> Any:
    """The graph that Inductor lowers right now."""
    from torch._inductor.virtualized import V

    return V.graph


def on_compilation(function: Callable[[], Any]) -> Callable[[], None]:
    """Have a function called when torch.compile begins to compile something, for any back end; returns what ends that."""
    from torch._dynamo.callback import callback_handler

    def began(_: Any) -> None:
        function()

    callback_handler.register_start_callback(began)

    def end() -> None:
        # Whoever resets torch.compile has forgotten it already.
        if began in callback_handler.start_callbacks:
            callback_handler.remove_start_callback(began)

    return end
