"""A graph network that learns from the linear relaxations of many networks at once, before any evaluation of a chip.

The relaxation of the MILP says of each tensor what part of it stands in each tier, within a second for hundreds of layers, and
is within a few percent of the optimum once rounded. Its parts are a posterior to learn by cross entropy: a tensor that stands
half in, half out is one that the policy need not be sure of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from stowplan.errors import InputError
from stowplan.learned_guidance.tier_placement.egrl.config import EgrlConfig
from stowplan.learned_guidance.tier_placement.egrl.learner import CLIP, Inputs
from stowplan.learned_guidance.tier_placement.egrl.network import Actor
from stowplan.learned_guidance.tier_placement.graph import graph_of
from stowplan.models.mip.with_highs import solve_relaxed
from stowplan.models.tier_placement.milp import build
from stowplan.models.tier_placement.problem import Problem

Floats = npt.NDArray[np.float32]

#: A batch is of so many networks.
BATCH = 4

#: Learning rate: its most, steps until it is reached, and the part of it that is left at the end of its cosine.
RATE, WARM_UP, LEFT = 2e-3, 30, 0.02
WEIGHT_DECAY = 1e-4


@dataclass(frozen=True, eq=False)
class Example:
    """A network and what to answer."""

    inputs: Inputs
    target: Tensor
    """[N, 2, T] Parts of the weights and of the output of each layer in each tier."""
    bound_ps: int
    """Latency that the relaxation proves."""

    @classmethod
    def of(cls, problem: Problem, config: EgrlConfig, time_limit: float = 60.0) -> Example:
        """A problem with its relaxation; see :func:`relaxed`. InputError: it has no node features."""
        parts, bound = relaxed(problem, time_limit)
        return cls(Inputs(graph_of(problem, config.features), config.depth), torch.from_numpy(parts), bound)


def relaxed(problem: Problem, time_limit: float = 60.0) -> tuple[Floats, int]:
    """The linear relaxation's placement.

    Parameters
    ----------
    time_limit
        Seconds.

    Returns
    -------
    tuple
        ``[N, 2, T]`` parts of the weights and of the output of each layer in each tier; weights of 0 bytes stand in tier 0. And
        the latency in ps that it proves.

    Raises
    ------
    InputError
        It was not solved within the time, or no plan fits.
    """
    model = build(problem)
    found = np.zeros((len(problem.layers), 2, len(problem.tiers)), np.float32)
    found[..., 0] = 1.0
    if not model.matrix.columns:
        return found, model.structure.base_ps
    solution = solve_relaxed(model.matrix, 0, time_limit, lambda: False)
    if not (solution.value_valid and solution.dual_valid):
        raise InputError(f"the linear relaxation of {problem.name} was not solved in {time_limit:g} s")
    values = np.clip(np.array(solution.col_value), 0.0, 1.0)
    for (number, tier), column in model.place.items():
        tensor = model.structure.tensors[number]
        found[tensor.layer, int(tensor.is_output), tier] += values[column]
        found[tensor.layer, int(tensor.is_output), 0] -= values[column]
    return np.clip(found, 0.0, 1.0), model.dual_bound_ps(np.array(solution.row_dual))


def imitate(
    actor: Actor,
    examples: Sequence[Example],
    *,
    steps: int,
    seed: int = 0,
    should_stop: Callable[[], bool] | None = None,
    on_progress: Callable[[int, float], None] | None = None,
) -> int:
    """Train an actor on examples; the same for the same seed, on one machine.

    Parameters
    ----------
    steps
        Of the optimiser.
    seed
        Of the order of the examples.
    on_progress
        Called after each step with its number and its loss: cross entropy in nats, a tensor.

    Returns
    -------
    int
        Steps that were done: all, unless stopped.
    """
    chance = np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(actor.parameters(), lr=RATE, weight_decay=WEIGHT_DECAY)
    batches = _batches(examples, chance)
    for step in range(steps):
        if should_stop is not None and should_stop():
            return step
        for group in optimizer.param_groups:
            group["lr"] = (
                RATE * min(1.0, (step + 1) / WARM_UP) * (LEFT + (1 - LEFT) * 0.5 * (1 + math.cos(math.pi * step / steps)))
            )
        optimizer.zero_grad(set_to_none=True)
        mean = 0.0
        for example in next(batches):
            part = loss(actor, example) / BATCH
            part.backward()  # type: ignore[no-untyped-call]
            mean += float(part.detach())
        nn.utils.clip_grad_norm_(actor.parameters(), CLIP)
        optimizer.step()
        if on_progress is not None:
            on_progress(step + 1, mean)
    return steps


def loss(actor: Actor, example: Example) -> Tensor:
    """Cross entropy of the actor's tiers against an example's, in nats, in the mean over the network's tensors."""
    inputs = example.inputs
    log_policy = functional.log_softmax(actor(inputs.state, inputs.structure)[0], dim=-1)
    return -(log_policy * example.target).sum(-1)[inputs.placed].mean()


def _batches(examples: Sequence[Example], chance: np.random.Generator) -> Iterator[list[Example]]:
    """For ever: all examples in a random order, then in another."""
    waiting: list[int] = []
    while True:
        while len(waiting) < BATCH:
            waiting = chance.permutation(len(examples)).tolist() + waiting
        yield [examples[waiting.pop()] for _ in range(BATCH)]
