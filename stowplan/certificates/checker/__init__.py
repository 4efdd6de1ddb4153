"""The checker of certificates: whether a proof shows what it claims of a problem, in whole numbers.

It imports nothing of the package but its own files, and nothing but the standard library. A problem comes as the JSON that
``stowplan convert`` writes; its rules are read from it anew, by the pages of ``docs/reference`` alone.

    python -m stowplan.certificates.checker problem.json proof.json

Other packages add the kinds that they have brought by an entry point (:data:`GROUP`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from stowplan.certificates.checker import graphs, mapping, places, schedules
from stowplan.certificates.checker.prices import Prices, Splits, tree
from stowplan.certificates.checker.problems import KNOWN, check_known
from stowplan.certificates.checker.reading import LARGEST, Fields, MalformedError, digest, expect, need, parse, whole

FORMAT, VERSION = "stowplan.certificate", 1

#: Entry points of other packages: the name of a kind, and ``module:name`` of its :class:`Rules`.
GROUP = "stowplan.certificates"


def _priced(prices: Prices) -> dict[str, Callable[[Fields, Fields], int | None]]:
    return {"prices": lambda problem, proof: prices(problem, proof, Splits()), "tree": partial(tree, prices)}


#: What each form proves of each kind: the largest bound, or None for infeasible.
FORMS: dict[str, dict[str, Callable[[Fields, Fields], int | None]]] = {
    "packing": {"load": places.load, "search": places.search},
    "operator_order": {"cut": graphs.cut, "search": graphs.search},
    "rematerialization": {"cut": graphs.cut},
    "modulo_scheduling": dict.fromkeys(schedules.FORMS, schedules.schedule),
    "memory_mapping": _priced(mapping.prices),
    "tier_placement": _priced(partial(places.prices, places.tiers)),
    "banked_packing": _priced(partial(places.prices, places.banks)),
    "bank_mapping": _priced(partial(places.prices, places.chip)),
}


class Rules(NamedTuple):
    """What the checker knows of a kind."""

    known: Fields
    """What its problems may say, as ``problems.toml`` has it."""
    forms: dict[str, Callable[[Fields, Fields], int | None]]
    """What each form of proof shows, as :data:`FORMS` has it."""


def rules_of(kind: str) -> Rules:
    """Of a kind by its name; raises MalformedError where there is none."""
    if kind in FORMS:
        return Rules(KNOWN[kind], FORMS[kind])
    # Imported here: it takes longer than most checks.
    from importlib.metadata import entry_points

    others = entry_points(group=GROUP, name=kind)
    expect(bool(others), "problem.format", kind, f"a problem of {', '.join(FORMS)}")
    rules: Rules = next(iter(others)).load()
    return rules


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
    head = stated.get("format"), stated.get("version")
    expect(head == (FORMAT, VERSION), "certificate", head, f"format {FORMAT!r}, version {VERSION}")
    bound = None if stated.get("bound") is None else whole(stated, "bound", -LARGEST)
    given = str(rules.get("format")).removeprefix("stowplan.").removesuffix(".problem")
    need(stated.get("kind") == given, "kind", f"found {str(stated.get('kind'))[:40]!r}, the problem is of {given[:40]!r}")
    need(stated.get("problem") == digest(rules), "problem", "the certificate is for another problem: the digests differ")
    known, forms = rules_of(given)
    check_known(rules, known, "problem")
    try:
        proof, form = stated["proof"], str(stated["proof"].get("form"))
        need(form != "trusted", "proof", "it names a solver that is trusted, and shows nothing")
        expect(form in forms, "proof.form", form, f"one of {given}")
        shown = forms[form](rules, proof)
    except (LookupError, TypeError, AttributeError, ArithmeticError, MemoryError, ValueError, RecursionError) as error:
        raise MalformedError(f"proof: {type(error).__name__}: {str(error)[:100]}") from None
    need(shown is None or (bound is not None and bound <= shown), "bound", f"it claims {bound}, its proof shows {shown}")
    return Verdict(form, bound, shown)
