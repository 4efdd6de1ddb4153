"""Makes proofs of LLM placement: prices of memory, which are the duals of the linear relaxation of each case.

A case is a micro-batch, and the device that computes with the host's weights in prompts, if there is one.
"""

from __future__ import annotations

from collections.abc import Iterator

from stowplan.certificates.maker import Proof, Wish
from stowplan.models.llm_placement.plan import cases
from stowplan.models.llm_placement.relaxation import Relaxation

#: Prices are multiples of one over this denominator. In a proof that no plan exists, the largest price is this number.
DENOMINATOR = 1 << 24


def models(wish: Wish) -> Iterator[Proof]:
    """Yields one proof for LLM placement. If the claim is that no plan exists, its denominator is 0, with which the checker
    ignores costs."""
    rows = [Relaxation(wish.problem, case).prices() for case in cases(wish.problem)]
    scale = max([1e-12, *(price for row in rows for price in row)]) if wish.infeasible else 1.0
    numerators = [[round(price / scale * DENOMINATOR) for price in row] for row in rows]
    yield {"form": "prices", "denominator": 0 if wish.infeasible else DENOMINATOR, "cases": numerators}
