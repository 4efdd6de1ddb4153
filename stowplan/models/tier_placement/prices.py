"""First bounds by prices of bytes in each tier (Lagrangian duality), in thousandths of a second.

Outputs take no room here, and stand in the fastest tier that they fit into; weights pay for their room. Then no plan is faster
than all layers at their least, each by itself, less what all room costs. Any prices prove a bound, which is worked out in whole
numbers. Steps along subgradients make them better, with a step size of its own for each tier (Duchi, Hazan and Singer,
"Adaptive subgradient methods", 2011).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stowplan.models.tier_placement.problem import Problem

#: Prices are multiples of one over this, in ps a byte.
UNIT = 1 << 20

#: Steps of the prices, after which there is a bound; the size of a step, as a part of what a byte gains at most.
STEPS, STEP = (20, 100), 0.2


def first_bounds(problem: Problem) -> Iterator[int]:
    """Lower bounds (ps), the later of better prices; none where no weights gain by being fast."""
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
    room = np.array([float(tier.capacity) for tier in tiers])
    rate = float(((costs[:, 0] - costs[:, -1]) / sizes).max())
    prices, squares, best, most = np.zeros(len(tiers)), np.full(len(tiers), np.finfo(float).tiny), np.zeros(len(tiers)), -np.inf
    for step in range(max(STEPS)):
        paid = costs + np.outer(sizes, prices)
        chosen = paid.argmin(axis=1)
        value = paid[np.arange(len(sizes)), chosen].sum() - prices @ room
        if value > most:
            best, most = prices, value
        slope = np.bincount(chosen, sizes, len(tiers)) - room
        slope[(prices <= 0) & (slope < 0)] = 0.0
        squares += slope**2
        prices = np.maximum(0.0, prices + STEP * rate * slope / np.sqrt(squares))
        if step + 1 in STEPS:
            whole = [int(price * UNIT) for price in best.tolist()]
            spent = sum(price * tier.capacity for price, tier in zip(whole, tiers, strict=True))
            least = sum(
                min(UNIT * time + price * weights for time, price in zip(times, whole, strict=True))
                for times, weights in zip(cost, size, strict=True)
            )
            yield total - (spent - least) // UNIT
