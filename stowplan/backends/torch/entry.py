"""What users call: a back end for ``torch.compile``, a context for their own settings, and the partitioner alone.

Importing it loads no torch.
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


class TrainingMemory:
    """The memory that a training loop may take: a back end for ``torch.compile``, and the steps that it checks.

    An object of this class is what ``torch.compile(model, backend=...)`` takes. All graphs that are compiled with it share the
    limit. Steps open by themselves, from the first call of a compiled graph to the next one after a backward pass, or are said:

        memory = TrainingMemory("4 GiB")
        model = memory.compile(model)
        for batch in batches:
            with memory.step():
                train(model, optimizer, batch)

    Whatever operators of this thread allocate or use in a step counts: parameters, gradients, optimizers, losses, other models,
    evaluation. The first steps run with the plans of least peak; then graphs are planned anew within what the steps leave.

    Parameters
    ----------
    memory
        Limit on the bytes of tensors that are live at once in a step, or text such as ``"4 GiB"``.
    parameters
        Whether inputs of the graphs count (default: they do): parameters, buffers, and what the model is called with.
    gradients
        Whether the gradients that the backward pass returns count (default: they do).
    outside
        Bytes of the limit, or text, that are left for what lives beside the graphs; None, the default, measures them.
    time_limit
        Seconds of planning for each graph (20); a pause in the first step, and in the step that is planned anew.
    strict
        Whether a step above the limit is an error (the default); else one warning, and the loop goes on.
    graphs
        How many graphs share the limit, in place of measuring (None).
    repeats
        How often a graph runs before its backward pass, in place of measuring (None).
    costs
        What plans add least of: ``"flops"``, the default; or time, by ``"profile"``, which runs each kind of operator a few
        times, or by peak rates of a device: ``"h100"``, ``"a100"``, ``"rtx-4090"``, or the path of a TOML file such as theirs.
    host
        Limit on the bytes, or text, that may be sent to the host's memory; None (the default) or 0: none. Costs must be times.
    host_bandwidth
        Bytes per second to the host, and back, or text such as ``"25 GB/s"``.
    inductor
        Whether Inductor compiles both passes; else (the default) they run operator by operator, as ``aot_eager`` does. Inductor
        fuses operators and may order them anew: the limit then is one of the graphs that it is given, and no step is checked.
    margin
        Bytes of the limit, or text, that plans leave free for what the loop may keep later. None, the default, takes the growth
        of ten steps as measured, at least 1 % of the limit and at most 5 %.
    check_every
        Once all graphs are planned, operators are counted in each step whose number is a multiple (1: in all). CUDA's allocator
        is read in all steps.
    hard
        Whether CUDA's allocator may give this process no more than the limit (no). Out of memory is a MemoryLimitError then.
    workers, seed
        As :func:`stowplan.solve` takes them (2 and 0).

    Raises
    ------
    MissingDependencyError
        Without torch.
    UsageError, InputError
        An argument of a wrong type or out of range; a device that is not known, or its file.
    """

    # What torch says of errors begins with this name.
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
        spare = None if margin is None else size("a margin of {}", margin, 0)
        every = whole("check_every {}", check_every, 1)
        if flag("inductor {}", inductor):
            _refuse_host(self.planner)
        if flag("hard {}", hard) and not _has_cuda():
            raise UsageError("found hard without CUDA, expected a device whose allocator can be limited")
        from stowplan.backends.torch import private
        from stowplan.backends.torch.scopes import Scopes

        # Kernels of Inductor make tensors unseen.
        self._scopes = None if inductor else Scopes(self.planner, spare, every, hard)
        if self._scopes is not None:
            itself = weakref.ref(self)
            self._scopes.is_given = lambda: private.is_given_to_compile(itself())

    def __call__(self, graph_module: Any, example_inputs: Any, **options: Any) -> Any:
        """Compile a graph; torch.compile calls this."""
        from stowplan.backends.torch import private

        if self._scopes is None:
            return self._or_eager(graph_module, private.compile_with_inductor, example_inputs, self.planner, **options)
        scopes = self._scopes

        def compiled(inputs: Any, variant: Any) -> Any:
            def wrap(run: Any, is_backward: bool) -> Any:
                return lambda arguments: scopes.run_pass(variant, is_backward, run, arguments)

            return self._or_eager(graph_module, private.compile_passes, inputs, self.planner, wrap)

        return scopes.watched(compiled, example_inputs, private.code_key())

    def _or_eager(self, graph_module: Any, make: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        try:
            return make(graph_module, *arguments, **options)
        except UnsupportedError as error:
            warn(f"{error}: the graph runs as eager")
            return graph_module.forward

    def compile(self, model: Any, **options: Any) -> Any:
        """As ``torch.compile(model, backend=self, **options)``."""
        import torch

        return torch.compile(model, backend=self, **options)

    def step(self) -> contextlib.AbstractContextManager[None]:
        """A step: all that runs inside counts, and the limit is checked at every operator, or on CUDA around every graph.

        Raises
        ------
        UsageError
            Inside of another step of this memory, or with Inductor.
        MemoryLimitError
            When more than the limit is live, if that is an error.
        """
        return self._watched().said()

    def least(self, step: Callable[[], Any], count: int = 3) -> int:
        """The smallest ``memory`` that a training step runs within, in bytes, with 1 % to spare.

        Parameters
        ----------
        step
            Called without arguments: a whole step with its loss and its optimizer. It is run, and so changes the model.
        count
            How often; an optimizer makes its state in the first step, so that the second takes more.
        """
        return self._watched().measure_least(step, whole("a count of {} steps", count, 1))

    def _watched(self) -> Scopes:
        if self._scopes is None:
            raise UsageError("found a step with Inductor, expected graphs that run operator by operator: it is not counted")
        return self._scopes

    @property
    def reports(self) -> list[GraphReport]:
        """What came of each graph, in the order of plans."""
        return self.planner.reports

    @property
    def report(self) -> TrainingReport:
        """What came of the steps so far."""
        from stowplan.backends.torch.report import StepsReport, TrainingReport

        scopes = self._scopes
        steps = scopes.report if scopes else StepsReport(limit=self.planner.settings.limit)
        return TrainingReport(steps=steps, graphs=[*self.reports], least=scopes.fitting.least() if scopes else None)


#: The same under the name that it has in ``torch.compile(model, backend=backend(memory="4 GiB"))``.
backend = TrainingMemory


def _has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


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
    from stowplan.backends.torch.private import inductor_config

    with inductor_config().patch(custom_partitioner_fn=planner):
        yield planner
