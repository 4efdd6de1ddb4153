"""Plans a model's arena: finds an order of operators and offsets of tensors, and writes them into the model.

TensorFlow Lite Micro (TFLM, in short the *runtime*) places all data in one array, the *arena*. Its *head* is the part that is
planned: activations and *scratch buffers*, the temporary memory of operators. The head never needs more bytes than with the
runtime's own planner, unless inputs are *preserved*. Nothing overwrites the bytes of a preserved input during an *inference* (a
run of the model), so that it need not be set again before the next one. If the reads and writes of an operator's code (its
*kernel*) are known, its result may share bytes with its operands.
"""

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
from stowplan.backends.tflm.greedy import preserved_inputs, stack_on_head, without_tensors
from stowplan.backends.tflm.inputs import read_inputs
from stowplan.backends.tflm.order import OperatorOrder, find_order, improve_order, lower_bound
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

#: Value of the field ``format`` in files with a summary.
FORMAT = "stowplan.tflm"


class Summary(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The plan of a model with its figures; all sizes are in bytes."""

    model: str
    """Name of the model."""
    subgraphs: int
    """How many subgraphs the model has."""
    operators: int
    """How many operators all subgraphs have."""
    tensors: int
    """How many tensors are placed in the head."""
    head: int
    """Size of the head with the plan."""
    bound: int
    """Proven lower bound on the head: over all orders of the operators if :attr:`any_order`, otherwise for the order of the
    plan.

    It is proven for plans in which live tensors share bytes only if this is known to be safe with the kernels :attr:`kernels`.
    """
    any_order: bool
    """Whether the bound holds for all orders of the operators."""
    kept: int
    """Bytes of the head that preserved inputs need; they lie above everything else."""
    keep: tuple[int, ...] = ()
    """Indices of the tensors of the preserved inputs, among the tensors of all subgraphs."""
    kernels: str
    """The set of kernels whose reads and writes decide which tensors may share bytes."""
    shared: int
    """Bytes that results of operators share with operands, summed over all results."""
    unmodelled: int
    """How many operators have kernels whose reads and writes are not known; their tensors share nothing."""
    greedy: int
    """Size of the head if the runtime's own planner places all buffers."""
    moved: int
    """How many operators run at another position than in the file."""
    scratch: dict[str, tuple[int, ...]]
    """Sizes of the scratch buffers of each operator, by ``SUBGRAPH:POSITION`` in the file."""
    scratch_from: str
    """Where these sizes come from: ``given`` if the user gave any, otherwise ``measured`` if the runtime was available,
    otherwise ``reference kernels``."""
    offsets: tuple[int, ...]
    """[tensors of all subgraphs] Offset of each tensor; -1 if the runtime places it."""
    orders: dict[int, tuple[int, ...]]
    """From a subgraph to its operators' positions in the file, in the order in which they run; only subgraphs that are
    reordered."""
    seconds: float
    """Seconds of planning."""
    format: str = FORMAT
    version: int = 1

    @property
    def is_proven(self) -> bool:
        """Whether the head is proven to be minimal."""
        return self.head <= self.bound


@dataclass(frozen=True)
class Planned:
    """A model with its plan."""

    source: TfliteModel
    """The model as it was read."""
    summary: Summary
    """The plan with its figures."""
    data: bytes
    """The contents of the model file with the plan."""
    problem: Problem
    """The packing problem of the plan's order: its buffers, including scratch buffers."""
    plan: Plan
    """The offsets, as a plan of :attr:`problem`."""
    runtime: Plan | None
    """The plan that the runtime's own planner makes for :attr:`problem`; None if operators were moved or inputs are
    preserved."""


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
    """Plans a TensorFlow Lite model for the arena of TensorFlow Lite Micro.

    Parameters
    ----------
    path
        The model file.
    scratch
        Sizes of scratch buffers, as texts that :func:`stowplan.backends.tflm.scratch.read_sizes` reads. They take precedence
        over all other sizes.
    measured
        Measured sizes of scratch buffers, from :func:`stowplan.backends.tflm.runtime.measured`; None if nothing was measured.
        Sizes that are neither given nor measured are those of the reference kernels.
    replace_offline_plan
        Whether a plan in the model file is replaced, except for tensors of custom operators. Without it, a model that has a
        plan is refused.
    reorder
        Whether operators may run in another order than in the file.
    kernels
        The set of kernels on the device, ``reference`` or ``cmsis-nn``; their reads and writes decide which tensors may share
        bytes (:mod:`stowplan.backends.tflm.overlap`). With ``none``, live tensors share no bytes.
    keep
        Names of inputs that are preserved: nothing overwrites their bytes during an inference. The runtime's own planner
        preserves no input.
    options
        Options of each search; None means a time limit of 10 seconds. With ``deterministic`` the plan does not depend on the
        load of the machine.
    cancel
        Ends the searches once it is set; the best plan so far is returned.

    Returns
    -------
    Planned
        The planned model. Its plan has passed the check of :mod:`stowplan.backends.tflm.check`.

    Raises
    ------
    InputError
        The file cannot be read, contains a plan that is not to be replaced, or has an operator whose scratch buffers have
        unknown sizes. A name of ``keep`` is the name of no input, of several inputs, or of an input whose offset in the file
        must stay. A file with sizes of scratch buffers is invalid.
    UsageError
        Sizes of scratch buffers are invalid or for an operator that does not exist, or there is no such set of kernels.
    VerificationError
        The check of the planned model failed; that is a fault of stowplan.
    """
    model = _read(path, replace_offline_plan)
    return _plan(model, path, scratch, measured, reorder, kernels, keep, options or Options(time_limit=10.0), cancel)


def _plan(
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
    """Plans a model that was read from ``path``; all other arguments, and the errors, are those of :func:`plan_model`."""
    began = time.monotonic()
    search = Search(options, cancel)
    scopes_in_file = scopes(len(source.tensors), source.subgraphs)
    sizes = _scratch_sizes(source, scopes_in_file, scratch, measured, path)
    with naming(path):
        kept = preserved_inputs(source, keep)
        model = without_tensors(source, kept)
        pairs = overlaps(model, kernels)
    may_move = reorder and not model.fixed
    order = find_order(model, sizes, search if may_move else None)
    file_order = OperatorOrder({}, order.bound)
    file_arena = Arena(model, scopes_in_file, sizes)
    runtime_placement = file_arena.place(())
    candidates = [(file_arena.best(search, order.bound), file_order), (runtime_placement, file_order)]

    def arena(operator_order: OperatorOrder, sharing_pairs: Sequence[Pair] = ()) -> Arena:
        file_positions = {
            (graph, to): (graph, at) for graph, steps in operator_order.orders.items() for to, at in enumerate(steps)
        }
        return Arena(model, scopes(len(model.tensors), operator_order.subgraphs(model)), sizes, file_positions, sharing_pairs)

    if order.orders and candidates[0][0].head > order.bound:
        candidates.append((arena(order).best(search, order.bound), order))
    shared, sharing_bound = [], 0
    if pairs:
        orders = [file_order, *([order] if order.orders else [])]
        sharing_bound = max(file_arena.lower_bound, lower_bound(model, scopes_in_file, sizes, pairs))
        if may_move:
            end = time.monotonic() + search.options.time_limit / 2

            def loads_of(operator_order: OperatorOrder) -> list[int]:
                return [*loads(arena(operator_order, pairs).problem).values()]

            def is_over() -> bool:
                is_late = not search.options.deterministic and time.monotonic() > end
                return is_late or (cancel is not None and cancel.is_set())

            start = min(orders, key=lambda operator_order: max(loads_of(operator_order), default=0))
            better = improve_order(model, start, loads_of, sharing_bound, search.options.seed, is_over)
            orders += [better] if better is not start else []
        shared = [(arena(operator_order, pairs).best(search, sharing_bound), operator_order) for operator_order in orders]
    # Plans with sharing come last, because ``min`` prefers earlier ones among equals: sharing depends on the device's kernels.
    candidates += shared
    # Of equal heads, written offsets are preferred to the runtime's own plan: they do not depend on the planner of the device.
    best, chosen_order = min(candidates, key=lambda pair: (pair[0].head, pair[0] is runtime_placement))
    any_order = may_move and (not pairs or best.head <= sharing_bound)
    if pairs and not any_order:
        # Bounds over all orders, and bounds of the searches without sharing, do not hold for plans that share bytes.
        bound = max(sharing_bound, *(plan.bound for plan, operator_order in shared if operator_order is chosen_order))
    elif pairs:
        bound = sharing_bound
    else:
        bound = order.bound if may_move else load_bound(file_arena.problem)
    bound, head, problem, plan = max(bound, file_arena.lower_bound), best.head, best.problem, best.plan
    greedy_head = Arena(source, scopes_in_file, sizes).place(()).head if kept else runtime_placement.head
    preserved_bytes = sum(source.tensors[number].size for number in kept)
    if kept:
        problem, plan, places = stack_on_head(source, kept, problem, plan, head)
        for number, at in zip(kept, places, strict=True):
            best.offsets[number] = at
        head = places[-1] + source.tensors[kept[-1]].size
        # If offsets are fixed, preserved inputs might fit below them, so that the bound does not grow.
        bound += 0 if model.fixed else preserved_bytes
    allowed_distances = {(pair.operand, pair.result): pair.distance for pair in best.pairs}
    with naming(path):
        data = with_offsets(with_orders(model, chosen_order.orders), best.offsets)
        violations = faults(model.data, data, best.scratch, model.fixed, allowed_distances, kept)
    if violations:
        raise VerificationError(f"{path}: the planned model does not hold: {violations[0]}")
    shared_of_pairs, buffers = shared_bytes(best.problem, best.plan.offsets), best.problem.buffers
    # A result that shares bytes with several operands counts at most its own size.
    shared_by_result = {
        result: sum(count for (one, _), count in shared_of_pairs.items() if one == result) for result, _ in shared_of_pairs
    }
    summary = Summary(
        model=model.name,
        subgraphs=len(model.subgraphs),
        operators=sum(len(graph.operators) for graph in model.subgraphs),
        tensors=sum(tensor.is_planned for tensor in source.tensors),
        head=head,
        bound=min(bound, head),
        any_order=any_order,
        kept=preserved_bytes,
        keep=tuple(kept),
        kernels=kernels,
        shared=sum(min(buffers[result].size, count) for result, count in shared_by_result.items()),
        unmodelled=unmodelled(model, kernels),
        greedy=greedy_head,
        moved=sum(at != to for steps in chosen_order.orders.values() for to, at in enumerate(steps)),
        scratch={f"{graph}:{position}": pieces for (graph, position), pieces in sorted(sizes.items()) if pieces},
        scratch_from="given" if scratch else "measured" if measured is not None else "reference kernels",
        offsets=tuple(best.offsets),
        orders=dict(chosen_order.orders),
        seconds=round(time.monotonic() - began, 3),
    )
    runtime_plan = (
        None if chosen_order.orders or kept else msgspec.structs.replace(runtime_placement.plan, problem=problem.digest)
    )
    return Planned(source, summary, data, problem, plan, runtime_plan)


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
    """Plans a model as :func:`plan_model` does, with measured scratch buffers, and runs the model with and without the plan.

    Parameters
    ----------
    run
        Whether to run the models in TFLM. If false, or if its Python package is not installed, scratch buffers are not measured
        either.
    seeds, inferences
        See :func:`stowplan.backends.tflm.runtime.run`.
    inputs
        A file with inputs for the models (:func:`stowplan.backends.tflm.inputs.read_inputs`). Inputs that it does not have are
        drawn at random.
    on_progress
        Is called with a line of text before each part of the work.
    cancel
        Ends the searches once it is set; no model is run after that.

    All other parameters are those of :func:`plan_model`.

    Returns
    -------
    (Planned, Run or None, str)
        The plan; the measurements and the comparison of outputs; and an empty text. If no model was run, the measurements are
        None, and the text gives the reason.

    Raises
    ------
    InputError, UsageError, VerificationError
        As :func:`plan_model`. InputError also if the inputs do not match the model, and VerificationError also if the runtime
        crashes while it runs the planned model.
    """
    model = _read(path, replace_offline_plan)
    measured: scratch_memory.Scratch | None = None
    user_inputs = ({}, None) if inputs is None else read_inputs(model, inputs)

    def plan(reorder: bool = reorder) -> Planned:
        return _plan(model, path, scratch, measured, reorder, kernels, keep, options or Options(time_limit=10.0), cancel)

    def run_models(planned: Planned) -> runtime.Run | None:
        is_cancelled = cancel is not None and cancel.is_set()
        if is_cancelled:
            return None
        return runtime.run(model, planned.data, keep=keep, seeds=seeds, inferences=inferences, given=user_inputs)

    why = "" if run else "--no-run was given"
    if run and runtime.version() is None:
        why = f"{runtime.WHEEL} is not installed ({to_install('tflm')})"
    if why:
        return plan(), None, why
    on_progress("tflm: measures scratch memory")
    with contextlib.suppress(UnsupportedError):
        # If an operator cannot run alone, the sizes of the reference kernels are used.
        measured = None if scratch else runtime.measured(model)
    planned = plan()
    on_progress("tflm: runs the models")
    try:
        result = run_models(planned)
        if result is not None and result.head != planned.summary.head and not scratch:
            # A kernel requests more scratch memory than was assumed, so that all operators are measured.
            measured = runtime.measured(model, every=True)
            planned = plan()
            result = run_models(planned)
        if result is not None and result.arena - planned.summary.kept > result.greedy_arena and planned.summary.moved:
            # Persistent data are allocated in the order of the operators, and another order may leave larger gaps.
            planned = plan(reorder=False)
            result = run_models(planned)
    except UnsupportedError as error:
        # Ctrl-C also ends the process of the runtime, which then looks like a failure.
        return planned, None, "interrupted" if cancel is not None and cancel.is_set() else str(error)
    return planned, result, "interrupted" if result is None else ""


def _read(path: str | Path, replace_offline_plan: bool) -> TfliteModel:
    """Reads a model; raises InputError if it contains a plan that must not be replaced."""
    model = read_tflite(path, replace_offline_plan=replace_offline_plan)
    if not replace_offline_plan and any(offset != AT_RUNTIME for offset in model.offsets):
        advice = "--set replace_offline_plan=yes plans anew, but for custom operators"
        raise InputError(f"found offsets in the model, expected none; {advice}", source=path, place=OFFLINE_PLAN)
    return model


def _scratch_sizes(
    model: TfliteModel,
    lives: Scopes,
    texts: Sequence[str],
    measured: scratch_memory.Scratch | None,
    path: str | Path,
) -> dict[tuple[int, int], tuple[int, ...]]:
    """Returns the sizes in bytes of all scratch buffers.

    The user gives them; otherwise they are measured, and otherwise they are those of the reference kernels.

    Raises InputError if the sizes for an operator are not known, and the errors of :func:`~.scratch.read_sizes`.
    """
    sizes_of, unknown = scratch_memory.of_reference_kernels(model)
    for name, sizes in (measured or {}).items():
        # A measurement gives only the sum of an operator's buffers. If it agrees with the reference kernels, their sizes are
        # used.
        if sum(map(scratch_memory.rounded, sizes_of.get(name, ()))) != sum(map(scratch_memory.rounded, sizes)):
            sizes_of[name] = tuple(sizes)
    from_user = scratch_memory.read_sizes(model, lives, texts)
    for graph, position in unknown:
        if (graph, position) in from_user or (graph, position) in (measured or {}):
            continue
        what = model.subgraphs[graph].operators[position].what
        label = f"{graph}:{position}" if graph else str(position)
        message = f"what scratch memory {what} asks for is not known; --scratch {label}=BYTES says it (0: none)"
        raise InputError(message, source=path, place=f"operator {label}")
    return sizes_of | from_user
