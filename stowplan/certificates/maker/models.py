"""Proofs of LLM placement: prices of memory by the duals of the linear relaxation of each case."""

from __future__ import annotations

from collections.abc import Iterator

from stowplan.certificates.maker import Proof, Wish
from stowplan.models.llm_placement.plan import cases
from stowplan.models.llm_placement.relaxation import Relaxation

#: Prices are multiples of one over this denominator. In a proof that no plan exists, the largest price is this number.
DENOMINATOR = 1 << 24


def models(wish: Wish) -> Iterator[Proof]:
    """Yields one proof for LLM placement; with the denominator 0, which ignores costs, if the claim is that no plan exists."""
    rows = [Relaxation(wish.problem, case).prices() for case in cases(wish.problem)]
    scale = max([1e-12, *(price for row in rows for price in row)]) if wish.infeasible else 1.0
    given = [[round(price / scale * DENOMINATOR) for price in row] for row in rows]
    yield {"form": "prices", "denominator": 0 if wish.infeasible else DENOMINATOR, "cases": given}
