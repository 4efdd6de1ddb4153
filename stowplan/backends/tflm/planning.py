"""A plan of a model's arena: an order of its operators, and offsets for its tensors, never above the runtime's own."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stowplan.backends.fallback import UnsupportedError
from stowplan.backends.search import Search
from stowplan.backends.tflm import runtime
from stowplan.backends.tflm import scratch as scratch_memory
from stowplan.backends.tflm.arena import Arena
from stowplan.backends.tflm.check import faults
from stowplan.backends.tflm.greedy import kept_inputs, on_top, without
from stowplan.backends.tflm.inputs import read_inputs
from stowplan.backends.tflm.order import Ordered, floor, improved, ordered
from stowplan.backends.tflm.overlap import Pair, overlaps, unmodelled
from stowplan.backends.tflm.write import with_offsets, with_orders
from stowplan.document import Document
from stowplan.errors import InputError, VerificationError, naming, to_install
from stowplan.frontends.tflite.model import (
    AT_RUNTIME,
    OFFLINE_PLAN,
    Scopes,
    TfliteModel,
    read_tflite,
    scopes,
)
from stowplan.kernel.context import Options
from stowplan.models.packing.bounds import load_bound
from stowplan.models.packing.overlaps import loads, shared_bytes
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Problem

#: Format of files with a summary.
FORMAT = "stowplan.tflm"


class Summary(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What came of a model; all sizes in bytes."""

    model: str
    subgraphs: int
    operators: int
    tensors: int
    """That have a place in the head."""
    head: int
    """What the runtime's head takes under the plan."""
    bound: int
    """No offsets take less, in any order where :attr:`any_order`, else in the one that was taken.

    Live tensors share the bytes that :attr:`kernels` are known to allow, and no others.
    """
    any_order: bool
    """Whether the bound is of all orders."""
    kept: int
    """Of that inputs that survive the run take, which lie above all else."""
    keep: tuple[int, ...] = ()
    """Numbers of the tensors of these inputs."""
    kernels: str
    """Whose accesses say which tensors may share bytes."""
    shared: int
    """Bytes that results share with their operands, added up."""
    unmodelled: int
    """Operators whose accesses are not known for these kernels: nothing is shared there."""
    greedy: int
    """What the head takes where the runtime plans."""
    moved: int
    """Operators that run at another place than in the file."""
    scratch: dict[str, tuple[int, ...]]
    """What operators ask for while they run, by their places in the file."""
    scratch_from: str
    """Where that is known from."""
    offsets: tuple[int, ...]
    """Of each tensor over all subgraphs; -1 where the runtime places it."""
    orders: dict[int, tuple[int, ...]]
    """Operators as they run, of subgraphs that have another order than in the file."""
    seconds: float
    format: str = FORMAT
    version: int = 1

    @property
    def is_proven(self) -> bool:
        """Whether no plan has a lower head."""
        return self.head <= self.bound


@dataclass(frozen=True)
class Planned:
    """A planned model."""

    source: TfliteModel
    summary: Summary
    data: bytes
    """The model with the plan in it."""
    problem: Problem
    """The buffers of the order that was taken, scratch memory among them."""
    plan: Plan
    runtime: Plan | None
    """What the runtime's own planner does with :attr:`problem`; None where operators were moved or inputs are kept."""


def plan_model(
    path: str | Path,
    *,
    scratch: Sequence[str] = (),
    measured: scratch_memory.Scratch | None = None,
    replace_offline_plan: bool = False,
    reorder: bool = True,
    kernels: str = "none",
    keep: Sequence[str] = (),
    options: Options | None = None,
    cancel: threading.Event | None = None,
) -> Planned:
    """Plan a TensorFlow Lite model for the arena of TensorFlow Lite Micro.

    Parameters
    ----------
    path
        The model.
    scratch
        Sizes of scratch memory that hold, as :func:`stowplan.backends.tflm.scratch.given` reads them.
    measured
        Sizes that were measured; else those of the reference kernels.
    replace_offline_plan
        A plan that the model has is made anew, but for the tensors of custom operators; without it such a model is refused.
    reorder
        Whether operators may run in another order.
    kernels
        Kernels whose accesses say which tensors may share bytes (:mod:`stowplan.backends.tflm.overlap`).
    keep
        Inputs that survive the run, by their names: nothing is written to their bytes. The runtime's own planner keeps none.
    options
        Of the searches; 10 seconds for each by default. Deterministic ones find the same plan whatever the load.
    cancel
        Ends the searches once it is set: the best plan so far is taken.

    Raises
    ------
    InputError
        The file cannot be read, has a plan, asks for scratch memory of unknown size, or has no input of a name.
    UsageError
        Scratch memory of operators that are not there.
    VerificationError
        The planned model does not hold; this is an error of this package.
    """
    model = _read(path, replace_offline_plan)
    return _planned(model, path, scratch, measured, reorder, kernels, keep, options or Options(time_limit=10.0), cancel)


def _planned(
    source: TfliteModel,
    path: str | Path,
    scratch: Sequence[str],
    measured: scratch_memory.Scratch | None,
    reorder: bool,
    kernels: str,
    keep: Sequence[str],
    options: Options,
    cancel: threading.Event | None,
) -> Planned:
    """:func:`plan_model` of what was read from a path."""
    began = time.monotonic()
    search = Search(options, cancel)
    lives = scopes(len(source.tensors), source.subgraphs)
    sizes = _scratch(source, lives, scratch, measured, path)
    with naming(path):
        kept = kept_inputs(source, keep)
        model = without(source, kept)
        pairs = overlaps(model, kernels)
    may_move = reorder and not model.fixed
    order = ordered(model, sizes, search if may_move else None)
    as_given = Ordered({}, order.bound)
    given = Arena(model, lives, sizes)
    runtimes = given.placed(())
    tried = [(given.best(search, order.bound), as_given), (runtimes, as_given)]

    def arena(its_order: Ordered, its_pairs: Sequence[Pair] = ()) -> Arena:
        names = {(graph, to): (graph, at) for graph, steps in its_order.orders.items() for to, at in enumerate(steps)}
        return Arena(model, scopes(len(model.tensors), its_order.subgraphs(model)), sizes, names, its_pairs)

    if order.orders and tried[0][0].head > order.bound:
        tried.append((arena(order).best(search, order.bound), order))
    shared, least = [], 0
    if pairs:
        orders = [as_given, *([order] if order.orders else [])]
        least = max(given.floor, floor(model, lives, sizes, pairs))
        if may_move:
            end = time.monotonic() + search.options.time_limit / 2

            def loads_of(its_order: Ordered) -> list[int]:
                return [*loads(arena(its_order, pairs).problem).values()]

            def is_over() -> bool:
                late = not search.options.deterministic and time.monotonic() > end
                return late or (cancel is not None and cancel.is_set())

            start = min(orders, key=lambda its_order: max(loads_of(its_order), default=0))
            better = improved(model, start, loads_of, least, search.options.seed, is_over)
            orders += [better] if better is not start else []
        shared = [(arena(its_order, pairs).best(search, least), its_order) for its_order in orders]
    # After those without overlaps, which are taken where they are as low.
    tried += shared
    # The runtime's own is last of those that are equal: offsets that are written hold on other devices, too.
    best, taken = min(tried, key=lambda pair: (pair[0].head, pair[0] is runtimes))
    any_order = may_move and (not pairs or best.head <= least)
    if pairs and not any_order:
        # What is known of all orders, and of searches without overlaps, is of plans that share nothing.
        bound = max(least, *(plan.bound for plan, its_order in shared if its_order is taken))
    elif pairs:
        bound = least
    else:
        bound = order.bound if may_move else load_bound(given.problem)
    bound, head, problem, plan = max(bound, given.floor), best.head, best.problem, best.plan
    greedy_head = Arena(source, lives, sizes).placed(()).head if kept else runtimes.head
    taken_by_kept = sum(source.tensors[number].size for number in kept)
    if kept:
        problem, plan, places = on_top(source, kept, problem, plan, head)
        for number, at in zip(kept, places, strict=True):
            best.offsets[number] = at
        head = places[-1] + source.tensors[kept[-1]].size
        # Below tensors whose offsets are fixed there may be room.
        bound += 0 if model.fixed else taken_by_kept
    shares = {(pair.operand, pair.result): pair.distance for pair in best.pairs}
    with naming(path):
        data = with_offsets(with_orders(model, taken.orders), best.offsets)
        wrong = faults(model.data, data, best.scratch, model.fixed, shares, kept)
    if wrong:
        raise VerificationError(f"{path}: the planned model does not hold: {wrong[0]}")
    of_pairs, buffers = shared_bytes(best.problem, best.plan.offsets), best.problem.buffers
    # Of several operands, a result takes no more bytes than it has.
    taken_by = {result: sum(count for (one, _), count in of_pairs.items() if one == result) for result, _ in of_pairs}
    summary = Summary(
        model=model.name,
        subgraphs=len(model.subgraphs),
        operators=sum(len(graph.operators) for graph in model.subgraphs),
        tensors=sum(tensor.is_planned for tensor in source.tensors),
        head=head,
        bound=min(bound, head),
        any_order=any_order,
        kept=taken_by_kept,
        keep=tuple(kept),
        kernels=kernels,
        shared=sum(min(buffers[result].size, count) for result, count in taken_by.items()),
        unmodelled=unmodelled(model, kernels),
        greedy=greedy_head,
        moved=sum(at != to for steps in taken.orders.values() for to, at in enumerate(steps)),
        scratch={f"{graph}:{position}": pieces for (graph, position), pieces in sorted(sizes.items()) if pieces},
        scratch_from="given" if scratch else "measured" if measured is not None else "reference kernels",
        offsets=tuple(best.offsets),
        orders=dict(taken.orders),
        seconds=round(time.monotonic() - began, 3),
    )
    beside = None if taken.orders or kept else msgspec.structs.replace(runtimes.plan, problem=problem.digest)
    return Planned(source, summary, data, problem, plan, beside)


def plan_and_run(
    path: str | Path,
    *,
    run: bool = True,
    seeds: int = 3,
    inferences: int = 5,
    inputs: str | Path | None = None,
    on_progress: Callable[[str], None] = lambda text: None,
    scratch: Sequence[str] = (),
    replace_offline_plan: bool = False,
    reorder: bool = True,
    kernels: str = "none",
    keep: Sequence[str] = (),
    options: Options | None = None,
    cancel: threading.Event | None = None,
) -> tuple[Planned, runtime.Run | None, str]:
    """:func:`plan_model` with scratch memory measured by the runtime, then run both models there, where it is installed.

    Parameters
    ----------
    run
        Whether to; else nothing is measured.
    seeds, inferences
        As :func:`stowplan.backends.tflm.runtime.run` takes them.
    inputs
        A file with inputs for the models (:func:`stowplan.backends.tflm.inputs.read_inputs`); others are drawn at random.
    cancel
        Ends the searches, and nothing more is run.

    All others are as :func:`plan_model` takes them.

    Returns
    -------
    tuple
        The plan; what the runtime made of it, None where it was not run; and why it was not.

    Raises
    ------
    InputError, UsageError, VerificationError
        As :func:`plan_model`, or the inputs are not the model's, or the runtime fails on the planned model alone.
    """
    model = _read(path, replace_offline_plan)
    measured: scratch_memory.Scratch | None = None
    own = ({}, None) if inputs is None else read_inputs(model, inputs)

    def plan(reorder: bool = reorder) -> Planned:
        return _planned(model, path, scratch, measured, reorder, kernels, keep, options or Options(time_limit=10.0), cancel)

    def ran(planned: Planned) -> runtime.Run | None:
        is_cancelled = cancel is not None and cancel.is_set()
        if is_cancelled:
            return None
        return runtime.run(model, planned.data, keep=keep, seeds=seeds, inferences=inferences, given=own)

    why = "" if run else "--no-run was given"
    if run and runtime.version() is None:
        why = f"{runtime.WHEEL} is not installed ({to_install('tflm')})"
    if why:
        return plan(), None, why
    on_progress("tflm: measures scratch memory")
    with contextlib.suppress(UnsupportedError):
        # An operator may not run alone; then what the reference kernels ask for is taken.
        measured = None if scratch else runtime.measured(model)
    planned = plan()
    on_progress("tflm: runs the models")
    try:
        done = ran(planned)
        if done is not None and done.head != planned.summary.head and not scratch:
            # Some kernel asks for more than is known of it.
            measured = runtime.measured(model, every=True)
            planned = plan()
            done = ran(planned)
        if done is not None and done.arena - planned.summary.kept > done.greedy_arena and planned.summary.moved:
            # What is persistent stands in the order of preparation, and may leave other gaps.
            planned = plan(reorder=False)
            done = ran(planned)
    except UnsupportedError as error:
        # Ctrl-C ends the runtime's process, too.
        return planned, None, "interrupted" if cancel is not None and cancel.is_set() else str(error)
    return planned, done, "interrupted" if done is None else ""


def _read(path: str | Path, replace_offline_plan: bool) -> TfliteModel:
    model = read_tflite(path, replace_offline_plan=replace_offline_plan)
    if not replace_offline_plan and any(offset != AT_RUNTIME for offset in model.offsets):
        advice = "--set replace_offline_plan=yes plans anew, but for custom operators"
        raise InputError(f"found offsets in the model, expected none; {advice}", source=path, place=OFFLINE_PLAN)
    return model


def _scratch(
    model: TfliteModel,
    lives: Scopes,
    texts: Sequence[str],
    measured: scratch_memory.Scratch | None,
    path: str | Path,
) -> dict[tuple[int, int], tuple[int, ...]]:
    known, unknown = scratch_memory.of_reference_kernels(model)
    for name, sizes in (measured or {}).items():
        # One number for all that an operator asks for: the kernels' own sizes say more where they agree.
        if sum(map(scratch_memory.rounded, known.get(name, ()))) != sum(map(scratch_memory.rounded, sizes)):
            known[name] = tuple(sizes)
    said = scratch_memory.given(model, lives, texts)
    for graph, position in unknown:
        if (graph, position) in said or (graph, position) in (measured or {}):
            continue
        what = model.subgraphs[graph].operators[position].what
        label = f"{graph}:{position}" if graph else str(position)
        message = f"what scratch memory {what} asks for is not known; --scratch {label}=BYTES says it (0: none)"
        raise InputError(message, source=path, place=f"operator {label}")
    return known | said
