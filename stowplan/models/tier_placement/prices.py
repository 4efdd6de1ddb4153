"""Lower bounds on the latency that are known within milliseconds, from a price of each byte in each tier (Lagrangian duality).

The relaxation ignores the bytes of outputs and puts each output into the fastest tier that it fits into. The limits on the
bytes of weights are replaced by prices: weights pay for the bytes that they occupy. Each layer then chooses the tier for its
weights with the smallest sum of latency and price. The bound is the total of these sums, minus the price of all bytes of all
tiers. Any nonnegative prices prove a bound, which is computed in whole numbers. The prices are improved by subgradient steps
with an adaptive step size for each tier (Duchi, Hazan and Singer, "Adaptive subgradient methods", 2011).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stowplan.models.tier_placement.problem import Problem

#: Prices in ps per byte are multiples of 1 / UNIT.
UNIT = 1 << 20

#: Numbers of subgradient steps after which a bound is reported, and the size of a step, as a fraction of the largest time in ps
#: that a byte of weights can save.
STEPS, STEP = (20, 100), 0.2


def first_bounds(problem: Problem) -> Iterator[int]:
    """Yield two lower bounds on the latency in ps. The prices of the second one are at least as good as those of the first. If
    no layer becomes faster by having its weights in a faster tier, yield nothing."""
    tiers, layers = problem.tiers, problem.layers
    fastest = [
        min((tier.move_ps(layer.output_bytes) for tier in tiers if layer.output_bytes <= tier.capacity), default=0)
        for layer in layers
    ]
    size, cost, total = [], [], 0
    for number, layer in enumerate(layers):
        moved = tiers[0].move_ps(layer.external_bytes) + fastest[number] + sum(fastest[source] for source in layer.inputs)
        total += layer.overhead_ps
        times = [max(layer.compute_ps, moved + tier.move_ps(layer.weights_read)) for tier in tiers]
        if times[0] == times[-1]:
            total += times[0]
        else:
            size.append(layer.weight_bytes)
            cost.append(times)
    if not size:
        return
    sizes, costs = np.array(size, float), np.array(cost, float)
    capacities = np.array([float(tier.capacity) for tier in tiers])
    rate = float(((costs[:, 0] - costs[:, -1]) / sizes).max())
    prices, squares, best, best_bound = (
        np.zeros(len(tiers)),
        np.full(len(tiers), np.finfo(float).tiny),
        np.zeros(len(tiers)),
        -np.inf,
    )
    for step in range(max(STEPS)):
        priced = costs + np.outer(sizes, prices)
        chosen = priced.argmin(axis=1)
        value = priced[np.arange(len(sizes)), chosen].sum() - prices @ capacities
        if value > best_bound:
            best, best_bound = prices, value
        slope = np.bincount(chosen, sizes, len(tiers)) - capacities
        slope[(prices <= 0) & (slope < 0)] = 0.0
        squares += slope**2
        prices = np.maximum(0.0, prices + STEP * rate * slope / np.sqrt(squares))
        if step + 1 in STEPS:
            scaled = [int(price * UNIT) for price in best.tolist()]
            spent = sum(price * tier.capacity for price, tier in zip(scaled, tiers, strict=True))
            least = sum(
                min(UNIT * time + price * weights for time, price in zip(times, scaled, strict=True))
                for times, weights in zip(cost, size, strict=True)
            )
            yield total - (spent - least) // UNIT
