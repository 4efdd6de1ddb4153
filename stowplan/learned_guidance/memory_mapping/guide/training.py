"""Training of the learned guide: values to learn, importance of tensors, and the loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from stowplan.learned_guidance.memory_mapping.guide.features import gains
from stowplan.learned_guidance.memory_mapping.guide.network import Graph, graph
from stowplan.learned_guidance.memory_mapping.guide.program import Program
from stowplan.learned_guidance.memory_mapping.guide.torch_network import GuideNetwork, loss, merged

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


def batches(examples: Sequence[Example], settings: Settings) -> list[Batch]:
    """All examples, in batches drawn once."""
    order = np.random.default_rng(settings.seed).permutation(len(examples))
    groups: list[list[Example]] = [[]]
    for number in order:
        if sum(len(each.fast) for each in groups[-1]) >= settings.accesses:
            groups.append([])
        groups[-1].append(examples[number])
    return [batch(group, settings.device) for group in groups if group]


def batch(examples: Sequence[Example], device: str) -> Batch:
    """Some examples as one graph."""
    columns = [torch.as_tensor(np.concatenate([each[place] for each in examples]), device=device) for place in (1, 2, 3)]
    return Batch(merged([each.graph for each in examples], device), *columns)


def train(
    examples: Sequence[Example], settings: Settings, on_progress: Callable[[int, float], None] | None = None
) -> GuideNetwork:
    """A network that has learned the examples.

    Parameters
    ----------
    examples
        At least one.
    settings
        How.
    on_progress
        Told the steps done and the running mean of the error of both values, every few seconds.
    """
    rows = np.concatenate([each.graph.features for each in examples])
    spread = rows.std(axis=0)
    network = GuideNetwork(rows.mean(axis=0), 1.0 / np.maximum(spread, 0.05), settings.seed).to(settings.device)
    data = batches(examples, settings)
    rng = np.random.default_rng(settings.seed)
    optimiser = torch.optim.Adam(network.parameters(), lr=settings.rate, betas=(0.9, 0.98))
    began = shown = time.monotonic()
    mean = math.nan
    order: list[int] = []
    for step in range(settings.steps):
        part = max(step / settings.steps, (time.monotonic() - began) / settings.seconds)
        if part >= 1:
            break
        for group in optimiser.param_groups:
            group["lr"] = settings.rate * min(1.0, (step + 1) / 100) * (0.5 + 0.5 * math.cos(math.pi * part))
        order = order or list(rng.permutation(len(data)))
        given = data[order.pop()]
        total, served, kept = loss(network, given.graph, given.fast, given.keep, given.weight)
        optimiser.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        if on_progress is not None and (step % 50 == 0 or step + 1 == settings.steps):
            error = float(((served - given.fast).abs() * given.weight + (kept - given.keep).abs() * given.weight).mean())
            mean = error if math.isnan(mean) else 0.8 * mean + 0.2 * error
            if time.monotonic() > shown + 5:
                shown = time.monotonic()
                on_progress(step + 1, mean)
    return network
