"""The checker of certificates: whether a proof shows what it claims of a problem, in whole numbers.

It imports nothing of the package but its own files, and nothing but the standard library. A problem comes as the JSON that
``stowplan convert`` writes; its rules are read from it anew, by the pages of ``docs/reference`` alone.

    python -m stowplan.certificates.checker problem.json proof.json
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from stowplan.certificates.checker import graphs, mapping, packing, places, schedules
from stowplan.certificates.checker.reading import LARGEST as LARGEST
from stowplan.certificates.checker.reading import Fields, fields, need, whole
from stowplan.certificates.checker.reading import MalformedError as MalformedError
from stowplan.certificates.checker.reading import UnprovenError as UnprovenError
from stowplan.certificates.checker.reading import digest as digest
from stowplan.certificates.checker.reading import parse as parse
from stowplan.certificates.checker.tree import Splits, tree

FORMAT, VERSION = "stowplan.certificate", 1

Checked = Callable[[Fields, Fields, Splits], int | None]

#: What each form proves of each kind: (kind, form) to a function that gives the largest bound, or None for infeasible.
FORMS: dict[tuple[str, str], Checked] = {
    ("packing", "load"): packing.load,
    ("packing", "search"): packing.search,
    ("operator_order", "cut"): graphs.cut,
    ("operator_order", "search"): graphs.search,
    ("rematerialization", "cut"): graphs.cut,
    ("modulo_scheduling", "recurrence"): schedules.schedule,
    ("modulo_scheduling", "resource"): schedules.schedule,
    ("modulo_scheduling", "search"): schedules.schedule,
    ("memory_mapping", "prices"): mapping.prices,
    ("tier_placement", "prices"): places.tiers,
    ("banked_packing", "prices"): places.banks,
}

#: Kinds that have trees, with how many numbers name a decision.
TREES = {"memory_mapping": 1, "tier_placement": 2, "banked_packing": 2}


class Verdict(NamedTuple):
    """What a certificate shows."""

    form: str
    bound: int | None
    """What it claims, and shows: no plan has a smaller objective; None: there is no plan."""
    shown: int | None
    """The largest bound that its proof shows."""


def check(problem: bytes, certificate: bytes) -> Verdict:
    """Check a certificate.

    Parameters
    ----------
    problem, certificate
        Their files.

    Raises
    ------
    MalformedError
        One of them is not such a file.
    UnprovenError
        The certificate is for another problem, or its proof does not show what it claims.
    """
    return check_parsed(parse(problem, "problem"), parse(certificate, "certificate"))


def check_parsed(rules: Fields, stated: Fields) -> Verdict:
    """The same of what :func:`parse` makes of them."""
    if (stated.get("format"), stated.get("version")) != (FORMAT, VERSION):
        raise MalformedError(f"certificate: expected format {FORMAT!r}, version {VERSION}")
    kind, proof = stated.get("kind"), fields(stated.get("proof"), "proof")
    bound = None if stated.get("bound") is None else whole(stated, "bound", -LARGEST)
    if rules.get("format") != f"stowplan.{kind}.problem":
        raise UnprovenError(f"kind: found {str(kind)[:40]!r}, the problem is a {str(rules.get('format'))[:60]!r}")
    need(stated.get("problem") == digest(rules), "problem", "the certificate is for another problem: the digests differ")
    try:
        shown = _shown(rules, proof, str(kind), None)
    except (LookupError, TypeError, AttributeError, ArithmeticError, MemoryError, ValueError, RecursionError) as error:
        raise MalformedError(f"proof: {type(error).__name__}: {str(error)[:100]}") from None
    if bound is None:
        need(shown is None, "bound", "the proof does not show that nothing fits")
    else:
        need(shown is None or bound <= shown, "bound", f"it claims {bound}, its proof shows {shown}")
    return Verdict(str(proof["form"]), bound, shown)


def _shown(rules: Fields, proof: Fields, kind: str, splits: Splits | None) -> int | None:
    """The largest bound that a proof shows; ``splits`` are those above it."""
    form = proof.get("form")
    need(form != "trusted", "proof", "it names a solver that is trusted, and shows nothing")
    if form == "tree" and kind in TREES and splits is None:
        size = max(len(each) for each in rules.values() if isinstance(each, list))
        return tree(proof, lambda leaf, above: _shown(rules, leaf, kind, above), TREES[kind], size)
    if not isinstance(form, str) or (kind, form) not in FORMS:
        raise MalformedError(f"proof.form: found {str(form)[:40]!r}, which is none of {kind}")
    return FORMS[kind, form](rules, proof, splits or Splits({}, 0))
