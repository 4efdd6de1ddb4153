"""Proofs of memory mapping: what the relaxation says that memory and time are worth, in whole numbers over one denominator."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stowplan.certificates.maker import Proof, Wish
from stowplan.models.memory_mapping.prices import Floats, Prices
from stowplan.models.memory_mapping.problem import Problem

#: Prices are whole multiples of one over this.
DENOMINATOR = 1 << 32


def mapping(wish: Wish) -> Iterator[Proof]:
    """The prices at hand, the latest first; without any the floor, then those of a relaxation of our own."""
    problem: Problem = wish.problem
    for each in reversed(wish.evidence):
        yield proof_of(problem, Prices.decode(each))
    if not wish.evidence:
        yield proof_of(problem, Prices.none(problem.horizon, problem.use_count))
    if not wish.evidence and not wish.is_over():
        from stowplan.models.memory_mapping.milp.segments import SegmentBounds
        from stowplan.models.memory_mapping.milp.solve import Effort

        found: list[Prices] = []
        SegmentBounds(problem, Effort(end=wish.end), on_prices=found.append).run(integer=False)
        if found:
            yield proof_of(problem, found[-1])


def proof_of(problem: Problem, prices: Prices) -> Proof:
    """Prices as a proof: rounded, and the time of the channels no dearer than time itself where stalls are allowed.

    Whatever prices are, they prove a bound, so that rounding takes nothing of the proof, and little of the bound.
    """
    most = DENOMINATOR // problem.channels if problem.stalls == "allowed" else None
    return {
        "form": "prices",
        "denominator": DENOMINATOR,
        "memory": _whole(prices.memory),
        "channel": _whole(prices.channel, most),
        "access": _whole(prices.access),
        "preload": round(prices.preload * DENOMINATOR),
        "cuts": [
            {
                "step": cut.step,
                "price": round(cut.price * DENOMINATOR),
                "rounds": [{"divisor": divisor, "turned": [*turned]} for divisor, turned in cut.rounds],
            }
            for cut in prices.cuts
        ],
    }


def _whole(prices: Floats, most: int | None = None) -> list[int]:
    scaled = np.where(np.isfinite(prices), prices, 0.0) * DENOMINATOR
    found = [round(each) for each in scaled.tolist()]
    return found if most is None else [min(most, each) for each in found]
