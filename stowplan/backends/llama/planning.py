"""The plan of a model on a machine for a request, beside llama.cpp's own ``--fit``, and whether it is worth using."""

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

#: Part of a request's time from which a prompt on several devices is refused: they compute it side by side.
MOST_PROMPT = 0.5

#: Times that a plan is made again with larger buffers, where the runtime asks for more than was set aside.
REPAIRS = 4

#: Seconds that a plan gets at least.
LEAST_SECONDS = 0.5

#: What the parts of a request's time are called.
PARTS = {
    "device_weights": "weights on devices",
    "host_weights": "weights on the host",
    "caches": "key-value cache",
    "transfers": "transfers",
    "prompt": "prompt",
}


class DeviceUse(msgspec.Struct, frozen=True):
    """Bytes of one device, or of the host."""

    name: str
    layers: int
    weights: int
    cache: int
    compute: int
    """Buffers of intermediate results: measured, or set aside."""
    free: int
    """What is left of its memory, the margin among it."""


class Summary(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What was planned for a model, a machine and a request."""

    model: str
    architecture: str
    machine: str
    context: int
    prompt: int
    generate: int
    slots: int
    recommended: Literal["plan", "fit"]
    """Whose options ``command`` has: the plan's, or those of ``--fit``, which is llama.cpp's default."""
    reason: str
    command: tuple[str, ...]
    """Options for llama.cpp, one entry a word."""
    request_ps: int | None
    """Time of the request with ``command``; None where the machine's speeds are not known."""
    plan_ps: int | None
    """With the plan."""
    fit_ps: int | None
    """With ``--fit``; None also where it fits nothing."""
    bound_ps: int | None
    """Proven: no placement takes less, by the model of the machine."""
    is_proven: bool
    error: float | None
    """Relative error of predicted times, as calibration found it."""
    devices: tuple[DeviceUse, ...]
    parts: dict[str, int]
    """What the time consists of, in picoseconds."""
    fit_parts: dict[str, int]
    unknown: tuple[str, ...]
    """What was assumed."""
    file: str = ""
    """Path of the model."""
    format: str = FORMAT
    version: int = 1


@dataclass(frozen=True)
class Planned:
    """A plan with all that it was made of."""

    summary: Summary
    model: LanguageModel
    machine: Machine
    problem: Problem
    plan: Plan
    """The placement that is recommended."""
    fit: Plan | None
    """The placement of ``--fit``; None where it finds none."""
    result: Result | None
    """Of solving; None where the machine's speeds are not known."""


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
    """Place a model on a machine for a request.

    Parameters
    ----------
    model
        A GGUF file. If the model is split into several files, the first one.
    machine
        A machine file (:mod:`stowplan.backends.llama.machine`).
    context
        Tokens that the caches of all slots hold together.
    prompt, generate
        Tokens of the prompt and of the answer of each slot.
    slots
        Sequences side by side.
    key_type, value_type
        Types of the cache, as ``-ctk`` and ``-ctv`` take them. They change what the model says, so that no other is tried.
    micro_batches
        Choices of ``-ub``, llama.cpp's default first.
    oracle
        A program built from ``oracle.cpp`` with the runtime itself, which says how large its buffers are. Without it they are
        estimated.
    options
        Time limit and other options of the search.
    cancel
        Setting it returns the best plan so far.
    on_progress
        Called with lines about the progress.

    Raises
    ------
    InputError, UsageError
        A file that cannot be read, a request that cannot be, or one that the model of the machine does not cover.
    StowplanError
        Nothing fits, or no plan was found within the limit.
    """
    language = read_model(model)
    made = machine if isinstance(machine, Machine) else read_machine(machine)
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
    measure = None if oracle is None else Oracle(Path(oracle), language.path, made)
    compute: dict[tuple[str, int], int] = {}
    if made.unmeasured or made.error is None:
        return _by_memory(language, made, request, micro_batches[:1])
    chosen = options or Options(time_limit=10.0, candidates=("heuristic", "exact"))
    left = chosen.time_limit
    for _ in range(REPAIRS):
        problem = problem_of(language, made, request, micro_batches, compute)
        result = solve(
            problem,
            # Some is kept for another plan, in case that the runtime's buffers are larger than was assumed.
            time_limit=left if measure is None else max(left / 2, LEAST_SECONDS),
            candidates=chosen.candidates or ("heuristic", "exact"),
            seed=chosen.seed,
            workers=chosen.workers,
            deterministic=chosen.deterministic,
            cancel=cancel,
        )
        left -= result.seconds
        if result.plan is None:
            raise _nothing_fits(problem, result)
        own = fit_plan(problem)
        if measure is None:
            return _judged(language, made, request, problem, result, result.plan, own, False)
        on_progress("asking the runtime for the size of its buffers")
        grown = [_grown(problem, placed, measure, request, compute) for placed in (result.plan, own) if placed is not None]
        if not any(grown):
            return _judged(language, made, request, problem, result, result.plan, own, True)
    raise StowplanError(f"the runtime asks for larger buffers than were set aside, in {REPAIRS} plans one after the other")


def _by_memory(model: LanguageModel, machine: Machine, request: Request, sizes: Sequence[int]) -> Planned:
    """What ``--fit`` places, where speeds are not known."""
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
    own: Plan | None,
    is_measured: bool,
) -> Planned:
    """The best plan, or the placement of ``--fit``, ``own``, if the plan does not gain more than predictions may err."""
    error = machine.error or 0.0
    placed: Plan = best
    recommended: Literal["plan", "fit"] = "plan"
    if own is None:
        reason = "--fit finds no placement for this context"
    elif own.objective <= best.objective * (1 + error):
        placed, recommended = own, "fit"
        gain = own.objective / best.objective - 1
        reason = f"the best placement would gain {gain:.1%}, no more than the error of predictions, {error:.0%}: --fit is kept"
    else:
        reason = f"{own.objective / best.objective:.2f} times as fast as what --fit places, by the speeds that were measured"
    for other in (best, own):
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
        own,
        recommended,
        reason,
        is_measured,
        result,
    )
    return Planned(summary, model, machine, problem, placed, own, result)


def _is_pipelined(problem: Problem, plan: Plan) -> bool:
    """Whether devices would compute a prompt side by side, and that counts: all layers on several devices, nothing spilled."""
    is_whole = HOST not in plan.memories and not any(plan.spilled) and len(used_devices(plan.memories)) > 1
    return is_whole and problem.micro_batches[plan.micro_batch].batches > 1 and _prompt_share(problem, plan) > MOST_PROMPT


def _prompt_share(problem: Problem, plan: Plan) -> float:
    return times_of(problem, plan).prompt / max(1, plan.objective)


def _summary(
    model: LanguageModel,
    machine: Machine,
    request: Request,
    problem: Problem,
    placed: Plan,
    best: Plan | None,
    own: Plan | None,
    recommended: Literal["plan", "fit"],
    reason: str,
    is_measured: bool,
    result: Result | None = None,
) -> Summary:
    size = problem.micro_batches[placed.micro_batch].size
    context = Context(request.context, request.slots, size, request.key_type, request.value_type)
    words = flags.command_of(problem, placed, context)
    checked = _checked(model, machine, problem, placed, words)
    if recommended == "fit":
        # The runtime's own placement, not our copy of its rules, which may differ by a layer.
        words = flags.fit_command_of(context, [device.margin for device in machine.devices])
    known = best is not None
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
        request_ps=placed.objective if known else None,
        plan_ps=None if best is None else best.objective,
        fit_ps=None if own is None or not known else own.objective,
        bound_ps=bound,
        is_proven=best is not None and bound == best.objective,
        error=machine.error,
        devices=tuple(_uses(problem, placed, checked)),
        parts=times_of(problem, placed)._asdict() if known else {},
        fit_parts=times_of(problem, own)._asdict() if own is not None and known else {},
        unknown=tuple(unknown),
        file=str(model.path),
    )


def _checked(model: LanguageModel, machine: Machine, problem: Problem, placed: Plan, words: Sequence[str]) -> flags.Placement:
    """What the options mean, read from their text; raises StowplanError where that is not the plan."""
    devices = machine.devices
    meant = flags.placement_of(model, words, [device.name for device in devices], [device.free for device in devices])
    names = [device.name for device in problem.memories]
    if meant.layers != [names[memory] for memory in placed.memories]:
        raise StowplanError(f"the options {flags.text_of(words)} do not place the layers as the plan does")
    weights = used_bytes(problem, placed.memories, placed.spilled)
    weights[HOST] += problem.host_bytes
    for layer, memory in zip(problem.layers, placed.memories, strict=True):
        weights[memory] -= layer.cache_bytes
    for name, size in meant.weights.items():
        expected = weights[names.index(name)]
        if expected != size:
            raise StowplanError(f"the options put {size:,} bytes of weights on {name}, the plan {expected:,}")
    return meant


def _uses(problem: Problem, placed: Plan, meant: flags.Placement) -> list[DeviceUse]:
    rows = []
    for memory, device in enumerate(problem.memories):
        if memory != HOST and device.name not in meant.devices:
            rows.append(DeviceUse(device.name, 0, 0, 0, 0, device.capacity))
            continue
        weights, cache = meant.weights[device.name], meant.caches[device.name]
        compute = device.compute_bytes[placed.micro_batch]
        rows.append(
            DeviceUse(
                device.name, placed.memories.count(memory), weights, cache, compute, device.capacity - weights - cache - compute
            )
        )
    return rows


def _grown(problem: Problem, placed: Plan, oracle: Oracle, request: Request, compute: dict[tuple[str, int], int]) -> bool:
    """Set aside what the runtime asks for; whether a device has less room than it asks for."""
    size = problem.micro_batches[placed.micro_batch].size
    context = Context(request.context, request.slots, size, request.key_type, request.value_type)
    names = [problem.memories[memory].name for memory in used_devices(placed.memories)]
    asked = oracle.compute_bytes(flags.command_of(problem, placed, context))
    grown = False
    for device in problem.memories:
        is_used = device.name == problem.host.name or device.name in names
        if is_used and device.name not in asked:
            raise StowplanError(f"the oracle says nothing of {device.name}: is that device there?")
        if device.name in asked:
            grown |= asked[device.name] > device.compute_bytes[placed.micro_batch]
            compute[device.name, size] = max(asked[device.name], compute.get((device.name, size), 0))
    return grown


class DoesNotFitError(StowplanError):
    """It is proven that the model does not fit on the machine."""

    exit_code = 1


def _nothing_fits(problem: Problem, result: Result) -> StowplanError:
    """Why there is no plan."""
    total = problem.host_bytes + sum(map(layer_bytes, problem.layers))
    room = sum(max(0, problem.room(memory, 0)) for memory in range(len(problem.memories))) + problem.host_bytes
    if result.status != "infeasible":
        return TimeLimitError("no placement was found within the time limit")
    sizes = f"the model and its caches take {total / MIB:,.0f} MiB, and {room / MIB:,.0f} MiB may be used"
    return DoesNotFitError(f"nothing fits: {sizes}. A shorter context (--ctx) or a smaller cache type (-ctk, -ctv) takes less")


def lines_of(summary: Summary) -> list[str]:
    """A summary for people."""
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
    # Rounding may leave a few nanoseconds below nothing.
    return f"{max(0, picoseconds) / 1e12:,.3f}"
