"""Training within memory limits on a GPU: planned and measured peak, and the time of a step, beside torch's own partitioner.

    python -m benchmarks.torch_memory.cuda [--models gpt12,vit12] [--time-limit 15] [-o FILE.jsonl]

Models are those of ``benchmarks.torch_memory.models``, as large as a GPU has them. Limits are even between the least peak
found and that of the joint graph as it is. *Measured* is ``max_memory_allocated`` over a step, less what stands before it and
is no tensor of the model's: the workspaces of libraries. Temporary workspaces of kernels are in it. A line of JSON is written
for each model; those that are there are not run again.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import torch
from torch._functorch import config, partitioners

from benchmarks.lib.tables import table
from benchmarks.torch_memory import models
from benchmarks.torch_memory.limits import PLACES, joint_of, lines, measure, report
from stowplan.backends.torch import MemoryLimitError, backend, partition
from stowplan.portfolio.rematerialization.peaks import least_peak

#: Of torch's own partitioner.
BUDGETS = (1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.0)

#: Steps that are timed.
STEPS = 7

#: Several processes may run models side by side; they time their steps one after another.
LOCK = Path(tempfile.gettempdir()) / "stowplan_cuda_lock"


def _gpt() -> models.Model:
    blocks: list[Any] = [models.GptBlock(768, 12, 0.1) for _ in range(12)]
    return models.Decoder(blocks, 768, 32000, torch.nn.LayerNorm(768)), models.words(8, 1024)


def _llama() -> models.Model:
    blocks: list[Any] = [models.LlamaBlock(1024, 2816, 16) for _ in range(16)]
    return models.Decoder(blocks, 1024, 32000, models.RmsNorm(1024)), models.words(4, 2048)


#: Ways to make the models, by name.
MODELS: dict[str, Callable[[], models.Model]] = {
    "gpt12": _gpt,
    "llama16": _llama,
    "vit12": partial(models.pictures, partial(models.Vit, 12, 768, 12, 16, 224), 64, 224),
    "resnet50": partial(models.pictures, models.ResNet50, 64, 224),
    "unet": lambda: (models.Segmented(32, 4), (torch.randn(16, 3, 256, 256), torch.rand(16, 1, 256, 256).round())),
    "densenet": partial(models.pictures, partial(models.DenseNet, 32, (6, 12, 24)), 64, 128),
    "convnext": partial(models.pictures, partial(models.ConvNext, base=96), 32, 224),
    "diffusion_unet": lambda: (models.DiffusionUNet(128), (torch.randn(16, 3, 64, 64), torch.randn(16, 3, 64, 64))),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="names, separated by commas")
    parser.add_argument("--time-limit", type=float, default=15.0, help="seconds of planning for each limit")
    parser.add_argument("--budgets", type=float, nargs="+", default=BUDGETS, help="of torch's own plans; the first is 1")
    parser.add_argument("--places", type=float, nargs="+", default=PLACES, help="of limits, from the least peak (0) to all (1)")
    parser.add_argument("--seconds", type=float, default=3600.0, help="no model or limit begins after this")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--costs", default="flops", help="what plans add least of: flops, profile, or a device")
    parser.add_argument("--any-torch", action="store_true", help="plan with a version of torch that was not tested, too")
    parser.add_argument("-o", "--output", type=Path, default=Path("out/torch_memory_cuda.jsonl"))
    parser.add_argument("--table", action="store_true", help="print a table of what the file has, and run nothing")
    options = parser.parse_args()
    if options.any_torch:
        partition.VERSIONS = (*partition.VERSIONS, ".".join(torch.__version__.split(".")[:2]))
    if not options.table:
        if not torch.cuda.is_available():
            parser.exit(2, "no GPU is at hand; benchmarks.torch_memory.limits measures on a processor\n")
        options.until = time.monotonic() + options.seconds
        names = (name for name in options.models.split(",") if time.monotonic() < options.until)
        measure(names, run, options)
    print(tables(lines(options.output)))


def run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """All figures of one model."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model, inputs = model.cuda(), tuple(each.cuda() for each in inputs)
    found: dict[str, Any] = {"model": name, "torch": torch.__version__, "device": torch.cuda.get_device_name()}
    eager = Eager(model, inputs)
    found["eager"] = eager.figures()
    # Compiled graphs call other kernels than eager code: they are compared with the first of them.
    eager.expected = []
    reading, structure = joint_of(model, inputs)
    plan, bound = least_peak(reading.problem, seconds=options.time_limit)
    found |= {"operators": len(reading.nodes), "least": plan.peak, "least_bound": bound, "stock": []}
    report(name, f"{len(reading.nodes)} operators, least {plan.peak / 1e6:.0f} MB, eager {found['eager']}")
    for budget in options.budgets:
        found["stock"].append({"budget": budget, **eager.beside(own(budget))})
        report(name, json.dumps(found["stock"][-1]))
    found["limits"] = []
    most = structure.made(structure.order).peak
    for place in options.places:
        if time.monotonic() < options.until:
            found["limits"].append(within(eager, plan.peak + int((most - plan.peak) * place), options))
            report(name, json.dumps(found["limits"][-1]))
    return found


class Eager:
    """A model on a GPU, and what its steps give and take."""

    def __init__(self, model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]):
        self.model, self.inputs = model, inputs
        self.state = {key: value.clone() for key, value in model.state_dict().items()}
        own = {
            each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in (*model.parameters(), *model.buffers())
        }
        self.own = sum(own.values()) + sum(each.untyped_storage().nbytes() for each in inputs)
        self.expected: list[torch.Tensor] = []
        """Gradients of what ran first."""

    def step(self, function: Callable[..., Any]) -> list[torch.Tensor]:
        """Gradients of a step from the first state."""
        self.model.load_state_dict(self.state)
        self.model.zero_grad(set_to_none=True)
        torch.manual_seed(7)
        function(*self.inputs).backward()
        return [each.grad for each in self.model.parameters() if each.grad is not None]

    def figures(self, function: Callable[..., Any] | None = None) -> dict[str, Any]:
        """Bytes at the peak of a step, the milliseconds that it takes, and how far gradients are from what is expected."""
        function = self.model if function is None else function
        made = self.step(function)
        if not self.expected:
            self.expected = [each.clone().cpu() for each in made]
        apart = sum(float((one.cpu() - other).square().sum()) for one, other in zip(made, self.expected, strict=True))
        error = (apart / sum(float(each.square().sum()) for each in self.expected)) ** 0.5
        del made
        self.model.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        self.step(function)
        torch.cuda.synchronize()
        state = sum(value.untyped_storage().nbytes() for value in self.state.values())
        standing = before - self.own
        peak = torch.cuda.max_memory_allocated() - standing
        return {"peak": peak, "workspaces": standing - state, "ms": round(1000 * self._seconds(function), 2), "error": error}

    def _seconds(self, function: Callable[..., Any]) -> float:
        """Of a step, while no other process times one."""
        seconds = []
        with LOCK.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for _ in range(STEPS):
                began = time.perf_counter()
                function(*self.inputs).backward()
                torch.cuda.synchronize()
                seconds.append(time.perf_counter() - began)
                self.model.zero_grad(set_to_none=True)
        return median(seconds)

    def beside(self, made: Any) -> dict[str, Any]:
        """The same with a back end."""
        torch._dynamo.reset()
        compiled = torch.compile(self.model, backend=made)
        self.step(compiled)
        return self.figures(compiled)


def own(budget: float) -> Callable[..., Any]:
    """A back end with torch's own partitioner, that runs operator by operator."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import boxed_nop

    def halves(*args: Any, **kwargs: Any) -> Any:
        with config.patch(activation_memory_budget=budget):
            return partitioners.min_cut_rematerialization_partition(*args, **kwargs)

    compiler: Callable[..., Any] = aot_autograd(fw_compiler=boxed_nop, partition_fn=halves, keep_inference_input_mutations=True)
    return compiler


def within(eager: Eager, limit: int, options: argparse.Namespace) -> dict[str, Any]:
    """What comes of one limit."""
    # States that are restored before each step are no part of it: what goes above the limit is measured, not refused.
    made = backend(limit, outside=0, time_limit=options.time_limit, workers=options.workers, strict=False, costs=options.costs)
    try:
        figures = eager.beside(made)
    except torch._dynamo.exc.BackendCompilerFailed as error:
        if not isinstance(error.inner_exception, MemoryLimitError):
            raise
        return {"limit": limit, "missed": str(error.inner_exception)}
    (only,) = made.reports  # type: ignore[attr-defined]
    return {"limit": limit, **figures, "ours": msgspec.structs.asdict(only)}


def cells(found: dict[str, Any], stock: list[dict[str, Any]]) -> list[str]:
    """Of one limit."""
    if "missed" in found:
        return [f"{found['limit'] / 1e6:.0f}", found["missed"], "", "", ""]
    fitting = [one["ms"] for one in stock if one["peak"] <= found["peak"]]
    peaks = [f"{each / 1e6:.0f}" for each in (found["limit"], found["ours"]["peak"], found["peak"])]
    return [*peaks, f"{found['ms']:.1f}", f"{min(fitting):.1f}" if fitting else "-"]


def tables(found: list[dict[str, Any]]) -> str:
    """Models, and limits, in Markdown."""
    rows = []
    for each in found:
        others = [("eager", each["eager"]), *((f"stock at {one['budget']:g}", one) for one in each["stock"])]
        rows += [[each["model"], way, "", f"{one['peak'] / 1e6:.0f}", f"{one['ms']:.1f}", ""] for way, one in others]
        rows += [[each["model"], *cells(one, each["stock"])] for one in each["limits"]]
    return table(rows, ["model", "limit, MB", "planned", "measured", "ms a step", "stock within measured, ms"])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    # Before the library is loaded: products of matrices in one order.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.deterministic = True
    torch.set_float32_matmul_precision("high")
    main()
