"""Makes proofs of memory mapping: prices of memory and time from a relaxation, as whole numbers over one denominator.

If the prices do not prove the claimed bound of a small program, the plans are split on uses: on one side of a split, a use of a
tensor is in fast memory, on the other side in slow memory. A use that is decided in this way gets a price that no plan would
pay, so that neither its step nor its tensor has a choice.

A :class:`~stowplan.certificates.maker.Wish` is the request for a proof: the problem, the claim to prove, and limits. Nothing
here raises an error for a valid problem.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stowplan.certificates.checker import mapping as checker
from stowplan.certificates.checker.prices import Splits
from stowplan.certificates.maker import Proof, Wish
from stowplan.certificates.maker.tree import MAX_TRIED_SPLITS, Branched, Side, Split, Tree
from stowplan.models.memory_mapping.milp.prices import prices_of
from stowplan.models.memory_mapping.milp.segments import SegmentBounds
from stowplan.models.memory_mapping.milp.solve import Effort, RelaxationSearch
from stowplan.models.memory_mapping.milp.tightening import DetailedModel
from stowplan.models.memory_mapping.prices import Floats, Prices
from stowplan.models.memory_mapping.problem import Problem

#: Prices are multiples of one over this denominator.
DENOMINATOR = 1 << 32

#: The amount that a decided use earns or costs, and the price of the row that decides it. They exceed all other prices by far,
#: and are smaller than the largest number that the checker accepts (2**200).
EARNED, DECIDED = 1 << 100, 1 << 120

#: Branch and bound is used for programs with at most this many uses.
MAX_USES = 400


def mapping(wish: Wish) -> Iterator[Proof]:
    """Yields proofs for memory mapping by prices.

    First come the prices that candidates of the run reported as evidence, beginning with those for the largest bound. If there
    are none, the first proof has prices of 0. Then come prices that are computed here. For a program with at most MAX_USES
    uses, branch and bound computes them. For a larger one, a relaxation is solved, but only if no prices were reported.
    """
    problem: Problem = wish.problem
    for encoded in reversed(wish.evidence):
        yield proof_of(problem, Prices.decode(encoded))
    if not wish.evidence:
        yield proof_of(problem, Prices.none(problem.horizon, problem.use_count))
    if problem.use_count <= MAX_USES:
        uses = Uses(wish)
        yield from Tree(uses, wish, Uses.proof).proofs(uses.base)
    elif not wish.evidence and not wish.is_over():
        prices: list[Prices] = []
        SegmentBounds(problem, Effort(end=wish.end), on_prices=prices.append).run(integer=False)
        if prices:
            yield proof_of(problem, prices[-1])


class Uses(Branched):
    """The relaxation of a program. A decision ``(i,)`` is whether use i is fast, that is, in fast memory."""

    def __init__(self, wish: Wish):
        self._wish, problem = wish, wish.problem
        self._search = RelaxationSearch(DetailedModel(problem), Effort(end=wish.end, should_stop=wish.should_stop))
        self._search.linear()
        self._search.cut()
        model, solver = self._search.model, self._search.solver
        size = 1 + max(problem.horizon, len(problem.tensors))
        super().__init__(solver.highs, solver.unit_ps, size, lambda decision: model.fast[decision[0]])
        self.base = model.offset_ps

    def separate(self, most: int) -> int:
        """Adds rows for windows of the copy channels: the copies in a range of steps take no more time than the channels have
        in it. Only rows that the last solution violates are added. Returns how many there are; ``most`` is ignored."""
        self._search.values = self._search.solver.values()
        return int(self._search.values is not None and self._search.add_windows())

    def splits(self) -> list[Split]:
        """Splits on undecided uses whose value is fractional in the last solution. Uses with values far from whole numbers come
        first. If values are equally far, uses of larger tensors come first."""
        point, model = self.point(), self._search.model
        decided = {decision for decisions, *_ in self._sides_in_force for decision in decisions}
        fractional = list[tuple[float, float, int]]()
        for use, columns in enumerate(model.fast):
            if columns and (use,) not in decided:
                rest = float(point[[*columns]].sum())
                fractional.append((-min(rest, 1 - rest), -model.problem.tensors[model.problem.tensor_of_use[use]].size, use))
        return [(((use,),), 0) for *_, use in sorted(fractional)[:MAX_TRIED_SPLITS]]

    def proof(self, sides: tuple[Side, ...] = ()) -> Proof:
        """The proof by the duals of the last solution; uses that are decided get prices that no plan would pay."""
        duals = self._search.solver.duals()
        proof = proof_of(self._wish.problem, prices_of(self._search, np.zeros(0) if duals is None else duals))
        for ((use,),), _, is_more in sides:
            proof["access"][use] = EARNED if is_more else -EARNED
        return proof | ({"splits": [DECIDED] * len(sides)} if sides else {})

    def checked_bound(self, cost: float, proof: Proof, sides: tuple[Side, ...]) -> float:
        """The bound that the checker computes for a proof below these sides of splits, less the constant part of the costs."""
        splits = Splits({decisions[0]: -DECIDED if is_more else DECIDED for decisions, _, is_more in sides})
        splits[()] = DECIDED * sum(is_more for *_, is_more in sides)
        return float(checker.prices(self._wish.rules, proof, splits) or 0) - self.base


def proof_of(problem: Problem, prices: Prices) -> Proof:
    """Prices as a proof of the form ``prices``, rounded to multiples of one over the denominator.

    Any prices prove a bound. Rounding therefore keeps the proof valid and changes the bound only a little. If stalls are
    allowed, the time of all channels together must not cost more than time itself, so their prices are limited to that.
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
    """Prices as whole numbers over the denominator, each at most ``most``."""
    scaled = np.where(np.isfinite(prices), prices, 0.0) * DENOMINATOR
    rounded = [round(price) for price in scaled.tolist()]
    return rounded if most is None else [min(most, price) for price in rounded]
