"""Proofs of operator order and rematerialization: the flows that say how small a cut can be."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from stowplan.certificates.checker.orders import search
from stowplan.certificates.checker.reading import LOOKS, UnprovenError
from stowplan.certificates.maker import Proof, Wish
from stowplan.models.operator_order import bounds as order_bounds
from stowplan.models.operator_order import structure as order_structure
from stowplan.models.rematerialization import bounds, cuts, structure


def order(wish: Wish) -> Iterator[Proof]:
    """What is live at the start and at the end; cuts, first where most is live in the best order known; searches."""
    known = order_structure.build(wish.problem)
    for side, there in (("start", known.given), ("end", known.kept)):
        yield {"form": "search", "from": side, "below": int(known.size[(there > 0) & known.is_there].sum())}
    if not known.ops:
        return
    plan = order_structure.stable_order(known) if wish.plan is None else wish.plan.order
    ceilings = np.zeros(known.ops, np.int64)
    ceilings[np.array(plan)] = known.profile(plan)[: known.ops]
    cuts, best = order_bounds.Cuts(known), -1
    # Half of the time is left for searches.
    half = (time.monotonic() + wish.end) / 2
    for op in np.argsort(-ceilings, kind="stable").tolist():
        if ceilings[op] <= best or time.monotonic() >= half:
            break
        least = cuts.least(op)
        if least > best:
            best = least
            held, after = cuts.flow()
            yield {"form": "cut", "at": op, "held": [[*row] for row in held], "after": [[*row] for row in after]}
    # Where a search comes to an end, it mostly does so soon, and mostly from one end alone.
    for looks in (LOOKS // 40, LOOKS // 4) if wish.bound is not None and best < wish.bound else ():
        for side in ("end", "start"):
            proof = {"form": "search", "from": side, "below": wish.bound}
            with suppress(UnprovenError):
                if not wish.is_over() and search(wish.rules, proof, looks):
                    yield proof
                    return


def rematerialization(wish: Wish) -> Iterator[Proof]:
    """Flows for the price of a byte that shows most; or that show that what is live does not fit. With a host in ranges."""
    problem = wish.problem
    if not problem.ops:
        return
    known = structure.build(problem)
    own = bounds.Bounds(known, wish.is_over)
    # With a host it may show that what one operator takes, or what is there at the end, does not fit.
    yield _moment(int(np.argmax(own.moments.least_loads(bounds.always_live(known)))), own)
    best = 0
    for op in bounds.fullest_first(known) if problem.limit is not None else ():
        added = own.added_cost(op, problem.limit)
        if (added is None) if wish.infeasible else (added is not None and added > best):
            best = added or 0
            yield _moment(op, own)
        if wish.is_over():
            return


def _moment(op: int, own: bounds.Bounds) -> Proof:
    """Of the last bound of an operator; of none before there is one."""
    if own.structure.problem.channel is None:
        return {"form": "cut", "at": op} | _flow(own.moments.proof)
    ranges = [{"last": last} | _flow(proof) for last, proof in own.proofs.items()]
    return {"form": "ranges", "at": op, "ranges": ranges}


def _flow(proof: cuts.Proof) -> Proof:
    scale, price, held = proof
    return {"scale": scale, "price": price, "held": [[*row] for row in held]}
