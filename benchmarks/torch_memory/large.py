"""Transformers of 4 to 80 layers, at the size that people train, planned on ``meta`` tensors: nothing runs.

    pip install '.[learned]'
    python -m benchmarks.torch_memory.large [--models llama16,llama32] [--time-limit 20] [-o FILE.jsonl]

Attention is called as one operator (flash), since ``meta`` takes the path of plain matrix products. Parameters and gradients
count. ``eager`` is the joint graph as traced, ``checkpoint`` a checkpoint a layer; limits are 0.8, 0.9, 1 and 1.25 times its
peak, and half of eager's. ``torch`` is the cheapest of the plans of its partitioner within the limit, at eight budgets,
``greedy`` is one simulation. A line of JSON is written for each model and limit; those that are there are not run again.
``--table`` prints what the file has and runs nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from benchmarks.lib.tables import table
from benchmarks.torch_memory.limits import lines
from benchmarks.torch_memory.models import Decoder, GptBlock, LlamaBlock, RmsNorm, Vit
from stowplan.backends.torch import costs, stock
from stowplan.backends.torch.partition import prepared
from stowplan.backends.torch.reader import CostFunction, Reading, read
from stowplan.kernel.solve import solve
from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.structure import Structure, build
from stowplan.portfolio.rematerialization.greedy import simulate

MODELS = "llama4,llama16,llama32,gpt24,gpt48,vit24,vit48,t5-24,moe16,moe32,llama80"

#: Limits: times the peak of a checkpoint a layer; and of eager's.
CHECKPOINT, EAGER = (0.8, 0.9, 1.0, 1.25), (0.5,)

#: Of torch's partitioner: parts of the activations to save.
BUDGETS = (1.0, 0.7, 0.5, 0.3, 0.2, 0.15, 0.1, 0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=MODELS, help="a family and its number of layers each, separated by commas")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds of planning for each limit")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("-o", "--output", type=Path, default=Path("out/torch_memory_large.jsonl"))
    parser.add_argument("--table", action="store_true", help="print the table of what the file has, and run nothing")
    options = parser.parse_args()
    if not options.table:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        for name in options.models.split(","):
            run(name, options)
    print(shown(lines(options.output)))


def run(name: str, options: argparse.Namespace) -> None:
    """Append a line for each limit of a model that the file does not have."""
    known = {(row["model"], row["of"]) for row in lines(options.output)}
    ways = [*((f"{part} checkpoint", part) for part in CHECKPOINT), *((f"{part} eager", part) for part in EAGER)]
    if all((name, of) in known for of, _ in ways):
        return
    reading, structure, budgets = joint(name, BUDGETS)
    eager = structure.ordering.peak(structure.order)
    layered, layers, _ = joint(name, is_checkpointed=True)
    peak = layers.ordering.peak(layers.order)
    once = sum(reading.flops)
    for of, part in ways:
        if (name, of) in known:
            continue
        limit = int(part * (peak if "checkpoint" in of else eager))
        problem = msgspec.structs.replace(reading.problem, limit=limit)
        began = time.monotonic()
        torchs = min((plan for plan in budgets if plan.peak <= limit), key=lambda plan: plan.objective, default=None)
        greedy = simulate(structure, structure.order, limit)
        greedy_seconds, began = time.monotonic() - began, time.monotonic()
        result = solve(problem, time_limit=options.time_limit, workers=options.workers)
        seconds, plan, bound = time.monotonic() - began, result.plan, int(result.bound or 0)
        row = {
            "model": name,
            "operators": structure.ops,
            "of": of,
            "limit": limit,
            "eager": eager,
            "checkpoint": peak,
            "checkpoint_flops": (sum(layered.flops) - once) / once,
            "torch_flops": None if torchs is None else reading.added_flops(torchs.sequence) / once,
            "torch_cost": None if torchs is None else torchs.objective,
            "torch_least": min((plan.peak for plan in budgets), default=None),
            "greedy_flops": None if greedy is None else reading.added_flops(greedy) / once,
            "greedy_cost": None if greedy is None else structure.made(greedy).objective,
            "greedy_seconds": round(greedy_seconds, 2),
            "status": result.status,
            "flops": None if plan is None else reading.added_flops(plan.sequence) / once,
            "cost": None if plan is None else plan.objective,
            "cost_once": sum(structure.cost),
            "peak": None if plan is None else plan.peak,
            "bound": bound,
            "source": "" if plan is None else result.provenance.candidate,
            "seconds": round(seconds, 1),
            "time_limit": options.time_limit,
        }
        with options.output.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print("#", json.dumps(row), flush=True)


def joint(
    name: str, budgets: Sequence[float] = (), is_checkpointed: bool = False, prices: CostFunction = costs.costs
) -> tuple[Reading, Structure, list[Plan]]:
    """The joint graph of a model on ``meta``, its structure, and plans of torch's partitioner at budgets."""
    model, inputs = made(name)
    if is_checkpointed:
        model.blocks = nn.ModuleList(Recomputed(block) for block in model.blocks)
    with (
        mock.patch.object(F, "scaled_dot_product_attention", flash),
        mock.patch.object(F, "cross_entropy", cross_entropy),
    ):
        reading, sequences = traced(model, inputs, budgets, prices)
    structure = build(reading.problem)
    return reading, structure, [structure.made(sequence) for sequence in sequences]


def traced(
    model: Any, inputs: Any, budgets: Sequence[float] = (), prices: CostFunction = costs.costs
) -> tuple[Reading, list[list[int]]]:
    """The reading of a model, and runs of plans of torch's partitioner."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import boxed_nop

    seen: list[tuple[Reading, list[list[int]]]] = []

    def partition(module: Any, joint_inputs: Any, **kwargs: Any) -> Any:
        reading = read(prepared(module).graph, kwargs["num_fwd_outputs"], cost_function=prices)
        plans = stock.plans(module, reading, joint_inputs, kwargs, budgets)
        seen.append((reading, [plan.sequence for plan in plans if plan.sequence is not None]))
        raise InterruptedError

    torch._dynamo.reset()
    compiled = aot_autograd(fw_compiler=boxed_nop, partition_fn=partition, keep_inference_input_mutations=True)
    try:
        torch.compile(model, backend=compiled)(*inputs)
    except torch._dynamo.exc.BackendCompilerFailed as error:
        if not isinstance(error.inner_exception, InterruptedError):
            raise
    (only,) = seen
    return only


class Recomputed(nn.Module):
    """A layer that is computed again in its backward pass."""

    def __init__(self, block: nn.Module):
        super().__init__()
        self.block = block

    def forward(self, *inputs: Tensor) -> Tensor:
        return checkpoint(self.block, *inputs, use_reentrant=False, preserve_rng_state=False)  # type: ignore[no-any-return]


class Mixture(LlamaBlock):
    """The same with experts of which each token has two (Jiang et al. 2024); every expert has as many tokens as another."""

    def __init__(self, width: int, inner: int, heads: int, experts: int = 8):
        super().__init__(width, inner, heads)
        self.router = nn.Linear(width, experts, bias=False)
        self.gates, self.ups = (nn.Parameter(torch.empty(experts, width, inner)) for _ in range(2))
        self.downs = nn.Parameter(torch.empty(experts, inner, width))
        del self.gate, self.up, self.down

    def feed(self, x: Tensor) -> Tensor:
        words = x.flatten(0, 1)
        weights, experts = self.router(words).topk(2)
        places = experts.flatten().argsort()
        routed = words[places // 2].unflatten(0, (self.gates.shape[0], -1))
        made = torch.bmm(F.silu(torch.bmm(routed, self.gates)) * torch.bmm(routed, self.ups), self.downs)
        weighted = made.flatten(0, 1) * weights.softmax(-1).flatten()[places, None]
        return torch.zeros_like(words).index_add(0, places // 2, weighted).view(x.shape)


class T5Block(LlamaBlock):
    """A layer of an encoder or, where it is given what to look at, of a decoder (Raffel et al. 2020); no relative places."""

    def __init__(self, width: int, inner: int, heads: int, is_decoder: bool):
        super().__init__(width, inner, heads)
        self.is_decoder, self.norm3 = is_decoder, RmsNorm(width)
        self.others = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(4 * is_decoder))

    def forward(self, x: Tensor, encoded: Tensor | None = None) -> Tensor:
        y = self.norm1(x)
        x = x + self.out(self.attended(*(layer(y) for layer in (self.query, self.key, self.value)), self.is_decoder))
        if encoded is not None:
            query, key, value, out = self.others
            x = x + out(self.attended(query(self.norm3(x)), key(encoded), value(encoded), False))
        return x + self.feed(self.norm2(x))

    def attended(self, query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> Tensor:
        made = F.scaled_dot_product_attention(*map(self.split, (query, key, value)), is_causal=is_causal)
        return made.transpose(1, 2).reshape(query.shape)


class T5(nn.Module):
    """Encoder and decoder, of as many layers each."""

    def __init__(self, layers: int, width: int, inner: int, heads: int, vocabulary: int):
        super().__init__()
        self.blocks = nn.ModuleList(T5Block(width, inner, heads, at >= layers) for at in range(2 * layers))
        self.embedding, self.norms = nn.Embedding(vocabulary, width), nn.ModuleList(RmsNorm(width) for _ in range(2))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, words: Tensor, following: Tensor) -> Tensor:
        half = len(self.blocks) // 2
        encoded, x = self.embedding(words), self.embedding(following)
        for block in self.blocks[:half]:
            encoded = block(encoded)
        encoded = self.norms[0](encoded)
        for block in self.blocks[half:]:
            x = block(x, encoded)
        return F.cross_entropy(self.head(self.norms[1](x)).flatten(0, 1), following.flatten())


def flash(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """Attention as one operator."""
    return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal)[0]


def cross_entropy(logits: Tensor, classes: Tensor) -> Tensor:
    """The loss spelled out: the joint graph of torch's on ``meta`` has no backward pass (torch 2.13)."""
    return (logits.logsumexp(-1) - logits.gather(-1, classes[:, None])[:, 0]).mean()


def made(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A model of a family with a number of layers, and a batch, in bfloat16.

    Layers are those of Llama 3 8B, GPT-3 6.7B, ViT-H, T5 1.1 XXL (as many of its encoder as of its decoder), Mixtral 8x7B.
    """
    family, layers = name.rstrip("0123456789"), int(re.findall(r"\d+$", name)[0])
    width, heads = {"vit": (1280, 16), "t5-": (4096, 64)}.get(family, (4096, 32))
    with torch.device("meta"):
        model: nn.Module
        if family == "vit":
            model = Vit(layers, width, heads, 14, 224).bfloat16()
            pictures = torch.empty(128, 3, 224, 224, dtype=torch.bfloat16)
            return model, (pictures, torch.empty(128, dtype=torch.int64))
        words = torch.empty(4, 4096, dtype=torch.int64)
        if family == "t5-":
            model = T5(layers, width, 10240, heads, 32128)
        elif family == "gpt":
            model = Decoder([GptBlock(width, heads) for _ in range(layers)], width, 50257, nn.LayerNorm(width))
        else:
            kind, vocabulary = {"llama": (LlamaBlock, 128256), "moe": (Mixture, 32000)}[family]
            model = Decoder([kind(width, 14336, heads) for _ in range(layers)], width, vocabulary, RmsNorm(width))
        return model.bfloat16(), (words, words.clone())


def shown(rows: list[dict[str, Any]]) -> str:
    """The table in Markdown."""
    gib = 1 << 30

    def percent(part: float | None) -> str:
        return "none" if part is None else f"{100 * part:+.1f}"

    cells = []
    for row in rows:
        ratio = math.nan if row["cost"] is None or not row["bound"] else row["cost"] / row["bound"]
        cells.append((
            row["model"], row["operators"], f"{row['eager'] / gib:.2f}", f"{row['checkpoint'] / gib:.2f}",
            percent(row["checkpoint_flops"]), row["of"], f"{row['limit'] / gib:.2f}", percent(row["torch_flops"]),
            percent(row["greedy_flops"]), percent(row["flops"]), row["source"] or row["status"],
            "none" if row["cost"] is None else f"{100 * row['cost'] / row['cost_once']:.2f}",
            f"{100 * row['bound'] / row['cost_once']:.2f}", "" if math.isnan(ratio) else f"{ratio:.3f}", row["seconds"],
        ))  # fmt: skip
    heads = [
        "model",
        "operators",
        "eager GiB",
        "checkpoint a layer",
        "FLOP %",
        "limit",
        "GiB",
        "torch",
        "greedy",
        "ours",
        "source",
    ]
    return table(cells, [*heads, "cost %", "bound %", "ratio", "s"])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main()
