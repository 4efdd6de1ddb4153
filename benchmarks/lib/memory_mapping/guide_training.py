"""Training of the learned guide: values to learn, importance of tensors, and the loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.lib.memory_mapping.guide_network import Torch, merged, scanned
from stowplan.learned_guidance.memory_mapping.guide.features import gains
from stowplan.learned_guidance.memory_mapping.guide.guide import Graph, graph, scores, shapes
from stowplan.learned_guidance.memory_mapping.guide.program import Program

Floats = NDArray[np.float32]

#: Importance of a tensor, over the mean of its program: at least and at most.
IMPORTANCE = 0.1, 5.0


class Example(NamedTuple):
    """A program and the values to learn, each of shape ``[accesses]``."""

    graph: Graph
    fast: Floats
    keep: Floats
    weight: Floats


class Settings(NamedTuple):
    """How to train."""

    seconds: float = 300.0
    """At most."""
    steps: int = 20_000
    """At most; the learning rate falls to nothing by whichever comes first."""
    rate: float = 2e-3
    accesses: int = 40_000
    """In a batch, about."""
    device: str = "cpu"
    seed: int = 0


def example(program: Program, fast: Floats, keep: Floats) -> Example:
    """A program to learn from; values that do not agree with each other are made to."""
    seen = graph(program)
    served = np.where(seen.barred, 0.0, fast).astype(np.float32)
    following = np.append(served[1:], np.float32(0.0))
    kept = np.where(seen.never_kept, 0.0, np.minimum(keep, np.minimum(served, following)))
    kept = np.where(seen.glued, served, kept).astype(np.float32)
    gain = np.sqrt(np.bincount(program.tensor, gains(program), len(program.size)))
    of = gain[program.tensor]
    weight = np.clip(of / max(1e-9, float(np.mean(of))), *IMPORTANCE)
    return Example(seen, served, kept, weight.astype(np.float32))


class Batch(NamedTuple):
    """Some examples, on a device."""

    graph: Graph
    fast: Any
    keep: Any
    weight: Any
    """[networks, accesses], 0 where a network is not taught the example."""


def batches(examples: Sequence[Example], taught: NDArray[np.bool_], settings: Settings) -> list[Batch]:
    """All examples, in batches drawn once; ``taught`` of shape ``[networks, examples]``."""
    order = np.random.default_rng(settings.seed).permutation(len(examples))
    groups: list[list[int]] = [[]]
    for number in order:
        if sum(len(examples[each].fast) for each in groups[-1]) >= settings.accesses:
            groups.append([])
        groups[-1].append(int(number))
    return [batch([examples[each] for each in group], taught[:, group], settings.device) for group in groups if group]


def batch(examples: Sequence[Example], taught: NDArray[np.bool_], device: str) -> Batch:
    """Some examples as one graph."""
    fast, keep, weight = (np.concatenate([each[place] for each in examples]) for place in (1, 2, 3))
    shown = np.repeat(taught, [len(each.fast) for each in examples], axis=1)
    columns = [torch.as_tensor(each, device=device) for each in (fast, keep, weight * shown.astype(np.float32))]
    return Batch(merged([each.graph for each in examples], device), *columns)


def initial(
    examples: Sequence[Example], taught: NDArray[np.bool_], settings: Settings
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Weights to begin with, and the statistics of the features; each with the networks first."""
    rows = [
        np.concatenate([each.graph.features for each, is_taught in zip(examples, of, strict=True) if is_taught])
        for of in taught
    ]
    mean = np.stack([each.mean(axis=0) for each in rows])
    scale = np.stack([1.0 / np.maximum(each.std(axis=0), 0.05) for each in rows])
    fixed = {name: torch.as_tensor(value.astype(np.float32)) for name, value in (("mean", mean), ("scale", scale))}
    generator = torch.Generator().manual_seed(settings.seed)
    weights: dict[str, torch.Tensor] = {}
    for name, shape in shapes().items():
        if name in fixed:
            continue
        weights[name] = torch.zeros((len(taught), *shape))
        if name.endswith(".weight"):
            # What a round adds begins small.
            size = 0.3 if ".heard" in name else 1.0
            weights[name] += torch.randn(shape, generator=generator) * size * (1.5 / shape[0]) ** 0.5
    weights = {name: each.to(settings.device).requires_grad_() for name, each in weights.items()}
    return weights, {name: each.to(settings.device) for name, each in fixed.items()}


def loss(weights: Mapping[str, Any], given: Batch) -> tuple[Any, Any]:
    """Of each network: something with the gradient of its mean negative log-likelihood; and its mean error.

    The logarithm of the sum over all paths has the marginals as its derivatives, so it need not be differentiated.
    """
    scored = torch.func.vmap(lambda each: scores(each, given.graph, Torch()))(dict(weights))
    with torch.no_grad():
        held = [each.detach().double() for each in scored]
        found = torch.func.vmap(lambda fast, keep: scanned(fast, keep, given.graph))(*held)
        misses = [value.float() - wanted for value, wanted in zip(found, (given.fast, given.keep), strict=True)]
        total = given.weight.sum(dim=1, keepdim=True).clamp(min=1e-9)
        share = given.weight / total
        error = sum((miss.abs() * share).sum(dim=1) for miss in misses)
    return sum((miss * share * score).sum(dim=1) for miss, score in zip(misses, scored, strict=True)), error


def train(
    examples: Sequence[Example],
    taught: NDArray[np.bool_],
    settings: Settings,
    on_progress: Callable[[int, NDArray[np.float64]], None] | None = None,
) -> list[dict[str, Floats]]:
    """Networks that have learned the examples, side by side: on a GPU many take hardly longer than one.

    Parameters
    ----------
    examples
        At least one.
    taught : shape ``[networks, examples]``
        Which network learns which examples, each at least one.
    settings
        How.
    on_progress
        Told the steps done and the running mean of each network's error of both values together, every few seconds.

    Returns
    -------
    list
        For each network its weights, as :func:`~stowplan.learned_guidance.memory_mapping.guide.guide.save` takes them.
    """
    weights, fixed = initial(examples, taught, settings)
    data = batches(examples, taught, settings)
    rng = np.random.default_rng(settings.seed)
    optimiser = torch.optim.Adam(weights.values(), lr=settings.rate, betas=(0.9, 0.98))
    began = shown = time.monotonic()
    mean: Any = None
    order: list[int] = []
    for step in range(settings.steps):
        part = max(step / settings.steps, (time.monotonic() - began) / settings.seconds)
        if part >= 1:
            break
        for group in optimiser.param_groups:
            group["lr"] = settings.rate * min(1.0, (step + 1) / 100) * (0.5 + 0.5 * math.cos(math.pi * part))
        order = order or list(rng.permutation(len(data)))
        total, error = loss({**weights, **fixed}, data[order.pop()])
        optimiser.zero_grad()
        total.sum().backward()
        _clip(list(weights.values()))
        optimiser.step()
        mean = error if mean is None else 0.98 * mean + 0.02 * error
        if on_progress is not None and time.monotonic() > shown + 5:
            shown = time.monotonic()
            on_progress(step + 1, mean.double().cpu().numpy())
    arrays = {name: each.detach().cpu().numpy().astype(np.float32) for name, each in {**weights, **fixed}.items()}
    return [{name: each[number] for name, each in arrays.items()} for number in range(len(taught))]


def _clip(weights: Sequence[torch.Tensor], most: float = 1.0) -> None:
    """Scale each network's gradient down to a norm."""
    gradients = [each.grad for each in weights if each.grad is not None]
    norm = torch.sqrt(sum((each.flatten(1) ** 2).sum(dim=1) for each in gradients))  # type: ignore[arg-type]
    factor = (most / norm.clamp(min=1e-9)).clamp(max=1.0)
    for each in gradients:
        each *= factor.view(-1, *[1] * (each.dim() - 1))
