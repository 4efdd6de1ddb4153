"""Small random networks on random tiers, and networks made by hand."""

from __future__ import annotations

import random

from stowplan.models.tier_placement.problem import Layer, Problem, Tier

#: Bytes a second; a byte takes 10, 3.33, 1 and 0.14 ps, so that rounding matters.
BANDWIDTHS = (10**11, 3 * 10**11, 10**12, 7 * 10**12)


def random_problem(seed: int, *, layers: int = 4, address_spaces: bool = False) -> Problem:
    """Up to ``layers`` layers on one to three tiers; now and then nothing fits."""
    chance = random.Random(seed)
    count = chance.randint(1, layers)
    bandwidths = sorted(chance.choice(BANDWIDTHS) for _ in range(chance.randint(1, 3)))
    tiers = []
    for number, bandwidth in enumerate(bandwidths):
        ample = number == 0 and chance.random() < 0.7
        capacity = 200 if ample else chance.randint(0, 24)
        alignment = chance.choice((1, 1, 2, 4)) if address_spaces else 1
        tiers.append(Tier(name=f"tier{number}", capacity=capacity, bandwidth=bandwidth, alignment=alignment))
    found = []
    for number in range(count):
        weights = chance.choice((0, chance.randint(1, 12)))
        inputs = [source for source in range(number) if chance.random() < (0.9 if source == number - 1 else 0.3)]
        found.append(
            Layer(
                name=f"layer{number}",
                inputs=tuple(inputs),
                output_bytes=chance.randint(0 if chance.random() < 0.1 else 1, 10),
                weight_bytes=weights,
                weight_read_bytes=chance.choice((None, chance.randint(0, 2 * weights))) if weights else None,
                external_bytes=0 if inputs else chance.randint(0, 5),
                compute_ps=chance.choice((0, chance.randint(0, 60), chance.randint(0, 250))),
                overhead_ps=chance.randint(0, 9),
            )
        )
    return Problem(tiers=tuple(tiers), layers=tuple(found), address_spaces=address_spaces, name=f"random{seed}")


def chain(count: int, *, address_spaces: bool = False) -> Problem:
    """A chain of equal layers that share a small fast tier: 40 bytes of weights and 10 of output each."""
    layers = [
        Layer(name=f"l{number}", inputs=(number - 1,) if number else (), output_bytes=10, weight_bytes=40, compute_ps=100)
        for number in range(count)
    ]
    tiers = (
        Tier(name="slow", capacity=100 * count, bandwidth=10**11, alignment=4),
        Tier(name="fast", capacity=25 * count, bandwidth=10**12, alignment=4),
    )
    return Problem(tiers=tiers, layers=tuple(layers), address_spaces=address_spaces, name="chain")
