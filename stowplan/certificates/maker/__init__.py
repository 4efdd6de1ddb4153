"""Makes certificates: of what bounds and solvers found, the proofs that the checker can check.

Every proof is checked here before it is handed out. What no form shows is stated as ``trusted``.

Each file knows only those before it:

- ``cuts``: proofs of operator order and rematerialization
- ``loads``: proofs of packing
- ``loops``: proofs of modulo scheduling
- ``tree``: branching for proofs
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

Proof = dict[str, Any]


@dataclass(frozen=True)
class Wish:
    """What is to be proven, and what helps."""

    problem: Any
    bound: int | None = None
    """A bound that solvers claim: no more need be proven."""
    infeasible: bool = False
    """Whether they claim that there is no plan."""
    plan: Any = None
    """The best plan known."""
    evidence: Sequence[bytes] = ()
    """What candidates said of their bounds (:meth:`stowplan.kernel.context.Context.evidence`), the latest last."""
    end: float = float("inf")
    """Moment of ``time.monotonic()`` until which to look for better proofs."""
    should_stop: Callable[[], bool] = bool
    """Whether somebody wants no better ones."""
    rules: dict[str, Any] = field(default_factory=dict)
    """The problem as the checker reads it."""

    def is_over(self) -> bool:
        """Whether time is up."""
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
    """The best certificate that is found for a problem.

    Parameters
    ----------
    problem
        Of any kind.
    bound, infeasible
        What solvers claim. No more need be proven; where nothing is claimed, as much as can be is.
    plan
        The best plan known: it says where bounds are worth looking for.
    evidence
        What candidates said of their bounds.
    seconds
        Until which to look for better proofs. The first is made and checked in any case.
    should_stop
        Asked now and then; ends the search for better proofs.
    trusted
        What is trusted where nothing is shown: names and versions of solvers, tolerances.

    Returns
    -------
    Certificate
        Its claim is what its proof shows; where there is none, what is trusted.
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
    """The certificate of a proof with the largest claim that it shows; None where it shows nothing."""
    stated = {"format": checker.FORMAT, "version": checker.VERSION, "kind": kind, "problem": identity, "proof": proof}
    try:
        # More than this any proof shows.
        shown = checker.check_parsed(rules, stated | {"bound": None if infeasible else -LARGEST}).shown
    except (UnprovenError, MalformedError):
        return None
    bound = shown if goal is None or shown is None else min(goal, shown)
    return Certificate(kind=kind, problem=identity, bound=bound, proof=proof)
