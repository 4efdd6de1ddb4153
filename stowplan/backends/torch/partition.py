"""The partitioner that AOTAutograd and Inductor call with a joint graph of a forward and a backward pass.

AOTAutograd, a part of ``torch.compile``, traces both passes as one *joint graph*, which the partitioner cuts in two. A *plan*
says which values are saved and which are computed again. If a training loop measures its steps, each call serves a
:class:`PlanRequest`; otherwise the graphs divide the memory limit among themselves. A *use* of a graph is one forward pass,
until the end of its backward pass. *Tangents* are the gradients of the results, with which the backward pass is called. A
*reading* is a joint graph with its rematerialization problem (:class:`~stowplan.backends.torch.reader.Reading`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

import torch

from stowplan.backends.fallback import MemoryLimitError, reason, warn
from stowplan.backends.torch import stock
from stowplan.backends.torch.allowance import (
    Allowance,
    bytes_held_by_caller,
    footprint,
    repeated_allowance,
    savable,
    tangent_bytes,
    with_reservations,
)
from stowplan.backends.torch.checkpoints import with_backward_copies
from stowplan.backends.torch.costs import SIZES, whole
from stowplan.backends.torch.global_state import preserve_global_state
from stowplan.backends.torch.halves import split
from stowplan.backends.torch.offload import with_host
from stowplan.backends.torch.planning import Choice, Chooser, GraphReport, Settings
from stowplan.backends.torch.private import CustomPartitionerFn, code_key, config, fx_graph_cse, partitioners
from stowplan.backends.torch.reader import Reading, read, sequence_of
from stowplan.backends.torch.timeline import Planned
from stowplan.models.rematerialization.structure import build

#: Versions of torch with which the tests of this back end have passed.
VERSIONS = ("2.11", "2.12", "2.13", "2.14", "2.15")

#: Factors by which symbolic sizes may grow before torch compiles the graph again. They are tried from left to right, and the
#: first one at which the plan is still within the limit is used.
LARGER = (16, 8, 4, 2, 1)


def unsupported_version() -> str:
    """Returns a line that says that the installed version of torch is not supported; empty if it is supported."""
    installed = str(torch.__version__)
    is_supported = ".".join(installed.split(".")[:2]) in VERSIONS
    return "" if is_supported else f"found torch {installed}, expected {', '.join(VERSIONS)}"


@dataclass
class PlanRequest:
    """Asks the partitioner for a plan of one graph of a training loop whose steps are measured, and receives the result."""

    graph: Any
    """Key of the graph."""
    allowance: Allowance | None = None
    """How many bytes the graph may use. None asks for the plan of least peak, which needs the least memory and with which the
    first steps run."""
    concurrent_uses: int = 1
    """The largest number of uses, of any graph, that are in progress at once; they share the host's bytes."""
    planned: Planned | None = None
    """The result: the memory that the plan uses; None before the call, and if the graph could not be planned."""
    cost: int = 0
    """The result: the cost that the plan adds, in floating-point operations or picoseconds."""
    enough: int = 0
    """For a plan of least peak: a peak of at most this many bytes is good enough, and the search for a lower one ends."""


class Partitioner(CustomPartitionerFn):
    """A partitioner that stays within a memory limit; :func:`stowplan.backends.torch.partitioner` constructs it.

    Parameters
    ----------
    settings
        Its options.

    Attributes
    ----------
    reports
        A report for each plan that was made so far.
    """

    def __init__(self, settings: Settings):
        self.settings = settings
        self.reports: list[GraphReport] = []
        self.request: PlanRequest | None = None
        """The request that the next call serves; None if steps are not measured."""
        self.results = 0
        """How many outputs of the last forward pass go to its caller; the values that are saved follow them."""
        self._report_of: dict[Any, GraphReport] = {}
        """The latest report of each graph that shares the limit."""

    def planned(self) -> list[GraphReport]:
        """Returns the latest report of each graph that shares the limit."""
        return [*self._report_of.values()]

    def uuid(self) -> Any:
        """Returns a key for torch's caches. It is different in each call, because plans depend on time and on other graphs."""
        return uuid.uuid4().hex

    def __call__(self, gm: Any, joint_inputs: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Cuts a joint module into a forward and a backward module.

        If the graph cannot be planned, modules of one of torch's own partitioners are returned, and a
        :class:`~stowplan.backends.fallback.PlanningWarning` is issued.

        Parameters
        ----------
        gm
            ``torch.fx.GraphModule`` with the joint graph.
        joint_inputs, kwargs
            As AOTAutograd passes them to a partitioner.

        Raises
        ------
        MemoryLimitError
            The limit cannot be met, or no plan was found in time, and the option ``strict`` is set.
        UnsupportedError
            The graph cannot be planned, and torch's own plans could compute other gradients than eager mode.
        """
        why = unsupported_version()
        self.results = kwargs["num_fwd_outputs"]
        try:
            if not why:
                with preserve_global_state():
                    return self._plan(gm, joint_inputs, kwargs)
        except MemoryLimitError as error:
            if self.settings.strict:
                raise
            why = str(error)
        except Exception as error:  # Whatever the fault is, torch's own partitioner can still compile the graph.
            why = reason(error)
        modules, instead = stock.safe_modules(gm, joint_inputs, kwargs)
        warn(f"{why}: {instead}")
        return modules

    def _plan(self, gm: Any, joint_inputs: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Finds a plan of the joint module within the limit, adds its report, and returns the two modules that execute it."""
        began = time.monotonic()
        module = prepared(gm)
        count = kwargs["num_fwd_outputs"]
        reading = read(module.graph, count, self.settings.counted, self.settings.cost_function)
        before = time.monotonic()
        modules = stock.partition(gm, joint_inputs, kwargs)
        stock_seconds = time.monotonic() - before
        request, repeats = self.request, self.settings.repeats or 1
        static = set(kwargs.get("static_lifetime_input_indices") or ()) if self.settings.counted.parameters else set()
        key, limit = (request.graph, self.settings.limit) if request else self._share()
        host, with_transfers = self.settings.host, reading
        if host is not None:
            share = (
                host.limit // (request.concurrent_uses if request else repeats)
                if request or repeats > 1
                else self._host_share(key)
            )
            with_transfers = with_host(reading, share, host.bandwidth)

        def chooser(graph: Reading) -> Chooser:
            """Returns a search for plans of this reading, within the limit of the allowance."""
            return Chooser(
                graph,
                available.limit,
                self.settings,
                sequence_of(graph, [half.graph for half in modules]),
                lambda should_stop: stock.plans(gm, graph, joint_inputs, kwargs, should_stop=should_stop),
                stock_seconds,
                began,
                uses=max(row.waiting + row.runs for row in available.rows),
            )

        def allowance(other: Reading) -> Allowance:
            return repeated_allowance(other, repeats, limit, static)

        available = (request and request.allowance) or allowance(reading)
        if request and request.allowance is None:
            choice = chooser(reading).choose_for_first_steps(request.enough)
            if choice.report.peak > limit:
                try:
                    choice = chooser(with_transfers).choose(keep_stock=False)
                except MemoryLimitError as error:
                    # The bound assumes that the caller holds all inputs, results and tangents; it may have released some.
                    if error.bound - bytes_held_by_caller(reading, static) > self.settings.limit:
                        raise
        else:
            is_alone = not request and repeats == 1
            choice = chooser(with_reservations(with_transfers, available)).choose(
                keep_stock=is_alone and kwargs.get("compiler") == "inductor"
            )
        if not choice.is_stock:
            modules = split(
                module,
                choice.reading,
                choice.plan,
                num_fwd_outputs=count,
                static_lifetime_input_indices=kwargs.get("static_lifetime_input_indices"),
            )
        self._guard(module, count, choice, limit, allowance)
        # The graph takes its share of the limit only here, when nothing can fail any more.
        if request:
            inputs = reading.problem.tensors[0].size
            request.planned = Planned(footprint(choice.reading, choice.plan), inputs, tangent_bytes(reading), savable(reading))
            request.cost = choice.report.added_cost
        self._report_of[key] = choice.report
        self.reports.append(choice.report)
        return modules

    def _guard(self, module: Any, count: int, choice: Choice, limit: int, allowance: Callable[[Reading], Allowance]) -> None:
        """Adds guards, so that torch compiles the graph again for sizes at which this plan could be above the limit."""
        values = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
        symbolic_sizes = [
            size for value in values for size in getattr(value, "shape", [value]) if isinstance(size, torch.SymInt)
        ]
        symbols = {size.node.expr: size for size in symbolic_sizes if size.node.expr.is_Symbol}

        def peak(sizes: dict[Any, int]) -> int:
            """Returns the peak of the plan in bytes if the symbols have these sizes."""
            SIZES.set(sizes)
            reading = read(module.graph, count, self.settings.counted)
            if choice.reading.arrival and self.settings.host is not None:
                reading = with_host(reading, self.settings.host.limit, self.settings.host.bandwidth)
            plan = build(reading.problem).made(choice.plan.sequence, choice.plan.moves or ())
            return allowance(reading).peak(footprint(reading, plan))

        # With moves to the host no larger size is allowed, because the bytes on the host are planned for these sizes only.
        for factor in () if not symbols else LARGER[-1:] if choice.plan.moves else LARGER:
            largest = {symbol: factor * whole(size) for symbol, size in symbols.items()}
            if factor == 1 or copy_context().run(peak, largest) <= limit:
                break
        for symbol, size in symbols.items():
            # The comparison is true now. Evaluating it makes torch record it as a guard.
            bool(size <= largest[symbol])

    def _share(self) -> tuple[Any, int]:
        """Returns a key of the graph that is being compiled, and its share of the limit in bytes.

        The bytes that other graphs have left are divided evenly among this graph and the graphs that are still expected. Raises
        MemoryLimitError if there are more graphs than the user has said.
        """
        # If the same code is compiled again, for example for other sizes, the new graph replaces the old one.
        key = code_key()
        of_others = [report.peak for other, report in self._report_of.items() if other != key]
        remaining_graphs = self.settings.graphs - len(of_others)
        if remaining_graphs < 1:
            raise MemoryLimitError(
                f"the model is compiled as {len(of_others) + 1} graphs or more, expected {self.settings.graphs}: "
                f"say how many share the limit, graphs={len(of_others) + 1}",
                self.settings.limit,
                0,
                0,
            )
        return key, (self.settings.limit - sum(of_others)) // remaining_graphs

    def _host_share(self, key: Any) -> int:
        """Returns this graph's share of the host's bytes, divided in the same way as the limit."""
        assert self.settings.host is not None
        sent_by_others = [report.host_bytes for other, report in self._report_of.items() if other != key]
        return max(0, self.settings.host.limit - sum(sent_by_others)) // (self.settings.graphs - len(sent_by_others))


def prepared(gm: Any, separate: bool = True) -> Any:
    """Copies a joint module and removes dead code and common subexpressions from the copy, as torch's own partitioner does.

    Parameters
    ----------
    gm
        ``torch.fx.GraphModule`` with the joint graph; it is not changed.
    separate
        Whether nodes that the user wants recomputed are duplicated, so that each pass has its own.
    """
    module = torch.fx.GraphModule(gm, stock.copied(gm.graph))
    module.graph.eliminate_dead_code()
    if config.cse:
        module.graph = fx_graph_cse(module.graph)
    for node in stock.inputs_written_after_forward(module.graph):
        for user in node.users:
            if str(user.meta.get("partitioner_tag")).endswith("forward"):
                user.meta["stowplan_half"] = "forward"
    if separate and partitioners.has_recomputable_ops(module):
        partitioners.cleanup_recompute_tags(module, is_default_partition=False)
        module.graph = with_backward_copies(module.graph)
    return module
