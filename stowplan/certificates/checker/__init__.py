"""The checker of certificates, which decides in whole numbers whether a proof shows its claim about a problem.

It imports only its own files and the standard library. A problem is given as the JSON that ``stowplan convert`` writes. The
rules of all kinds of problem are implemented here anew, from the pages of ``docs/reference`` alone.

    python -m stowplan.certificates.checker problem.json proof.json

A *form* is a sort of proof; a proof names its form and contains the numbers that this form needs. The function of a form
returns the largest bound that a proof of this form shows, and its docstring states the inequality. A proof cannot leave out
anything that makes plans cheaper: the function computes a lower bound for everything that the proof does not mention.

To audit the checker, read docs/reference/certificates.md, which explains each form of proof by an example, and then these
files, each of which imports only those before it:

- ``reading`` and its table ``problems.toml``: strict reading of files; every field and value that problems may have
- ``packing``: forms ``load``, ``search`` and ``crowds`` of packing
- ``graphs``, ``orders``: operators and storages, forms ``cut`` and ``ranges``; form ``search`` of operator order
- ``loops``: loop bodies; forms ``recurrence``, ``resource`` and ``search`` of modulo scheduling
- ``prices``, ``placement``, ``mapping``: forms ``prices`` and ``tree`` of tiers, banks and memory mapping
- ``models``: form ``prices`` of LLM placement
- this file: which form belongs to which kind, and the order of checks

The function of a form raises ``UnprovenError`` of ``reading`` if the proof does not show a bound, and ``MalformedError`` if a
number in it is not valid. If the proof lacks something, it raises one of :data:`SHAPE_ERRORS`, which :func:`check` turns into
MalformedError.

Other packages add kinds of problem of their own by an entry point (:data:`ENTRY_POINT_GROUP`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from stowplan.certificates.checker import graphs, loops, mapping, models, orders, packing, placement
from stowplan.certificates.checker.prices import Prices, Splits, tree
from stowplan.certificates.checker.reading import (
    KNOWN,
    LARGEST,
    Fields,
    MalformedError,
    check_schema,
    digest,
    expect,
    need,
    parse,
    whole,
)

FORMAT, VERSION = "stowplan.certificate", 1

#: Group of the entry points by which other packages add kinds. Each entry has the name of a kind and ``module:name`` of its
#: :class:`Rules`.
ENTRY_POINT_GROUP = "stowplan.certificates"

#: Messages quote at most this many characters of a kind's name, and of an error in reading a proof.
SHOWN_KIND, SHOWN_ERROR = 40, 100

#: A function of ``(problem, proof)``, two JSON objects, that returns the largest bound that the proof shows, or None if it
#: shows that no plan exists.
Form = Callable[[Fields, Fields], int | None]


def _price_forms(prices: Prices) -> dict[str, Form]:
    """The forms ``prices`` and ``tree``. A proof by prices gives a price to each limited resource, such as the bytes of a
    memory. A tree splits the set of plans into parts, and each part has prices of its own."""
    return {"prices": lambda problem, proof: prices(problem, proof, Splits()), "tree": partial(tree, prices)}


#: Forms of proof for each kind.
FORMS: dict[str, dict[str, Form]] = {
    "packing": {"load": packing.load, "search": packing.search, "crowds": packing.crowds},
    "operator_order": {"cut": graphs.cut, "search": orders.search},
    "rematerialization": {"cut": graphs.cut, "ranges": graphs.ranges},
    "modulo_scheduling": dict.fromkeys(loops.FORMS, loops.schedule),
    "memory_mapping": _price_forms(mapping.prices),
    "tier_placement": _price_forms(partial(placement.prices, placement.tiers)),
    "banked_packing": _price_forms(partial(placement.prices, placement.banks)),
    "bank_mapping": _price_forms(partial(placement.prices, placement.chip)),
    "llm_placement": {"prices": models.prices},
}

#: Errors that Python raises if a proof does not have the structure that its form requires.
SHAPE_ERRORS = (LookupError, TypeError, AttributeError, ArithmeticError, MemoryError, ValueError, RecursionError)


class Rules(NamedTuple):
    """The data and functions that the checker needs for a kind."""

    known: Fields
    """Fields and values that problems may have, as in ``problems.toml``."""
    forms: dict[str, Form]
    """The forms of proof, as in :data:`FORMS`."""


def rules_of(kind: str) -> Rules:
    """Returns the rules of a kind by its name; raises MalformedError if neither this package nor another one has such a
    kind."""
    if kind in FORMS:
        return Rules(KNOWN[kind], FORMS[kind])
    # Imported here because this import takes longer than most checks.
    from importlib.metadata import entry_points

    others = entry_points(group=ENTRY_POINT_GROUP, name=kind)
    expect(bool(others), "problem.format", kind, f"a problem of {', '.join(FORMS)}")
    rules: Rules = next(iter(others)).load()
    return rules


class Verdict(NamedTuple):
    """The outcome of a successful check."""

    form: str
    """The form of the proof."""
    bound: int | None
    """The claim of the certificate, which its proof shows: no plan has a smaller objective, in the unit of the kind. None means
    that no plan exists."""
    shown: int | None
    """The largest bound that the proof shows, which may be larger than the claim. None means that no plan exists."""


def check(problem: bytes, certificate: bytes) -> Verdict:
    """Checks a certificate.

    Parameters
    ----------
    problem, certificate
        The contents of their files.

    Raises
    ------
    MalformedError
        One of the files is not valid.
    UnprovenError
        The certificate is for another problem, or its proof does not show its claim.
    """
    return check_parsed(parse(problem, "problem"), parse(certificate, "certificate"))


def check_parsed(problem: Fields, certificate: Fields) -> Verdict:
    """The same as :func:`check` for the objects that :func:`parse` returns; it raises the same errors."""
    claim = _claim(certificate)
    kind = str(problem.get("format")).removeprefix("stowplan.").removesuffix(".problem")
    _check_is_for(problem, kind, certificate)
    schema, forms = rules_of(kind)
    check_schema(problem, schema, "problem")
    form, shown = _shown(problem, kind, forms, certificate)
    _check_claim(claim, shown)
    return Verdict(form, claim, shown)


def _claim(certificate: Fields) -> int | None:
    """The bound that a certificate of this version claims; None if it claims that no plan exists."""
    head = certificate.get("format"), certificate.get("version")
    expect(head == (FORMAT, VERSION), "certificate", head, f"format {FORMAT!r}, version {VERSION}")
    return None if certificate.get("bound") is None else whole(certificate, "bound", -LARGEST)


def _check_is_for(problem: Fields, kind: str, certificate: Fields) -> None:
    """Checks that the certificate names the kind and the digest of the problem."""
    named = certificate.get("kind")
    need(named == kind, "kind", f"found {str(named)[:SHOWN_KIND]!r}, the problem is of {kind[:SHOWN_KIND]!r}")
    is_same = certificate.get("problem") == digest(problem)
    advice = "if the file of the problem leaves out fields, first write it with `stowplan convert`, which fills them in"
    need(is_same, "problem", f"the certificate is for another problem: the digests differ; {advice}")


def _shown(problem: Fields, kind: str, forms: dict[str, Form], certificate: Fields) -> tuple[str, int | None]:
    """The form of the proof, and the largest bound that it shows."""
    try:
        proof, form = certificate["proof"], str(certificate["proof"].get("form"))
        need(form != "trusted", "proof", "it names a solver that is trusted, and shows nothing")
        expect(form in forms, "proof.form", form, f"one of {kind}")
        return form, forms[form](problem, proof)
    except SHAPE_ERRORS as error:
        raise MalformedError(f"proof: {type(error).__name__}: {str(error)[:SHOWN_ERROR]}") from None


def _check_claim(claim: int | None, shown: int | None) -> None:
    """Checks that ``claim <= shown``. A proof that no plan exists shows every bound."""
    holds = shown is None or (claim is not None and claim <= shown)
    need(holds, "bound", f"it claims {claim}, its proof shows {shown}")
