"""Proofs of operator order and rematerialization: the flows that say how small a cut can be."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stowplan.certificates.maker import Proof, Wish
from stowplan.models.operator_order import bounds as order_bounds
from stowplan.models.operator_order import structure as order_structure
from stowplan.models.rematerialization import bounds, structure


def order(wish: Wish) -> Iterator[Proof]:
    """What is live at the start and at the end; cuts, first where most is live in the best order known; searches."""
    known = order_structure.build(wish.problem)
    yield {"form": "cut", "at": "start"}
    yield {"form": "cut", "at": "end"}
    if not known.ops:
        return
    plan = order_structure.stable_order(known) if wish.plan is None else wish.plan.order
    ceilings = np.zeros(known.ops, np.int64)
    ceilings[np.array(plan)] = known.profile(plan)[: known.ops]
    cuts, best = order_bounds.Cuts(known), -1
    for op in np.argsort(-ceilings, kind="stable").tolist():
        if ceilings[op] <= best or wish.is_over():
            break
        found = cuts.least(op)
        if found > best:
            best = found
            held, after = cuts.flow()
            yield {"form": "cut", "at": op, "held": [[*each] for each in held], "after": [[*each] for each in after]}
    if wish.bound is not None and not wish.is_over():
        for side in ("end", "start"):
            yield {"form": "search", "from": side, "below": wish.bound}


def rematerialization(wish: Wish) -> Iterator[Proof]:
    """Flows for the price of a byte that shows most; or that show that what is live does not fit."""
    problem = wish.problem
    if problem.ops and not wish.infeasible:
        yield {"form": "cut", "at": 0, "scale": 1, "price": 0}
    if problem.limit is None or not problem.ops:
        return
    known = structure.build(problem)
    moments, best = bounds.Moments(known), 0
    for op in bounds.fullest_first(known):
        found = moments.added_cost(op, problem.limit)
        if (found is None) if wish.infeasible else (found is not None and found > best):
            best = found or 0
            scale, price, held = moments.proof
            rows = [[*each] for each in held]
            yield {"form": "cut", "at": op, "scale": scale, "price": price, "held": rows}
        if wish.is_over():
            return
