"""What users call: a back end for ``torch.compile``, a context for their own settings, and the partitioner alone.

Importing it loads no torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stowplan.arguments import flag, number, show, size, whole
from stowplan.backends.fallback import UnsupportedError, require, warn
from stowplan.backends.torch.devices import device
from stowplan.errors import UsageError
from stowplan.kernel.context import Options

if TYPE_CHECKING:
    from stowplan.backends.torch.offload import HostMemory
    from stowplan.backends.torch.partition import Partitioner


#: What is asked of :func:`~stowplan.backends.fallback.require`.
NEEDED = ("planning for torch", ("torch",), "learned")

#: Part of the time limit in which operators are measured, at most.
PROFILE_SHARE = 0.3


def partitioner(
    memory: int | str,
    *,
    parameters: bool = True,
    gradients: bool = True,
    outside: int | str | None = None,
    time_limit: float = 20.0,
    strict: bool = True,
    graphs: int | None = None,
    repeats: int | None = None,
    costs: str | Path = "flops",
    host: int | str | None = None,
    host_bandwidth: float | str | None = None,
    workers: int = 2,
    seed: int = 0,
) -> Partitioner:
    """A partitioner for AOTAutograd: what is saved, what runs again and in which order, within a memory limit.

    It is a ``partition_fn``, and a value of ``torch._inductor.config.custom_partitioner_fn``.

    Parameters
    ----------
    memory
        Limit on the bytes of tensors that are live at once in a forward and backward pass, or text such as ``"4 GiB"``.
    parameters
        Whether inputs of the graph count: parameters, buffers, and what the model is called with.
    gradients
        Whether the gradients that the backward pass returns count.
    outside
        Bytes of the limit that are left for what lives beside the graphs: a loss outside of the model, say.
    time_limit
        Seconds of planning for each graph.
    strict
        Whether a limit that is not met is an error; else a warning, and torch's own plan, or, where that may have other
        gradients than eager, one that recomputes nothing.
    graphs
        How many graphs share the limit: graph breaks make several. What the graphs before have left is divided evenly among the
        next one and those still to come, so that all together stay within the limit.
    repeats
        How often a graph runs before its backward pass: layers that are compiled one by one share a graph. The limit is one of
        what all of them keep and what one takes at work.
    costs
        What is added least of: ``flops``; or time, by ``profile``, which runs each kind of operator that may run again a few
        times, or by peak rates of a device: ``h100``, ``a100``, ``rtx-4090``, or the path of a TOML file such as theirs.
    host
        Limit on the bytes that may be sent to the host's memory; None or 0 for none. Costs are times then.
    host_bandwidth
        Bytes per second to the host, and back, or text such as ``"25 GB/s"``.
    workers, seed
        As :func:`stowplan.solve` takes them.

    Raises
    ------
    MissingDependencyError
        Without torch.
    UsageError, InputError
        An argument of a wrong type or out of range; a device that is not known, or its file.
    """
    require(*NEEDED)
    options = Options(time_limit=time_limit, workers=workers, seed=seed)
    where = _host(host, host_bandwidth, costs)
    is_measured = outside is None and graphs is None and repeats is None
    limit, graphs = size("a memory limit of {}", memory, 1), whole("{} graphs", 1 if graphs is None else graphs, 1)
    if repeats is not None:
        repeats = whole("{} repeats", repeats, 1)
    beside = size("an outside of {}", 0 if outside is None else outside, 0)
    if beside >= limit:
        raise UsageError(f"found an outside of {beside} bytes, expected less than the memory limit of {limit}")
    from stowplan.backends.torch.costs import costs as flops
    from stowplan.backends.torch.partition import Partitioner
    from stowplan.backends.torch.planning import Settings
    from stowplan.backends.torch.reader import Counted
    from stowplan.backends.torch.seconds import Measured, Rates

    prices: Any = flops
    if costs == "profile":
        prices = Measured(PROFILE_SHARE * options.time_limit)
    elif costs != "flops":
        if not isinstance(costs, str | Path):
            raise UsageError(f"found costs of {show(costs)}, expected flops, profile, or a device")
        prices = Rates(device(costs))
    return Partitioner(
        Settings(
            limit=limit - beside,
            outside=beside,
            counted=Counted(flag("parameters {}", parameters), flag("gradients {}", gradients)),
            time_limit=options.time_limit,
            strict=flag("strict {}", strict),
            graphs=graphs,
            repeats=repeats,
            is_measured=is_measured,
            workers=options.workers,
            seed=options.seed,
            prices=prices,
            is_timed=prices is not flops,
            host=where,
        )
    )


def _host(limit: int | str | None, bandwidth: float | str | None, costs: Any) -> HostMemory | None:
    """What the arguments say of the host; None where nothing may be sent there."""
    capacity = size("a host of {}", 0 if limit is None else limit, 0)
    if bandwidth is None:
        if capacity:
            raise UsageError(
                f"found a host of {capacity} bytes without its bandwidth, expected host_bandwidth, bytes per second"
            )
        return None
    what = "a host_bandwidth of {}"
    if isinstance(bandwidth, str):
        bandwidth = size(what, bandwidth.strip().removesuffix("/s"))
    rate = number(what, bandwidth, 0, or_least=False)
    if not capacity:
        return None
    if costs == "flops":
        raise UsageError("found a host with costs of flops, expected profile, or a device: copies take time")
    from stowplan.backends.torch.offload import HostMemory

    return HostMemory(capacity, rate)


def backend(memory: int | str, *, inductor: bool = False, **options: Any) -> Callable[..., Any]:
    """A back end for ``torch.compile`` that trains within a memory limit.

    Parameters
    ----------
    memory
        Limit, as :func:`partitioner` takes it.
    inductor
        Whether Inductor compiles both passes; else they run operator by operator, as ``aot_eager`` does. Inductor fuses
        operators and may order them anew: the limit then is one of the graphs that it is given.
    options
        As :func:`partitioner` takes them.

    Returns
    -------
    callable
        For ``torch.compile(model, backend=...)``; its ``reports`` say what came of each graph.

    Raises
    ------
    MissingDependencyError, UsageError
        As :func:`partitioner` raises them. Compiling raises MemoryLimitError where the limit cannot be met, and, without
        Inductor, so does a step that takes more, with what lives beside the graphs.
    """
    planner = partitioner(memory, **options)
    if inductor:
        _refuse_host(planner)
    from stowplan.backends.torch.partition import code_key
    from stowplan.backends.torch.steps import Steps

    # Kernels of Inductor make tensors unseen.
    steps = None if inductor else Steps(planner)

    def compile_halves(graph_module: Any, example_inputs: Any, **others: Any) -> Any:
        from torch._dynamo.backends.common import aot_autograd
        from torch._dynamo.backends.debugging import boxed_nop
        from torch._inductor import config
        from torch._inductor.compile_fx import compile_fx

        if inductor:
            with config.patch(custom_partitioner_fn=planner):
                return compile_fx(graph_module, example_inputs, **others)
        compiler = aot_autograd(fw_compiler=boxed_nop, partition_fn=planner, keep_inference_input_mutations=True)
        return compiler(graph_module, example_inputs, **others)

    def compile_graph(graph_module: Any, example_inputs: Any, **others: Any) -> Any:
        def compiled(inputs: Any) -> Any:
            try:
                return compile_halves(graph_module, inputs, **others)
            except UnsupportedError as error:
                warn(f"{error}: the graph runs as eager")
                return graph_module.forward

        return compiled(example_inputs) if steps is None else steps.watched(compiled, example_inputs, code_key())

    # What torch says of errors begins with this name.
    compile_graph.__name__ = "stowplan"
    compile_graph.reports = planner.reports  # type: ignore[attr-defined]
    return compile_graph


def _refuse_host(planner: Partitioner) -> None:
    if planner.settings.host is not None:
        raise UsageError("found a host with Inductor, expected passes that run operator by operator: it orders copies anew")


@contextlib.contextmanager
def memory_limit(memory: int | str, **options: Any) -> Iterator[Partitioner]:
    """Inductor plans what is compiled inside within a memory limit; its own settings stay.

    Parameters
    ----------
    memory, options
        As :func:`partitioner` takes them. A compiled model is compiled when it is first called: call it inside.

    Yields
    ------
    Partitioner
        With ``reports``.
    """
    planner = partitioner(memory, **options)
    _refuse_host(planner)
    from torch._inductor import config

    with config.patch(custom_partitioner_fn=planner):
        yield planner
