"""Makes certificates: proofs, which the checker can check, of bounds that solvers and other code have found.

Every proof is checked before it is returned. A bound for which no form of proof exists is stated as ``trusted``.

Each file imports only those before it:

- ``cuts``: proofs of operator order and rematerialization
- ``loads``: proofs of packing
- ``loops``: proofs of modulo scheduling
- ``tree``: splits the set of plans into parts by branching, so that each part is proven by itself
- ``linear``: proofs of tier placement, banked packing and bank mapping
- ``mapping``: proofs of memory mapping
- ``models``: proofs of LLM placement
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stowplan import files, kinds
from stowplan.certificates import checker
from stowplan.certificates.certificate import Certificate
from stowplan.certificates.checker.reading import LARGEST, MalformedError, UnprovenError, digest, parse
from stowplan.document import Document

#: The proof of a certificate as a JSON object: its ``form``, and the numbers that the checker needs for this form.
Proof = dict[str, Any]


@dataclass(frozen=True)
class Wish:
    """A request for a proof: the problem, the bound to prove, and information that helps."""

    problem: Any
    """The problem, of any kind."""
    bound: int | None = None
    """A bound that solvers claim, in the unit of the kind; a proof of a larger one is not needed. None if nothing is
    claimed."""
    infeasible: bool = False
    """Whether solvers claim that no plan exists."""
    plan: Any = None
    """The best plan so far."""
    evidence: Sequence[bytes] = ()
    """Evidence that candidates reported for their bounds (:meth:`stowplan.kernel.context.Context.evidence`), that for the
    largest bound last."""
    end: float = float("inf")
    """When to stop looking for better proofs, in seconds on the monotonic clock."""
    should_stop: Callable[[], bool] = bool
    """Whether to stop looking for better proofs."""
    rules: dict[str, Any] = field(default_factory=dict)
    """The problem as the JSON object that the checker reads."""

    def is_over(self) -> bool:
        """Whether to stop looking for better proofs now."""
        return time.monotonic() >= self.end or self.should_stop()


def certify(
    problem: Document,
    *,
    bound: int | None = None,
    infeasible: bool = False,
    plan: Any = None,
    evidence: Sequence[bytes] = (),
    seconds: float = 10.0,
    should_stop: Callable[[], bool] = bool,
    trusted: dict[str, Any] | None = None,
) -> Certificate:
    """Makes the best certificate that it finds for a problem.

    Parameters
    ----------
    problem
        A problem of any kind.
    bound, infeasible
        The claim of solvers. A proof of a stronger claim is not needed; without a claim, the strongest proof is looked for.
    plan
        The best plan so far, which shows where bounds should be looked for.
    evidence
        Evidence that candidates reported for their bounds, that for the largest bound last.
    seconds
        Time limit for better proofs. The first proof is made and checked in any case.
    should_stop
        Called now and then; if it returns True, no better proofs are looked for.
    trusted
        Names and versions of solvers, and tolerances, which the certificate states if there is no proof.

    Returns
    -------
    Certificate
        Its claim is the bound that its proof shows, but no more than ``bound``. Without a proof, it states which solvers have
        to be trusted.

    Raises
    ------
    UsageError
        ``problem`` is of no registered kind.
    """
    kind = kinds.of_problem(problem)
    rules = parse(files.encode(problem), "problem")
    wish = Wish(problem, bound, infeasible, plan, tuple(evidence), time.monotonic() + seconds, should_stop, rules)
    identity = digest(rules)
    best: Certificate | None = None
    for proof in kind.certificate()(wish) if kind.certificate else ():
        shown = _shown(kind.name, identity, rules, proof, bound, infeasible)
        if shown is not None and (best is None or shown.bound is None or shown.bound > (best.bound or 0)):
            best = shown
            if shown.bound is None or (bound is not None and shown.bound >= bound):
                break
        if wish.is_over():
            break
    if best is None:
        return Certificate(kind=kind.name, problem=identity, bound=bound, proof={"form": "trusted"} | (trusted or {}))
    return best


def _shown(
    kind: str, identity: str, rules: dict[str, Any], proof: Proof, goal: int | None, infeasible: bool
) -> Certificate | None:
    """The certificate of a proof with the largest bound that it shows, but no more than ``goal`` if that is given; None if the
    proof shows nothing. ``identity`` is the digest of the problem, and ``rules`` its JSON object."""
    stated = {"format": checker.FORMAT, "version": checker.VERSION, "kind": kind, "problem": identity, "proof": proof}
    try:
        # Every proof shows more than this bound.
        shown = checker.check_parsed(rules, stated | {"bound": None if infeasible else -LARGEST}).shown
    except (UnprovenError, MalformedError):
        return None
    bound = shown if goal is None or shown is None else min(goal, shown)
    return Certificate(kind=kind, problem=identity, bound=bound, proof=proof)
