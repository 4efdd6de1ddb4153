"""Plans a model on a machine for a request, and compares the plan with the placement of llama.cpp's own option ``--fit``.

A *plan* is a placement: it says which layers are on which device. A request is described by these terms:

- a *slot* is one of the sequences that are generated side by side; each has a prompt and an answer
- the *context* is the number of tokens for which the caches have room
- a *micro-batch* is the tokens of a prompt that are computed at once

The plan is recommended only if its predicted time is shorter by more than predictions may err; otherwise ``--fit`` is
recommended. The *oracle* is a program built with llama.cpp's libraries, which reports how many bytes llama.cpp allocates for a
placement. A *machine file* describes the devices of a machine (:mod:`stowplan.backends.llama.machine`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from stowplan.backends.llama import flags
from stowplan.backends.llama.lowering import MICRO_BATCHES, Request, problem_of
from stowplan.backends.llama.machine import MIB, Machine, read_machine
from stowplan.backends.llama.model import ARCHITECTURES, CACHE_TYPES, Context, LanguageModel, read_model
from stowplan.backends.llama.oracle import Oracle
from stowplan.document import Document
from stowplan.errors import StowplanError, TimeLimitError, UsageError
from stowplan.kernel.context import Options
from stowplan.kernel.solve import solve
from stowplan.models.llm_placement.plan import Plan, times_of, used_bytes, used_devices
from stowplan.models.llm_placement.problem import HOST, Problem, layer_bytes
from stowplan.portfolio.llm_placement.fit import fit_plan
from stowplan.result import Result
from stowplan.tables import text_table
from stowplan.units import format_ps

FORMAT = "stowplan.llama.plan"

#: If a prompt takes more than this share of a request's time on several devices, the request is refused. The devices compute
#: the prompt as a pipeline, which the prediction does not cover.
MOST_PROMPT = 0.5

#: Maximum number of plans in one call with an oracle. If llama.cpp needs larger buffers of intermediate results for a plan than
#: were set aside, another plan is made.
REPAIRS = 4

#: Minimum time limit of each search in seconds, in a call with an oracle.
LEAST_SECONDS = 0.5

#: Names of the parts of a request's time, for people.
PARTS = {
    "device_weights": "weights on devices",
    "host_weights": "weights on the host",
    "caches": "key-value cache",
    "transfers": "transfers",
    "prompt": "prompt",
}


class DeviceUse(msgspec.Struct, frozen=True):
    """How the memory of a device, or of the host, is used; all sizes are in bytes."""

    name: str
    """Name of the device; ``CPU`` for the host."""
    layers: int
    """How many layers are placed on it."""
    weights: int
    """Size of the weights on it."""
    cache: int
    """Size of the caches of its layers."""
    compute: int
    """Size of the buffers of intermediate results, as llama.cpp reports or as it was estimated."""
    free: int
    """Size of its free memory that the placement does not use. The margin, which must stay free, is included."""


class Summary(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The recommended placement of a model on a machine for a request.

    Times are predicted, in picoseconds. All times are None if the speeds of the machine are not known.
    """

    model: str
    """Name of the model."""
    architecture: str
    """Name of its architecture in the GGUF file."""
    machine: str
    """Name of the machine."""
    context: int
    """Number of tokens for which the caches of all slots together have room."""
    prompt: int
    """Number of tokens of the prompt of each slot."""
    generate: int
    """Number of tokens of the answer of each slot."""
    slots: int
    """Number of sequences that are generated side by side."""
    recommended: Literal["plan", "fit"]
    """Whether ``command`` has the options of the plan, or leaves the placement to llama.cpp's ``--fit``."""
    reason: str
    """Why this is recommended, in one line for people."""
    command: tuple[str, ...]
    """Options for llama.cpp; each entry is a word of a command line."""
    request_ps: int | None
    """Time of the request with ``command``."""
    plan_ps: int | None
    """Time of the request with the plan."""
    fit_ps: int | None
    """Time of the request with the placement of ``--fit``; None also if ``--fit`` finds no placement."""
    bound_ps: int | None
    """Proven lower bound on the time of every placement, by the model of the machine; None also if nothing is proven."""
    is_proven: bool
    """Whether it is proven that no placement takes less time than the plan."""
    error: float | None
    """Relative error of predicted times, from the calibration of the machine; None if it was not calibrated."""
    devices: tuple[DeviceUse, ...]
    """The host and all devices."""
    parts: dict[str, int]
    """The parts of ``request_ps`` by name, in picoseconds; empty if times are not known."""
    fit_parts: dict[str, int]
    """The parts of ``fit_ps`` by name, in picoseconds; empty if that time is not known."""
    unknown: tuple[str, ...]
    """One line for each assumption of the predictions, and for each warning of the search."""
    file: str = ""
    """Path of the model file."""
    format: str = FORMAT
    version: int = 1


@dataclass(frozen=True)
class Planned:
    """The recommended placement, with the inputs and the result of the search."""

    summary: Summary
    """The placement as options, with its figures."""
    model: LanguageModel
    """The model."""
    machine: Machine
    """The machine."""
    problem: Problem
    """The problem of LLM placement."""
    plan: Plan
    """The recommended placement, as a plan of the problem."""
    fit: Plan | None
    """The placement of ``--fit``; None if it finds none."""
    result: Result | None
    """The result of the search; None if the speeds of the machine are not known."""


def plan(
    model: str | Path,
    machine: str | Path | Machine,
    *,
    context: int,
    prompt: int,
    generate: int,
    slots: int = 1,
    key_type: str = "f16",
    value_type: str = "f16",
    micro_batches: Sequence[int] = MICRO_BATCHES,
    oracle: str | Path | None = None,
    options: Options | None = None,
    cancel: threading.Event | None = None,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Planned:
    """Places a model on a machine for a request.

    Parameters
    ----------
    model
        A GGUF file. If the model is split into several files, one of them.
    machine
        A machine, or the path of a machine file. If the speeds of the machine or their error are not known, nothing is
        searched, and the placement of ``--fit`` is recommended.
    context
        Number of tokens for which the caches of all slots together have room.
    prompt, generate
        Number of tokens of the prompt and of the answer of each slot.
    slots
        Number of sequences that are generated side by side, 1 or more.
    key_type, value_type
        Types of the cache, as ``-ctk`` and ``-ctv`` take them. No other types are tried, because the answers of the model
        depend on them.
    micro_batches
        Sizes of micro-batches (``-ub``) in tokens among which the plan chooses, llama.cpp's default first.
    oracle
        Path of the oracle, which is built from ``oracle.cpp``. If it is None, the sizes of buffers of intermediate results are
        taken from the machine file, or are estimated. The devices must be those of the machine on which this runs, since
        the oracle does not connect to RPC servers.
    options
        Time limit, candidates, seed, workers and determinism of the search; other options are ignored. None means 10 s with
        heuristic and exact candidates.
    cancel
        Ends the search once it is set; the best plan so far is returned.
    on_progress
        A function that is called with a line of text before each start of the oracle.

    Returns
    -------
    Planned
        The recommended placement. Its options were read back, and place the model as the plan does.

    Raises
    ------
    InputError
        A file cannot be read or is invalid.
    UsageError
        An argument is invalid, or the architecture is not supported. The context is too small for the request, or larger than
        that of the model. A prompt takes too large a share of the request on several devices.
    DoesNotFitError
        It is proven that the model does not fit on the machine, or ``--fit`` finds no placement and nothing was searched.
    TimeLimitError
        No plan was found within the time limit.
    StowplanError
        The oracle cannot be used, or llama.cpp needed larger buffers than were set aside for each of :data:`REPAIRS` plans. It
        is also raised if the options of a plan, when they are read back, place the model in another way.
    """
    language = read_model(model)
    machine_data = machine if isinstance(machine, Machine) else read_machine(machine)
    for name in (key_type, value_type):
        if name not in CACHE_TYPES:
            raise UsageError(f"found the cache type {name!r}, expected one of {', '.join(CACHE_TYPES)}")
    if ARCHITECTURES[language.architecture].latent and key_type != value_type:
        raise UsageError(
            f"found the cache types {key_type} and {value_type}, expected the same twice: {language.architecture} keeps keys "
            "and values in one row"
        )
    request = Request(context, prompt, generate, slots, key_type, value_type)
    if oracle is not None and not os.access(oracle, os.X_OK):
        raise UsageError(f"found the oracle {str(oracle)!r}, expected a program built from stowplan's oracle.cpp")
    measure = None if oracle is None else Oracle(Path(oracle), language.path)
    compute: dict[tuple[str, int], int] = {}
    if machine_data.unmeasured or machine_data.error is None:
        return _by_memory(language, machine_data, request, micro_batches[:1])
    search_options = options or Options(time_limit=10.0, candidates=("heuristic", "exact"))
    remaining = search_options.time_limit
    for _ in range(REPAIRS):
        problem = problem_of(language, machine_data, request, micro_batches, compute)
        result = solve(
            problem,
            # A part of the time is left for another plan, in case llama.cpp's buffers are larger than was assumed.
            time_limit=remaining if measure is None else max(remaining / 2, LEAST_SECONDS),
            candidates=search_options.candidates or ("heuristic", "exact"),
            seed=search_options.seed,
            workers=search_options.workers,
            deterministic=search_options.deterministic,
            cancel=cancel,
        )
        remaining -= result.seconds
        if result.plan is None:
            raise _nothing_fits(problem, result)
        baseline = fit_plan(problem)
        if measure is None:
            return _judged(language, machine_data, request, problem, result, result.plan, baseline, False)
        on_progress("asking the runtime for the size of its buffers")
        grown = [_grown(problem, placed, measure, request, compute) for placed in (result.plan, baseline) if placed is not None]
        if not any(grown):
            return _judged(language, machine_data, request, problem, result, result.plan, baseline, True)
    raise StowplanError(f"the runtime asks for larger buffers than were set aside, in {REPAIRS} plans one after the other")


def _by_memory(model: LanguageModel, machine: Machine, request: Request, sizes: Sequence[int]) -> Planned:
    """Returns the placement of ``--fit``, which is recommended if the speeds of the machine or their error are not known.

    Raises DoesNotFitError if ``--fit`` finds no placement.
    """
    problem = problem_of(model, machine, request, sizes)
    placed = fit_plan(problem)
    if placed is None:
        raise DoesNotFitError(f"--fit would find no placement of {model.name} on {machine.name}: it does not fit")
    missing = ", ".join(machine.unmeasured) or "predicted request times"
    reason = (
        f"this is what --fit places: {'the speeds of ' if machine.unmeasured else 'the error of '}{missing} "
        "are not known. 'stowplan llm calibrate' measures them"
    )
    summary = _summary(model, machine, request, problem, placed, None, None, "fit", reason, False)
    return Planned(summary, model, machine, problem, placed, placed, None)


def _judged(
    model: LanguageModel,
    machine: Machine,
    request: Request,
    problem: Problem,
    result: Result,
    best: Plan,
    baseline: Plan | None,
    is_measured: bool,
) -> Planned:
    """Recommends the best plan, or the placement of ``--fit`` if the plan does not gain more than predictions may err.

    Parameters
    ----------
    best, baseline
        The best plan, and the placement of ``--fit``; None if ``--fit`` finds none.
    is_measured
        Whether the oracle has reported the sizes of buffers.

    Raises
    ------
    UsageError
        A prompt takes too large a share of the request on several devices, with either placement.
    """
    error = machine.error or 0.0
    placed: Plan = best
    recommended: Literal["plan", "fit"] = "plan"
    if baseline is None:
        reason = "--fit finds no placement for this context"
    elif baseline.objective <= best.objective * (1 + error):
        placed, recommended = baseline, "fit"
        gain = baseline.objective / best.objective - 1
        reason = f"the best placement would gain {gain:.1%}, no more than the error of predictions, {error:.0%}: --fit is kept"
    else:
        reason = (
            f"{baseline.objective / best.objective:.2f} times as fast as what --fit places, by the speeds that were measured"
        )
    for other in (best, baseline):
        if other is not None and _is_pipelined(problem, other):
            raise UsageError(
                f"found a prompt of {request.prompt} tokens, which takes {_prompt_share(problem, other):.0%} of the request on "
                "several devices. They compute it side by side, which the prediction does not know: expected a shorter prompt, "
                "a longer answer, or one device"
            )
    summary = _summary(
        model,
        machine,
        request,
        problem,
        placed,
        best,
        baseline,
        recommended,
        reason,
        is_measured,
        result,
    )
    return Planned(summary, model, machine, problem, placed, baseline, result)


def _is_pipelined(problem: Problem, plan: Plan) -> bool:
    """Whether several devices would compute a prompt as a pipeline, and the prompt takes much of the request.

    They do so if the prompt has several micro-batches and everything is on devices: all layers, with all their parts.
    """
    is_whole = HOST not in plan.memories and not any(plan.spilled) and len(used_devices(plan.memories)) > 1
    return is_whole and problem.micro_batches[plan.micro_batch].batches > 1 and _prompt_share(problem, plan) > MOST_PROMPT


def _prompt_share(problem: Problem, plan: Plan) -> float:
    """Returns the share of the request's time that its prompt takes."""
    return times_of(problem, plan).prompt / max(1, plan.objective)


def _summary(
    model: LanguageModel,
    machine: Machine,
    request: Request,
    problem: Problem,
    placed: Plan,
    best: Plan | None,
    baseline: Plan | None,
    recommended: Literal["plan", "fit"],
    reason: str,
    is_measured: bool,
    result: Result | None = None,
) -> Summary:
    """Returns the summary of a recommended placement; its options are read back and compared with the placement.

    Parameters
    ----------
    placed
        The recommended placement.
    best, baseline
        The best plan, and the placement of ``--fit``; None if there is none.
    """
    size = problem.micro_batches[placed.micro_batch].size
    context = Context(request.context, request.slots, size, request.key_type, request.value_type)
    words = flags.command_of(problem, placed, context)
    checked = _checked(model, machine, problem, placed, words)
    if recommended == "fit":
        # The options leave the placement to llama.cpp, because the one computed here may differ from llama.cpp's by a layer.
        words = flags.fit_command_of(context, [device.margin for device in machine.devices])
    has_times = best is not None
    unknown = [] if is_measured else ["sizes of the buffers of intermediate results were estimated; --oracle asks the runtime"]
    unknown += [f"{name} has no measured speed" for name in machine.unmeasured]
    unknown += result.warnings if result is not None else ()
    bound = result.bound if result is not None else None
    return Summary(
        model=model.name,
        architecture=model.architecture,
        machine=machine.name,
        context=request.context,
        prompt=request.prompt,
        generate=request.generate,
        slots=request.slots,
        recommended=recommended,
        reason=reason,
        command=tuple(words),
        request_ps=placed.objective if has_times else None,
        plan_ps=None if best is None else best.objective,
        fit_ps=None if baseline is None or not has_times else baseline.objective,
        bound_ps=bound,
        is_proven=best is not None and bound == best.objective,
        error=machine.error,
        devices=tuple(_uses(problem, placed, checked)),
        parts=times_of(problem, placed)._asdict() if has_times else {},
        fit_parts=times_of(problem, baseline)._asdict() if baseline is not None and has_times else {},
        unknown=tuple(unknown),
        file=str(model.path),
    )


def _checked(model: LanguageModel, machine: Machine, problem: Problem, placed: Plan, words: Sequence[str]) -> flags.Placement:
    """Returns the placement that results from options; raises StowplanError if it is not that of the plan."""
    devices = machine.devices
    read_back = flags.placement_of(model, words, [device.name for device in devices], [device.free for device in devices])
    names = [device.name for device in problem.memories]
    if read_back.layers != [names[memory] for memory in placed.memories]:
        raise StowplanError(f"the options {flags.text_of(words)} do not place the layers as the plan does")
    weights = used_bytes(problem, placed.memories, placed.spilled)
    weights[HOST] += problem.host_bytes
    for layer, memory in zip(problem.layers, placed.memories, strict=True):
        weights[memory] -= layer.cache_bytes
    for name, size in read_back.weights.items():
        expected = weights[names.index(name)]
        if expected != size:
            raise StowplanError(f"the options put {size:,} bytes of weights on {name}, the plan {expected:,}")
    return read_back


def _uses(problem: Problem, placed: Plan, read_back: flags.Placement) -> list[DeviceUse]:
    """Returns the use of each memory by a plan, from the placement that results from its options."""
    rows = []
    for memory, device in enumerate(problem.memories):
        if memory != HOST and device.name not in read_back.devices:
            rows.append(DeviceUse(device.name, 0, 0, 0, 0, device.capacity))
            continue
        weights, cache = read_back.weights[device.name], read_back.caches[device.name]
        compute = device.compute_bytes[placed.micro_batch]
        rows.append(
            DeviceUse(
                device.name, placed.memories.count(memory), weights, cache, compute, device.capacity - weights - cache - compute
            )
        )
    return rows


def _grown(problem: Problem, placed: Plan, oracle: Oracle, request: Request, compute: dict[tuple[str, int], int]) -> bool:
    """Ask the oracle for the sizes of llama.cpp's buffers with a plan, and record them in ``compute``.

    Returns whether a buffer is larger than the problem has set aside for it. Raises StowplanError if the oracle cannot be used
    or reports no buffer of a device in use.
    """
    size = problem.micro_batches[placed.micro_batch].size
    context = Context(request.context, request.slots, size, request.key_type, request.value_type)
    names = [problem.memories[memory].name for memory in used_devices(placed.memories)]
    reported = oracle.compute_bytes(flags.command_of(problem, placed, context))
    grown = False
    for device in problem.memories:
        is_used = device.name == problem.host.name or device.name in names
        if is_used and device.name not in reported:
            raise StowplanError(f"the oracle says nothing of {device.name}: is that device there?")
        if device.name in reported:
            grown |= reported[device.name] > device.compute_bytes[placed.micro_batch]
            compute[device.name, size] = max(reported[device.name], compute.get((device.name, size), 0))
    return grown


class DoesNotFitError(StowplanError):
    """It is proven that the model does not fit on the machine, or ``--fit`` finds no placement and nothing was searched."""

    exit_code = 1


def _nothing_fits(problem: Problem, result: Result) -> StowplanError:
    """Returns the error that says why there is no plan.

    It is a DoesNotFitError if it is proven that no plan exists, otherwise a TimeLimitError.
    """
    total = problem.host_bytes + sum(map(layer_bytes, problem.layers))
    room = sum(max(0, problem.room(memory, 0)) for memory in range(len(problem.memories))) + problem.host_bytes
    if result.status != "infeasible":
        return TimeLimitError("no placement was found within the time limit")
    sizes = f"the model and its caches take {total / MIB:,.0f} MiB, and {room / MIB:,.0f} MiB may be used"
    return DoesNotFitError(f"nothing fits: {sizes}. A shorter context (--ctx) or a smaller cache type (-ctk, -ctv) takes less")


def lines_of(summary: Summary) -> list[str]:
    """Returns a summary as lines of text for people."""
    rows = [
        (use.name, str(use.layers), *(f"{size / MIB:,.0f}" for size in (use.weights, use.cache, use.compute, use.free)))
        for use in summary.devices
    ]
    lines = [
        f"llm {summary.model} ({summary.architecture}) on {summary.machine}: prompt of {summary.prompt:,} tokens, "
        f"{summary.generate:,} generated" + (f", {summary.slots} slots" if summary.slots > 1 else ""),
        f"  options    {flags.text_of(summary.command)}",
        f"  why        {summary.reason}",
    ]
    lines += text_table(("device", "layers:r", "weights, MiB:r", "cache, MiB:r", "compute, MiB:r", "free, MiB:r"), rows)
    if summary.request_ps is not None:
        proof = "proven to be the least" if summary.is_proven else f"proven to be at least {format_ps(summary.bound_ps or 0)}"
        lines.append(f"  best       {format_ps(summary.plan_ps or 0)} for the request, {proof} by the measured speeds")
        head = ["seconds", "this:r"]
        table = [("all", f"{summary.request_ps / 1e12:,.3f}")]
        table += [(name, _seconds(summary.parts[key])) for key, name in PARTS.items()]
        if summary.fit_ps is not None:
            head.append("--fit:r")
            others = [summary.fit_ps, *(summary.fit_parts[key] for key in PARTS)]
            both = [(*row, _seconds(value)) for row, value in zip(table, others, strict=True)]
            lines += text_table(head, both)
        else:
            lines += text_table(head, table)
    lines += [f"  assumed    {line}" for line in summary.unknown]
    return lines


def _seconds(picoseconds: int) -> str:
    """Returns a time in seconds, as text."""
    # Parts of a time may be a few nanoseconds below 0 because of rounding.
    return f"{max(0, picoseconds) / 1e12:,.3f}"
