"""Proofs of operator order and rematerialization by flows, which bound minimum cuts, and by searches.

A proof of the form ``cut`` is about one operator: whatever the order of the others, some bytes are live while it runs. The
fewest such bytes are a minimum cut of a network, and the amounts of a flow in it prove that there is no smaller cut
(:mod:`stowplan.certificates.checker.graphs`). A proof of the form ``search`` states a peak, and the checker finds by a search
that no order stays below it (:mod:`stowplan.certificates.checker.orders`).

A :class:`~stowplan.certificates.maker.Wish` is the request for a proof. Nothing here raises an error for a valid problem.
"""

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
    """Yields proofs for operator order: by the bytes that are live at the start and at the end, by cuts, and by searches.

    Cuts are computed for one operator after the other. The first is the one at which the most bytes are live in the best known
    order. Searches are tried only if the cuts do not prove the claimed bound.
    """
    graph = order_structure.build(wish.problem)
    for side, touched in (("start", graph.given), ("end", graph.kept)):
        yield {"form": "search", "from": side, "below": int(graph.size[(touched > 0) & graph.is_there].sum())}
    if not graph.ops:
        return
    plan = order_structure.stable_order(graph) if wish.plan is None else wish.plan.order
    ceilings = np.zeros(graph.ops, np.int64)
    ceilings[np.array(plan)] = graph.profile(plan)[: graph.ops]
    cuts, best = order_bounds.Cuts(graph), -1
    # Half of the time is reserved for searches.
    half = (time.monotonic() + wish.end) / 2
    for op in np.argsort(-ceilings, kind="stable").tolist():
        if ceilings[op] <= best or time.monotonic() >= half:
            break
        least = cuts.least(op)
        if least > best:
            best = least
            held, after = cuts.flow()
            yield {"form": "cut", "at": op, "held": [[*row] for row in held], "after": [[*row] for row in after]}
    # Searches that end usually end soon, and from one end only, so short searches come first.
    for looks in (LOOKS // 40, LOOKS // 4) if wish.bound is not None and best < wish.bound else ():
        for side in ("end", "start"):
            proof = {"form": "search", "from": side, "below": wish.bound}
            with suppress(UnprovenError):
                if not wish.is_over() and search(wish.rules, proof, looks):
                    yield proof
                    return


def rematerialization(wish: Wish) -> Iterator[Proof]:
    """Yields proofs for rematerialization by flows, for one operator each.

    Each proof uses the price of a byte that gives the best bound, or shows that the live bytes do not fit. If values may be
    sent to a host, it has a flow for each range of the number of bytes that are on the host.
    """
    problem = wish.problem
    if not problem.ops:
        return
    graph = structure.build(problem)
    operator_bounds = bounds.Bounds(graph, wish.is_over)
    # With a host, this may show that the bytes of one operator, or those at the end, do not fit.
    yield _moment(int(np.argmax(operator_bounds.moments.least_loads(bounds.always_live(graph)))), operator_bounds)
    best = 0
    for op in bounds.fullest_first(graph) if problem.limit is not None else ():
        added = operator_bounds.added_cost(op, problem.limit)
        if (added is None) if wish.infeasible else (added is not None and added > best):
            best = added or 0
            yield _moment(op, operator_bounds)
        if wish.is_over():
            return


def _moment(op: int, own: bounds.Bounds) -> Proof:
    """The proof of the last bound that ``own`` computed for an operator."""
    if own.structure.problem.channel is None:
        return {"form": "cut", "at": op} | _flow(own.moments.proof)
    ranges = [{"last": last} | _flow(proof) for last, proof in own.proofs.items()]
    return {"form": "ranges", "at": op, "ranges": ranges}


def _flow(proof: cuts.Proof) -> Proof:
    """A flow as JSON."""
    scale, price, held = proof
    return {"scale": scale, "price": price, "held": [[*row] for row in held]}
