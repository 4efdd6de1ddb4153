"""The partitioner that AOTAutograd and Inductor call with a joint graph."""

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
from stowplan.backends.torch.checkpoints import separated
from stowplan.backends.torch.costs import SIZES, whole
from stowplan.backends.torch.halves import split
from stowplan.backends.torch.offload import with_host
from stowplan.backends.torch.planning import Choice, Chooser, GraphReport, Settings
from stowplan.backends.torch.preserved import preserved
from stowplan.backends.torch.private import CustomPartitionerFn, code_key, config, fx_graph_cse, partitioners
from stowplan.backends.torch.reader import Reading, read, sequence_of
from stowplan.backends.torch.rooms import Rooms, copies, given_bytes, limited, savable, taken, tangent_bytes
from stowplan.backends.torch.timeline import Planned
from stowplan.models.rematerialization.structure import build

#: Versions of torch that the tests of this back end passed with.
VERSIONS = ("2.11", "2.12", "2.13", "2.14", "2.15")

#: How many times larger than those planned for sizes may be: the first at which the plan is within the limit.
LARGER = (16, 8, 4, 2, 1)


def complaint() -> str:
    """What is wrong with the installed version of torch, in one line; empty where it is one that is known."""
    installed = str(torch.__version__)
    known = ".".join(installed.split(".")[:2]) in VERSIONS
    return "" if known else f"found torch {installed}, expected {', '.join(VERSIONS)}"


@dataclass
class Task:
    """A plan for steps that are measured."""

    graph: Any
    """What tells graphs apart."""
    rooms: Rooms | None = None
    """None for the plan of least peak, with which the first steps run."""
    uses: int = 1
    """How many uses of graphs are there at once, at most: the host's bytes are shared among them."""
    planned: Planned | None = None
    """What came of it; None where there is no plan."""
    cost: int = 0
    enough: int = 0
    """Bytes of a peak below which no smaller one is sought."""


class Partitioner(CustomPartitionerFn):
    """A partitioner that stays within a memory limit; made by :func:`stowplan.backends.torch.partitioner`.

    Attributes
    ----------
    reports
        Of each graph planned so far.
    """

    def __init__(self, settings: Settings):
        self.settings = settings
        self.reports: list[GraphReport] = []
        self.task: Task | None = None
        """What is asked for right now, where steps are measured."""
        self.results = 0
        """How many results the caller of the graph that was last cut in two gets of its forward pass."""
        self._parts: dict[Any, GraphReport] = {}
        """Of each graph of those that share the limit."""

    def planned(self) -> list[GraphReport]:
        """Of the graphs that share the limit."""
        return [*self._parts.values()]

    def uuid(self) -> Any:
        """Never the same: plans depend on time and on other graphs, so that nothing compiled is taken from a cache."""
        return uuid.uuid4().hex

    def __call__(self, gm: Any, joint_inputs: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Forward and backward module of a joint module.

        Raises
        ------
        MemoryLimitError
            The limit cannot be met, or no plan was found in time; unless a warning was asked for.
        UnsupportedError
            No plan was made, and those of torch have other gradients than eager.
        """
        why = complaint()
        self.results = kwargs["num_fwd_outputs"]
        try:
            if not why:
                with preserved():
                    return self._plan(gm, joint_inputs, kwargs)
        except MemoryLimitError as error:
            if self.settings.strict:
                raise
            why = str(error)
        except Exception as error:  # whatever is wrong with this graph, torch has a plan for it
            why = reason(error)
        modules, instead = stock.handed_over(gm, joint_inputs, kwargs)
        warn(f"{why}: {instead}")
        return modules

    def _plan(self, gm: Any, joint_inputs: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
        began = time.monotonic()
        module = prepared(gm)
        count = kwargs["num_fwd_outputs"]
        reading = read(module.graph, count, self.settings.counted, self.settings.prices)
        before = time.monotonic()
        modules = stock.partition(gm, joint_inputs, kwargs)
        stock_seconds = time.monotonic() - before
        task, repeats = self.task, self.settings.repeats or 1
        static = set(kwargs.get("static_lifetime_input_indices") or ()) if self.settings.counted.parameters else set()
        key, limit = (task.graph, self.settings.limit) if task else self._share()
        host, hosted = self.settings.host, reading
        if host is not None:
            share = host.limit // (task.uses if task else repeats) if task or repeats > 1 else self._host_share(key)
            hosted = with_host(reading, share, host.bandwidth)

        def chooser(graph: Reading) -> Chooser:
            return Chooser(
                graph,
                room.limit,
                self.settings,
                sequence_of(graph, [half.graph for half in modules]),
                lambda should_stop: stock.plans(gm, graph, joint_inputs, kwargs, should_stop=should_stop),
                stock_seconds,
                began,
                uses=max(row.waiting + row.runs for row in room.rows),
            )

        def rooms(other: Reading) -> Rooms:
            return copies(other, repeats, limit, static)

        room = (task and task.rooms) or rooms(reading)
        if task and task.rooms is None:
            choice = chooser(reading).first(task.enough)
            if choice.report.peak > limit:
                try:
                    choice = chooser(hosted).choose(keep_own=False)
                except MemoryLimitError as error:
                    # Whoever calls the graph may hold less than what is proven assumes.
                    if error.bound - given_bytes(reading, static) > self.settings.limit:
                        raise
        else:
            is_alone = not task and repeats == 1
            choice = chooser(limited(hosted, room)).choose(keep_own=is_alone and kwargs.get("compiler") == "inductor")
        if not choice.is_stock:
            modules = split(
                module,
                choice.reading,
                choice.plan,
                num_fwd_outputs=count,
                static_lifetime_input_indices=kwargs.get("static_lifetime_input_indices"),
            )
        self._guard(module, count, choice, limit, rooms)
        # Only what is certain to run is told, and takes a part of the limit.
        if task:
            inputs = reading.problem.tensors[0].size
            task.planned = Planned(taken(choice.reading, choice.plan), inputs, tangent_bytes(reading), savable(reading))
            task.cost = choice.report.added_cost
        self._parts[key] = choice.report
        self.reports.append(choice.report)
        return modules

    def _guard(self, module: Any, count: int, choice: Choice, limit: int, rooms: Callable[[Reading], Rooms]) -> None:
        """Have torch compile anew for sizes so large that the plan may be above the limit."""
        values = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
        dynamic = [size for value in values for size in getattr(value, "shape", [value]) if isinstance(size, torch.SymInt)]
        symbols = {size.node.expr: size for size in dynamic if size.node.expr.is_Symbol}

        def peak(sizes: dict[Any, int]) -> int:
            SIZES.set(sizes)
            reading = read(module.graph, count, self.settings.counted)
            if choice.reading.arrival and self.settings.host is not None:
                reading = with_host(reading, self.settings.host.limit, self.settings.host.bandwidth)
            plan = build(reading.problem).made(choice.plan.sequence, choice.plan.moves or ())
            return rooms(reading).peak(taken(reading, plan))

        # What larger sizes take on the host is not planned.
        for times in () if not symbols else LARGER[-1:] if choice.plan.moves else LARGER:
            largest = {symbol: times * whole(size) for symbol, size in symbols.items()}
            if times == 1 or copy_context().run(peak, largest) <= limit:
                break
        for symbol, size in symbols.items():
            # It is so; that it was asked becomes a guard.
            bool(size <= largest[symbol])

    def _share(self) -> tuple[Any, int]:
        """What tells graphs apart, and this one's part of the limit: of what others left, as much as each to come."""
        # The same code compiled again, for other sizes, say, takes the place of what it was.
        key = code_key()
        of_others = [report.peak for other, report in self._parts.items() if other != key]
        left = self.settings.graphs - len(of_others)
        if left < 1:
            raise MemoryLimitError(
                f"the model is compiled as {len(of_others) + 1} graphs or more, expected {self.settings.graphs}: "
                f"say how many share the limit, graphs={len(of_others) + 1}",
                self.settings.limit,
                0,
                0,
            )
        return key, (self.settings.limit - sum(of_others)) // left

    def _host_share(self, key: Any) -> int:
        """This graph's part of the host's bytes, as of the limit."""
        assert self.settings.host is not None
        of_others = [report.host_bytes for other, report in self._parts.items() if other != key]
        return max(0, self.settings.host.limit - sum(of_others)) // (self.settings.graphs - len(of_others))


def prepared(gm: Any, separate: bool = True) -> Any:
    """A copy of a joint module as torch's own partitioner would begin with it: no dead code, nothing computed twice.

    Parameters
    ----------
    separate
        Whether what a user wants recomputed is there twice, once for each pass.
    """
    module = torch.fx.GraphModule(gm, stock.copied(gm.graph))
    module.graph.eliminate_dead_code()
    if config.cse:
        module.graph = fx_graph_cse(module.graph)
    for node in stock.written_behind(module.graph):
        for user in node.users:
            if str(user.meta.get("partitioner_tag")).endswith("forward"):
                user.meta["stowplan_half"] = "forward"
    if separate and partitioners.has_recomputable_ops(module):
        partitioners.cleanup_recompute_tags(module, is_default_partition=False)
        module.graph = separated(module.graph)
    return module
