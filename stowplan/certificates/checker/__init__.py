"""The checker of certificates: whether a proof shows what it claims of a problem, in whole numbers.

It imports nothing of the package but its own files, and nothing but the standard library. A problem comes as the JSON that
``stowplan convert`` writes; its rules are read from it anew, by the pages of ``docs/reference`` alone.

    python -m stowplan.certificates.checker problem.json proof.json
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from stowplan.certificates.checker import graphs, mapping, places, schedules
from stowplan.certificates.checker.prices import Splits, tree
from stowplan.certificates.checker.reading import LARGEST, Fields, MalformedError, digest, expect, fields, need, parse, whole

FORMAT, VERSION = "stowplan.certificate", 1

#: What each form proves of each kind: the largest bound, or None for infeasible. Kinds with prices have trees as well.
FORMS: dict[str, dict[str, Callable[..., int | None]]] = {
    "packing": {"load": places.load, "search": places.search},
    "operator_order": {"cut": graphs.cut, "search": graphs.search},
    "rematerialization": {"cut": graphs.cut},
    "modulo_scheduling": dict.fromkeys(schedules.FORMS, schedules.schedule),
    "memory_mapping": {"prices": mapping.prices},
    "tier_placement": {"prices": places.tiers},
    "banked_packing": {"prices": partial(places.prices, places.banks)},
    "bank_mapping": {"prices": partial(places.prices, places.chip)},
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


def check_parsed(rules: Fields, stated: Fields) -> Verdict:
    """The same of what :func:`parse` makes of them."""
    for name, expected in (("format", FORMAT), ("version", VERSION)):
        expect(stated.get(name) == expected, f"certificate.{name}", stated.get(name), repr(expected))
    kind, proof = stated.get("kind"), fields(stated.get("proof"), "proof")
    bound = None if stated.get("bound") is None else whole(stated, "bound", -LARGEST)
    given = str(rules.get("format")).removeprefix("stowplan.").removesuffix(".problem")
    need(kind == given, "kind", f"found {str(kind)[:40]!r}, the problem is of {given[:40]!r}")
    need(stated.get("problem") == digest(rules), "problem", "the certificate is for another problem: the digests differ")
    try:
        shown = _shown(rules, proof, given)
    except (LookupError, TypeError, AttributeError, ArithmeticError, MemoryError, ValueError, RecursionError) as error:
        raise MalformedError(f"proof: {type(error).__name__}: {str(error)[:100]}") from None
    need(shown is None or bound is not None, "bound", "the proof does not show that nothing fits")
    need(shown is None or bound is None or bound <= shown, "bound", f"it claims {bound}, its proof shows {shown}")
    return Verdict(str(proof["form"]), bound, shown)


def _shown(rules: Fields, proof: Fields, kind: str, *above: Splits) -> int | None:
    """The largest bound that a proof shows, below splits or not."""
    form, forms = str(proof.get("form")), FORMS.get(kind, {})
    need(form != "trusted", "proof", "it names a solver that is trusted, and shows nothing")
    if form == "tree" and "prices" in forms and not above:
        width, size = 1 if kind == "memory_mapping" else 2, max(len(each) for each in rules.values() if isinstance(each, list))
        return tree(proof, lambda leaf, splits: _shown(rules, leaf, kind, splits), width, size)
    expect(form in forms, "proof.form", form, f"one of {kind}")
    return forms[form](rules, proof, *above)
