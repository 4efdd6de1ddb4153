"""Training within five memory limits a model, beside torch's own partitioner at twenty budgets.

    pip install '.[learned]'
    python -m benchmarks.torch_memory.limits [--models llama16,gpt8] [--time-limit 20] [--budgets 20] [-o FILE.jsonl]

Parameters and gradients count. Limits are even between the least peak found and eager's, both included. Every plan runs: peaks
are measured during a step, gradients are compared with eager's. ``stock`` is the cheapest of torch's plans within the limit,
over all budgets and both solvers, measured alike; ``greedy`` one simulation; ``checkpoints`` a checkpoint a layer. A line of
JSON is written for each model; those that are there are not run again. ``--table`` prints what docs/results/torch-memory.md
shows.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import torch
from torch._functorch import config

from benchmarks.lib.tables import table
from benchmarks.torch_memory.models import MODELS, Decoder
from stowplan.backends.torch import MemoryLimitError, backend, costs, measure_peak, stock
from stowplan.backends.torch.partition import prepared
from stowplan.backends.torch.reader import Counted, Reading, read
from stowplan.models.rematerialization.structure import build
from stowplan.models.rematerialization.verify import verify
from stowplan.portfolio.rematerialization.greedy import simulate
from stowplan.portfolio.rematerialization.peaks import least_peak

#: Shares of the way from the least peak to eager's.
PLACES = (0.0, 0.25, 0.5, 0.75, 1.0)

#: What torch's own partitioner made of the model that was traced last.
HALVES: list[Any] = []

#: Budgets at which the integer program of torch's is run, too.
ILP_BUDGETS = (0.3, 0.15)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="names, separated by commas")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds of planning for each limit")
    parser.add_argument("--budgets", type=int, default=20, help="how many budgets of torch's, evenly from 0 to 1")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--without-ilp", action="store_true", help="leave out torch's integer program: it may take minutes")
    parser.add_argument("--limits", help="bytes in place of the five limits, separated by commas")
    parser.add_argument("--without-parameters", action="store_true", help="inputs do not count: parameters and the batch")
    parser.add_argument("-o", "--output", type=Path, default=Path("out/torch_memory.jsonl"))
    parser.add_argument("--table", action="store_true", help="print tables of what the file has, and run nothing")
    parser.add_argument("--problems", type=Path, help="a folder for the problems of all limits in the file; nothing is run")
    parser.add_argument("--least", action="store_true", help="only the least peak found and its bound, in MB; no model runs")
    options = parser.parse_args()
    if options.least:
        for name in options.models.split(","):
            plan, bound = least_peak(joint(name)[0].problem, seconds=2 * options.time_limit)
            print(f"{name}: {plan.peak / 1e6:.2f}, bound {bound / 1e6:.2f}", flush=True)
        return
    if options.problems:
        for each in lines(options.output):
            save(each, options.problems)
        return
    if not options.table:
        measure(options.models.split(","), run, options)
    print(tables(lines(options.output)))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def measure(
    names: Iterable[str], run: Callable[[str, argparse.Namespace], dict[str, Any]], options: argparse.Namespace
) -> None:
    """Append a line for each model that the file does not have."""
    options.output.parent.mkdir(parents=True, exist_ok=True)
    known = {each["model"] for each in lines(options.output)}
    for name in names:
        if name not in known:
            with options.output.open("a") as file:
                file.write(json.dumps(run(name, options)) + "\n")


def run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """All figures of one model."""
    model, inputs = MODELS[name]()
    counted = Counted(parameters=not options.without_parameters)
    present = (model, inputs) if counted.parameters else ()
    expected, eager = step(model, lambda: model(*inputs), present)
    found: dict[str, Any] = {"model": name, "eager": eager, "torch": torch.__version__, "time_limit": options.time_limit}
    module, joint_inputs, kwargs = traced(model, inputs)
    reading = read(prepared(module).graph, kwargs["num_fwd_outputs"], counted)
    structure = build(reading.problem)
    found |= {"operators": len(reading.nodes), "flops": sum(reading.flops), "given": structure.made(structure.order).peak}
    plan, bound = least_peak(reading.problem, seconds=2 * options.time_limit)
    found |= {"least": plan.peak, "least_bound": bound}
    found["stock"] = sweep(module, joint_inputs, kwargs, reading, options.budgets, not options.without_ilp)
    if isinstance(model, Decoder):
        found["checkpoints"] = checkpoints(model, inputs, present)
    report(name, f"{len(reading.nodes)} operators, least {plan.peak / 1e6:.1f} MB of {eager / 1e6:.1f}")
    found["limits"] = []
    least = plan.peak
    limits = [least + int((eager - least) * place) for place in PLACES]
    for limit in map(int, options.limits.split(",")) if options.limits else limits:
        each = within(model, inputs, present, limit, expected, options)
        greedy = simulate(structure, structure.order, limit)
        each["greedy"] = None if greedy is None else judged(reading, structure, greedy)
        fitting = [one for one in found["stock"] if one["peak"] <= limit]
        each["stock"] = min(fitting, key=lambda one: one["cost"], default=None)
        found["limits"].append(each)
        report(name, json.dumps(each))
    return found


def save(found: dict[str, Any], folder: Path) -> None:
    """Write a model's problem with each of its limits."""
    folder.mkdir(parents=True, exist_ok=True)
    problem = joint(found["model"])[0].problem
    for at, each in enumerate(found["limits"]):
        msgspec.structs.replace(problem, limit=each["limit"]).save(folder / f"{found['model']}-{at}.json")


def report(name: str, text: str) -> None:
    print(f"# {name}: {text}", flush=True)


def step(model: Any, function: Any, present: Any) -> tuple[list[torch.Tensor], int]:
    """Gradients of a step, and the bytes that were live at its peak."""
    # Not as tensors: what is live beside a graph counts within a limit.
    state = {key: value.numpy().copy() for key, value in model.state_dict().items()}
    model.zero_grad(set_to_none=True)
    torch.manual_seed(7)
    peak = measure_peak(lambda: function().backward(), *present)
    made = [each.grad for each in model.parameters() if each.grad is not None]
    model.zero_grad(set_to_none=True)
    for key, value in model.state_dict().items():
        value.numpy()[...] = state[key]
    return made, peak


def joint(name: str) -> tuple[Reading, Any]:
    """The reading of a model, and its structure."""
    return joint_of(*MODELS[name]())


def joint_of(model: Any, inputs: Any) -> tuple[Reading, Any]:
    """The same of one at hand."""
    module, _, kwargs = traced(model, inputs)
    reading = read(prepared(module).graph, kwargs["num_fwd_outputs"])
    return reading, build(reading.problem)


def traced(model: Any, inputs: Any) -> tuple[Any, Any, dict[str, Any]]:
    """The joint module of a model, and what else its partitioner is given."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import boxed_nop

    seen: list[Any] = []

    def partition(module: Any, joint_inputs: Any, **kwargs: Any) -> Any:
        seen.append((torch.fx.GraphModule(module, stock.copied(module.graph)), joint_inputs, kwargs))
        HALVES[:] = [stock.partition(module, joint_inputs, kwargs)]
        return HALVES[-1]

    torch._dynamo.reset()
    compiled = aot_autograd(fw_compiler=boxed_nop, partition_fn=partition, keep_inference_input_mutations=True)
    torch.compile(model, backend=compiled)(*inputs)
    (only,) = seen
    return only  # type: ignore[no-any-return]


def judged(reading: Reading, structure: Any, sequence: list[int]) -> dict[str, Any] | None:
    """Peak, added cost and added floating-point operations of a sequence; None where it breaks a rule."""
    plan = structure.made(sequence)
    if not verify(structure.problem, plan).ok:
        return None
    return {"peak": plan.peak, "cost": plan.objective * reading.unit, "flops": reading.added_flops(sequence)}


def sweep(module: Any, joint_inputs: Any, kwargs: Any, reading: Reading, budgets: int, with_ilp: bool) -> list[dict[str, Any]]:
    """Torch's plans at budgets from 1 to 0 by its default solver, and at some by its integer program."""
    structure = build(reading.problem)
    found = []
    tried = [("dp", 1 - at / max(1, budgets - 1)) for at in range(budgets)]
    tried += [("ilp", each) for each in ILP_BUDGETS if with_ilp]
    for solver, budget in tried:
        with config.patch(activation_memory_budget_solver=solver):
            for each in stock.plans(module, reading, joint_inputs, kwargs, [budget]):
                made = None if each.sequence is None else judged(reading, structure, each.sequence)
                if made is not None:
                    found.append({"solver": solver, "budget": budget, **made})
    return found


def checkpoints(model: Decoder, inputs: Any, present: Any) -> dict[str, Any]:
    """A checkpoint a layer: measured peak, and what runs more than without, by the formulas."""
    from torch.utils.checkpoint import checkpoint

    model.around = lambda block, x: checkpoint(block, x, use_reentrant=False)
    try:
        module, halves = traced(model, inputs)[0], HALVES[-1]
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="aot_eager")
        step(model, lambda: compiled(*inputs), present)
        _, peak = step(model, lambda: compiled(*inputs), present)
    finally:
        model.around = lambda block, x: block(x)

    def flops(graph: Any) -> int:
        return sum(costs.flops(node) for node in graph.nodes if node.op == "call_function")

    return {"peak": peak, "flops": sum(flops(half.graph) for half in halves) - flops(prepared(module, False).graph)}


def within(model: Any, inputs: Any, present: Any, limit: int, expected: Any, options: argparse.Namespace) -> dict[str, Any]:
    """What comes of one limit when it is planned and run."""
    torch._dynamo.reset()
    made = backend(limit, outside=0, parameters=bool(present), time_limit=options.time_limit, workers=options.workers)
    compiled = torch.compile(model, backend=made)
    began = time.monotonic()
    try:
        step(model, lambda: compiled(*inputs), present)
    except torch._dynamo.exc.BackendCompilerFailed as error:
        if not isinstance(error.inner_exception, MemoryLimitError):
            raise
        return {"limit": limit, "error": str(error.inner_exception), "seconds": round(time.monotonic() - began, 1)}
    seconds = time.monotonic() - began
    gradients, peak = step(model, lambda: compiled(*inputs), present)
    error = max(
        float((one - other).abs().max() / other.abs().max().clamp(min=1e-12))
        for one, other in zip(gradients, expected, strict=True)
    )
    (only,) = made.reports  # type: ignore[attr-defined]
    return {
        "limit": limit,
        "measured": peak,
        "error": error,
        "first_step": round(seconds, 1),
        "ours": msgspec.structs.asdict(only),
    }


def tables(found: list[dict[str, Any]]) -> str:
    """Two tables in Markdown: models, and limits."""
    mega, giga = 1e6, 1e9
    models = [
        (
            each["model"],
            each["operators"],
            f"{each['flops'] / giga:.1f}",
            f"{each['eager'] / mega:.1f}",
            f"{max((s['peak'] for s in each['stock'] if s['budget'] == 1.0), default=0) / mega:.1f}",
            f"{min((s['peak'] for s in each['stock']), default=0) / mega:.1f}",
            f"{each['least'] / mega:.1f}",
            f"{each['least_bound'] / mega:.1f}",
            "{peak:.1f} / {flops:.1f}".format(
                peak=each["checkpoints"]["peak"] / mega, flops=each["checkpoints"]["flops"] / giga
            )
            if "checkpoints" in each
            else "",
        )
        for each in found
    ]
    head = [
        "model",
        "operators",
        "GFLOP",
        "eager, MB",
        "PyTorch, MB",
        "PyTorch, least, MB",
        "stowplan, least, MB",
        "bound, MB",
        "a checkpoint a layer (MB / GFLOP)",
    ]
    rows = [
        (each["model"], f"{place:g}", *cells(limit))
        for each in found
        for place, limit in zip(PLACES, each["limits"], strict=False)
    ]
    heads = ["model", "limit", "stowplan, GFLOP", "bound, GFLOP", "greedy, GFLOP", "PyTorch, GFLOP"]
    return "\n\n".join([table(models, head), table(rows, heads), *summary(found)])


def cells(limit: dict[str, Any]) -> list[str]:
    """Added cost of stowplan's plan, its bound, greedy's and PyTorch's, in GFLOP."""
    ours = limit.get("ours")
    if ours is None:
        return [str(limit["error"]), "", "", ""]
    bound = ours["bound"] if ours["bound"] or not ours["added_cost"] else None
    costs_of = [
        ours["added_cost"],
        bound,
        *(None if each is None else each["cost"] for each in (limit["greedy"], limit["stock"])),
    ]
    return ["-" if each is None else f"{each / 1e9:.2f}" for each in costs_of]


def summary(found: list[dict[str, Any]]) -> list[str]:
    """What all limits have in common, and medians."""
    limits = [limit for each in found for limit in each["limits"]]
    met = [limit for limit in limits if "ours" in limit]
    beside = [
        limit["ours"]["added_cost"] / limit["stock"]["cost"] for limit in met if limit["stock"] and limit["stock"]["cost"]
    ]
    least = [each["least"] / min(one["peak"] for one in each["stock"]) for each in found if each["stock"]]
    bounds = [each["least_bound"] / min(one["peak"] for one in each["stock"]) for each in found if each["stock"]]
    close = [limit for limit in met if limit["ours"]["added_cost"] <= 1.05 * limit["ours"]["bound"]]
    largest = max((limit["error"] for limit in met), default=0.0)
    above = sum(limit["measured"] > limit["limit"] for limit in met)
    return [
        f"{len(limits)} limits, {len(met)} met ({above} measured above the limit), gradients differ by {largest:.0e} at most.",
        f"Added cost beside stock's: median {median(beside):.2f}, at most {max(beside, default=0):.2f}, of {len(beside)}."
        if beside
        else "",
        f"Least peak beside stock's: median {median(least):.2f}, its bound {median(bounds):.2f}." if least else "",
        f"Added cost within 5 % of its bound: {len(close)} of {len(met)}.",
    ]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main()
