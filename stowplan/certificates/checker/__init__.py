"""The checker of certificates: whether a proof shows what it claims of a problem, in whole numbers.

It imports nothing of the package but its own files, and nothing but the standard library. A problem comes as the JSON that
``stowplan convert`` writes; its rules are read from it anew, by the pages of ``docs/reference`` alone.

    python -m stowplan.certificates.checker problem.json proof.json
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from stowplan.certificates.checker import graphs, mapping, packing, schedules, tiers
from stowplan.certificates.checker.reading import LARGEST as LARGEST
from stowplan.certificates.checker.reading import MalformedError as MalformedError
from stowplan.certificates.checker.reading import Part, need
from stowplan.certificates.checker.reading import UnprovenError as UnprovenError
from stowplan.certificates.checker.reading import digest as digest
from stowplan.certificates.checker.reading import parse as parse

FORMAT, VERSION = "stowplan.certificate", 1

Checked = Callable[[dict[str, Any], Part, int | None], int | None]

#: What each form proves of each kind: (kind, form) to a function that gives the largest bound, or None for infeasible.
FORMS: dict[tuple[str, str], Checked] = {
    ("packing", "load"): packing.load,
    ("operator_order", "cut"): graphs.order,
    ("rematerialization", "cut"): graphs.rematerialization,
    ("modulo_scheduling", "recurrence"): schedules.schedule,
    ("modulo_scheduling", "resource"): schedules.schedule,
    ("memory_mapping", "prices"): mapping.prices,
    ("tier_placement", "prices"): tiers.tiers,
    ("banked_packing", "prices"): tiers.banks,
    ("banked_packing", "load"): tiers.crowd,
}


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


def check_parsed(rules: dict[str, Any], stated: dict[str, Any]) -> Verdict:
    """The same of what :func:`parse` makes of them."""
    whole = Part(stated, "certificate")
    if (whole.get("format"), whole.get("version")) != (FORMAT, VERSION):
        raise MalformedError(f"certificate: expected format {FORMAT!r}, version {VERSION}")
    kind, bound, proof = whole.get("kind"), whole.get("bound"), Part(whole.get("proof"), "proof")
    bound = None if bound is None else whole.whole("bound", -LARGEST)
    if rules.get("format") != f"stowplan.{kind}.problem":
        raise UnprovenError(f"kind: found {str(kind)[:40]!r}, the problem is a {str(rules.get('format'))[:60]!r}")
    need(whole.get("problem") == digest(rules), "problem", "the certificate is for another problem: the digests differ")
    whole.end()
    form = proof.get("form")
    if form == "trusted":
        raise UnprovenError("proof: it names a solver that is trusted, and shows nothing")
    run = FORMS.get((kind, form)) if isinstance(form, str) else None
    if run is None:
        raise MalformedError(f"proof.form: found {str(form)[:40]!r}, which is none of {kind}")
    try:
        shown = run(rules, proof, bound)
    except (LookupError, TypeError, AttributeError, ArithmeticError, MemoryError, ValueError, RecursionError) as error:
        raise MalformedError(f"proof: {type(error).__name__}: {str(error)[:100]}") from None
    proof.end()
    if bound is None or shown is None:
        need(bound is shown, "bound", "the proof does not show that nothing fits")
    else:
        need(bound <= shown, "bound", f"it claims {bound}, its proof shows {shown}")
    return Verdict(form, bound, shown)
