"""More networks to train on: with other memories, and generated. All are the same for the same generator."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from benchmarks.lib.tier_placement.networks import FORMS, Form, random_network, rounded
from stowplan.arguments import number, whole
from stowplan.errors import UsageError
from stowplan.hardware.network import Precision
from stowplan.hardware.nnp_i.problem import build_problem
from stowplan.hardware.nnp_i.target import load_target
from stowplan.models.tier_placement.problem import Problem

#: Layers of generated networks, where nothing else is asked for.
LAYERS = 20, 400

#: All weights of a generated network that an inference reads, over the capacity of the first tier that is faster than the
#: slowest: of the first number, it holds them all; of the last, most stay outside.
WEIGHTS = 0.4, 8.0

#: Fast memory of generated networks, times the target's; half of them have the target's own.
FAST_MEMORY = 0.5, 4.0

#: Widths of generated networks.
WIDTHS = 8, 8192


def with_fast_memory(problem: Problem, factor: float) -> Problem:
    """The same network with so many times the capacity in all tiers but the slowest."""
    number("factor {}", factor, 0, or_least=False)
    slowest, *faster = problem.tiers
    tiers = (slowest, *(msgspec.structs.replace(tier, capacity=int(tier.capacity * factor)) for tier in faster))
    return msgspec.structs.replace(problem, tiers=tiers)


def generated(
    chance: np.random.Generator,
    *,
    layers: int | None = None,
    form: Form | None = None,
    precision: Precision | None = None,
    target: str = "nnp-i",
) -> Problem:
    """A random network on a chip.

    Sizes are drawn so that the weights that an inference reads take :data:`WEIGHTS` times the capacity of the first fast tier,
    evenly in logarithms, and half of the chips have other capacities than the target's (:data:`FAST_MEMORY`).

    Parameters
    ----------
    layers
        About so many; without, :data:`LAYERS`, evenly in logarithms.
    form
        See :mod:`benchmarks.lib.tier_placement.networks`; any without.
    precision
        Any of the target's without.

    Raises
    ------
    UsageError
        Fewer than 8 layers, or no such form.
    """
    if form is not None and form not in FORMS:
        raise UsageError(f"found form {form!r}, expected one of {', '.join(FORMS)}")
    chip = load_target(target)
    count = round(_log_uniform(chance, LAYERS)) if layers is None else whole("layers {}", layers, 8)
    form = FORMS[int(chance.integers(len(FORMS)))] if form is None else form
    precision = chip.precisions[int(chance.integers(len(chip.precisions)))] if precision is None else precision
    factor, ratio, seed = _fast_memory(chance), _log_uniform(chance, WEIGHTS), int(chance.integers(2**63))

    def made(width: int) -> Problem:
        network = random_network(form, np.random.default_rng(seed), layers=count, width=width)
        return with_fast_memory(build_problem(network, chip, precision), factor)

    # Weights grow about as the square of the width: a second step takes out what the first one missed.
    width = 64
    for _ in range(2):
        problem = made(width)
        size = sum(layer.weights_read for layer in problem.layers)
        width = min(WIDTHS[1], max(WIDTHS[0], rounded(width * math.sqrt(ratio * problem.tiers[1].capacity / size))))
    return msgspec.structs.replace(made(width), name=f"{form}-{seed % 10**6:06}")


def _fast_memory(chance: np.random.Generator) -> float:
    return _log_uniform(chance, FAST_MEMORY) if chance.random() < 0.5 else 1.0


def _log_uniform(chance: np.random.Generator, limits: tuple[float, float]) -> float:
    return math.exp(chance.uniform(math.log(limits[0]), math.log(limits[1])))
