"""The public functions: a back end for ``torch.compile``, a context manager for Inductor, and the partitioner alone.

A *step* is one iteration of a training loop. A *graph* is a part of a model that ``torch.compile`` compiles, with its backward
pass. A *plan* says which values a graph saves for its backward pass and which it computes again. Importing this module does not
import torch.
"""

from __future__ import annotations

import contextlib
import weakref
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
    from stowplan.backends.torch.planning import GraphReport
    from stowplan.backends.torch.report import TrainingReport
    from stowplan.backends.torch.scopes import Scopes


#: Arguments of :func:`~stowplan.backends.fallback.require`: the feature, the modules that it needs, and the extra.
NEEDED = ("planning for torch", ("torch",), "learned")

#: With ``costs="profile"``, operators are measured for at most this share of the time limit.
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
    """Returns a partitioner for AOTAutograd, the part of ``torch.compile`` that traces forward and backward passes.

    The partitioner cuts the joint graph of a forward and a backward pass in two. It decides which values the forward pass
    saves, which operators run a second time in the backward pass, and in which order operators run. The bytes of live tensors
    stay within a limit, and as little work as possible is added. Pass the partitioner as ``partition_fn`` to AOTAutograd, or
    set ``torch._inductor.config.custom_partitioner_fn`` to it.

    Parameters
    ----------
    memory
        Limit on the bytes of tensors that are live at once in a forward and backward pass, or text such as ``"4 GiB"``.
    parameters
        Whether inputs of the graph count: parameters, buffers, and the arguments of the model.
    gradients
        Whether the gradients that the backward pass returns count.
    outside
        Bytes of the limit, or text, that are reserved for tensors outside of the graphs, such as those of a loss that is
        computed outside of the model. None reserves none.
    time_limit
        Seconds of planning for each graph.
    strict
        Whether it is an error if the limit cannot be met. Otherwise a warning is issued, and torch's own plan is used, or, if
        that could change gradients, a plan that recomputes nothing.
    graphs
        How many graphs share the limit, None for 1; a model with graph breaks is compiled as several graphs. Each graph gets an
        equal share of the bytes that earlier graphs have left, so that all graphs together stay within the limit.
    repeats
        How often a graph runs before its backward pass, None for once. Layers that are compiled one by one share one graph,
        which runs once for each layer. The limit then holds for the bytes that all layers save, plus the peak of the layer that
        is running.
    costs
        How the cost of recomputation is computed; plans add as little of it as possible. ``flops`` counts floating-point
        operations. ``profile`` measures time: it runs each kind of operator that may be recomputed a few times.
        The name of a device (``h100``, ``a100``, ``rtx-4090``) or the path of a TOML file of the same form estimates time by
        the device's peak rates.
    host
        Limit on the bytes, or text, that may be in the host's memory at once; with None or 0 nothing is sent there. Costs must
        be times, so that ``flops`` is an error.
    host_bandwidth
        Bytes per second in each direction between device and host, or text such as ``"25 GB/s"``; required with ``host``.
    workers, seed
        See :func:`stowplan.solve`.

    Raises
    ------
    MissingDependencyError
        Torch is not installed.
    UsageError
        An argument has a wrong type or is out of range, ``outside`` is not less than ``memory``, or ``host`` is given without
        its bandwidth or with costs of ``flops``.
    InputError
        A device is unknown, or the file of a device is invalid.
    """
    require(*NEEDED)
    options = Options(time_limit=time_limit, workers=workers, seed=seed)
    host_memory = _host(host, host_bandwidth, costs)
    is_measured = outside is None and graphs is None and repeats is None
    limit, graphs = size("a memory limit of {}", memory, 1), whole("{} graphs", 1 if graphs is None else graphs, 1)
    if repeats is not None:
        repeats = whole("{} repeats", repeats, 1)
    outside_bytes = size("an outside of {}", 0 if outside is None else outside, 0)
    if outside_bytes >= limit:
        raise UsageError(f"found an outside of {outside_bytes} bytes, expected less than the memory limit of {limit}")
    from stowplan.backends.torch.costs import costs as flops
    from stowplan.backends.torch.partition import Partitioner
    from stowplan.backends.torch.planning import Settings
    from stowplan.backends.torch.reader import Counted
    from stowplan.backends.torch.seconds import MeasuredCosts, RateCosts

    cost_function: Any = flops
    if costs == "profile":
        cost_function = MeasuredCosts(PROFILE_SHARE * options.time_limit)
    elif costs != "flops":
        if not isinstance(costs, str | Path):
            raise UsageError(f"found costs of {show(costs)}, expected flops, profile, or a device")
        cost_function = RateCosts(device(costs))
    return Partitioner(
        Settings(
            limit=limit - outside_bytes,
            outside=outside_bytes,
            counted=Counted(flag("parameters {}", parameters), flag("gradients {}", gradients)),
            time_limit=options.time_limit,
            strict=flag("strict {}", strict),
            graphs=graphs,
            repeats=repeats,
            is_measured=is_measured,
            workers=options.workers,
            seed=options.seed,
            cost_function=cost_function,
            is_timed=cost_function is not flops,
            host=host_memory,
        )
    )


def _host(limit: int | str | None, bandwidth: float | str | None, costs: Any) -> HostMemory | None:
    """Checks the arguments about the host, and raises UsageError if they are not valid; None if nothing may be sent there."""
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


class TrainingMemory:
    """A memory limit for a training loop: a back end for ``torch.compile`` that plans graphs within it and checks each step.

    Pass an object of this class to ``torch.compile(model, backend=...)``, or call :meth:`compile`. All graphs that are compiled
    with one object share its limit. Mark the steps of your loop:

        memory = TrainingMemory("4 GiB")
        model = memory.compile(model)
        for batch in batches:
            with memory.step():
                train(model, optimizer, batch)

    Without ``memory.step()``, a step lasts from one call of a compiled graph to the first call after a backward pass.

    All tensors that operators of this thread allocate or use in a step count: parameters, gradients, the state of optimizers,
    losses, other models, evaluation. The first steps run with the plans that need the least memory, while the bytes of tensors
    outside of the graphs are measured. Then each graph is planned again within the bytes that are left, so that less is
    recomputed.

    Parameters
    ----------
    memory
        Limit on the bytes of tensors that are live at once in a step, or text such as ``"4 GiB"``.
    parameters
        Whether inputs of the graphs count: parameters, buffers, and the arguments of the model. Default: they do.
    gradients
        Whether the gradients that the backward pass returns count. Default: they do.
    outside
        Bytes of the limit, or text, that are reserved for tensors outside of the graphs. None, the default, measures them.
    time_limit
        Seconds of planning for each graph, 20 by default. Training pauses for planning in the first step, and in the step in
        which graphs are planned again.
    strict
        Whether a step above the limit raises an error, which is the default. Otherwise one warning is issued, and the loop goes
        on.
    graphs
        How many graphs share the limit. None, the default, measures it.
    repeats
        How often a graph runs before its backward pass. None, the default, measures it.
    costs
        How the cost of recomputation is computed; plans add as little of it as possible. ``"flops"``, the default, counts
        floating-point operations. ``"profile"`` measures time: it runs each kind of operator that may be recomputed a
        few times. The name of a device (``"h100"``, ``"a100"``, ``"rtx-4090"``) or the path of a TOML file of the same form
        estimates time by the device's peak rates.
    host
        Limit on the bytes, or text, that may be in the host's memory at once. With None, the default, or 0 nothing is sent
        there. Costs must be times, so that ``"flops"`` is an error.
    host_bandwidth
        Bytes per second in each direction between device and host, or text such as ``"25 GB/s"``; required with ``host``.
    inductor
        Whether Inductor compiles both passes. By default they run operator by operator, as with torch's back end ``aot_eager``.
        Inductor fuses operators and may change their order. The limit then holds for the graphs that Inductor receives, and
        steps are not checked.
    margin
        Bytes of the limit, or text, that plans leave free for tensors that the loop may keep later. None, the default, takes
        ten times the bytes that the loop was last measured to keep from one step to the next. It is then at least 1 % and at
        most 5 % of the limit.
    check_every
        Once all graphs are planned, operators are counted only in steps whose number is a multiple of this. The default is 1:
        every step. The peak of CUDA's allocator is read in all steps.
    hard
        Whether CUDA's allocator refuses to allocate more than the limit for this process. Off by default. Running out of memory
        then raises MemoryLimitError.
    workers, seed
        See :func:`stowplan.solve`; 2 and 0 by default.

    Raises
    ------
    MissingDependencyError
        Torch is not installed.
    UsageError
        The constructor raises it as :func:`partitioner` does, and also if ``hard`` is set without CUDA, or if ``host`` is given
        with ``inductor``.
    InputError
        A device is unknown, or the file of a device is invalid.
    """

    # Torch prints this name in its error messages.
    __name__ = "stowplan"

    def __init__(
        self,
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
        inductor: bool = False,
        margin: int | str | None = None,
        check_every: int = 1,
        hard: bool = False,
        workers: int = 2,
        seed: int = 0,
    ):
        self.planner = partitioner(
            memory,
            parameters=parameters,
            gradients=gradients,
            outside=outside,
            time_limit=time_limit,
            strict=strict,
            graphs=graphs,
            repeats=repeats,
            costs=costs,
            host=host,
            host_bandwidth=host_bandwidth,
            workers=workers,
            seed=seed,
        )
        margin_bytes = None if margin is None else size("a margin of {}", margin, 0)
        checked_interval = whole("check_every {}", check_every, 1)
        if flag("inductor {}", inductor):
            _refuse_host(self.planner)
        if flag("hard {}", hard) and not _has_cuda():
            raise UsageError("found hard without CUDA, expected a device whose allocator can be limited")
        from stowplan.backends.torch import private
        from stowplan.backends.torch.scopes import Scopes

        # A dispatch mode cannot see the tensors that Inductor's kernels allocate, so that steps cannot be checked.
        self._scopes = None if inductor else Scopes(self.planner, margin_bytes, checked_interval, hard)
        if self._scopes is not None:
            itself = weakref.ref(self)
            self._scopes.is_used_by_compile = lambda: private.is_passed_to_compile(itself())

    def __call__(self, graph_module: Any, example_inputs: Any, **options: Any) -> Any:
        """Compile a graph; ``torch.compile`` calls this.

        If the graph cannot be planned, it runs in eager mode, and a PlanningWarning is issued.

        Raises
        ------
        MemoryLimitError
            No plan within the limit was found, and the memory is strict.
        """
        from stowplan.backends.torch import private

        if self._scopes is None:
            return self._or_eager(graph_module, private.compile_with_inductor, example_inputs, self.planner, **options)
        scopes = self._scopes

        def compile_graph(inputs: Any, variant: Any) -> Any:
            def wrap(run: Any, is_backward: bool) -> Any:
                return lambda arguments: scopes.run_pass(variant, is_backward, run, arguments)

            return self._or_eager(graph_module, private.compile_passes, inputs, self.planner, wrap)

        return scopes.checked(compile_graph, example_inputs, private.code_key())

    def _or_eager(self, graph_module: Any, make: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Returns the compiled graph, or its eager form if it cannot be planned."""
        try:
            return make(graph_module, *arguments, **options)
        except UnsupportedError as error:
            warn(f"{error}: the graph runs as eager")
            return graph_module.forward

    def compile(self, model: Any, **options: Any) -> Any:
        """Returns ``torch.compile(model, backend=self, **options)``."""
        import torch

        return torch.compile(model, backend=self, **options)

    def step(self) -> contextlib.AbstractContextManager[None]:
        """A context manager for one training step: all operators that run inside count.

        The limit is checked at every operator, or, on CUDA, around every graph.

        Raises
        ------
        UsageError
            Graphs are compiled with Inductor; or, when the context is entered, it is inside of another step of this memory.
        MemoryLimitError
            Inside of the context or at its end, more bytes than the limit are live, and the memory is strict.
        """
        return self._checked_scopes().explicit()

    def least(self, step: Callable[[], Any], count: int = 3) -> int:
        """Measures the smallest ``memory`` within which a training step runs; returns bytes, with 1 % to spare.

        Parameters
        ----------
        step
            A function without arguments that runs one training step, with its loss and its optimizer. It trains the model.
        count
            How often the step runs. An optimizer allocates its state in the first step, so that the second one needs more.

        Raises
        ------
        UsageError
            Graphs are compiled with Inductor, ``count`` is not a positive integer, or the call is inside of a step of this
            memory. Errors of ``step`` are raised as well.
        """
        return self._checked_scopes().measure_least(step, whole("a count of {} steps", count, 1))

    def _checked_scopes(self) -> Scopes:
        """Returns the scopes; raises UsageError if steps are not checked."""
        if self._scopes is None:
            raise UsageError("found a step with Inductor, expected graphs that run operator by operator: it is not counted")
        return self._scopes

    @property
    def reports(self) -> list[GraphReport]:
        """A report for each plan that was made, in the order in which the plans were made."""
        return self.planner.reports

    @property
    def report(self) -> TrainingReport:
        """A report about the training steps so far and about the plans."""
        from stowplan.backends.torch.report import StepsReport, TrainingReport

        scopes = self._scopes
        steps = scopes.report if scopes else StepsReport(limit=self.planner.settings.limit)
        return TrainingReport(steps=steps, graphs=[*self.reports], least=scopes.fitting.least() if scopes else None)


#: The same class, named for ``torch.compile(model, backend=backend(memory="4 GiB"))``.
backend = TrainingMemory


def _has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _refuse_host(planner: Partitioner) -> None:
    """Raise UsageError if values may be sent to the host, because Inductor may reorder the copies."""
    if planner.settings.host is not None:
        raise UsageError("found a host with Inductor, expected passes that run operator by operator: it orders copies anew")


@contextlib.contextmanager
def memory_limit(memory: int | str, **options: Any) -> Iterator[Partitioner]:
    """A context manager in which Inductor plans graphs within a memory limit; Inductor's other settings stay as they are.

    ``torch.compile`` compiles a model when the model is first called, so call it inside of the context.

    Parameters
    ----------
    memory, options
        See :func:`partitioner`. Values cannot be sent to the host.

    Yields
    ------
    Partitioner
        Its attribute ``reports`` has a report for each graph that was planned.

    Raises
    ------
    MissingDependencyError, UsageError, InputError
        When the context is entered, as :func:`partitioner`; UsageError also if ``host`` is given. Compilations inside raise
        MemoryLimitError if the limit cannot be met, unless ``strict`` is false.
    """
    planner = partitioner(memory, **options)
    _refuse_host(planner)
    from stowplan.backends.torch.private import inductor_config

    with inductor_config().patch(custom_partitioner_fn=planner):
        yield planner
