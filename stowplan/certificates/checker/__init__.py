"""The checker of certificates: whether a proof shows what it claims of a problem, in whole numbers.

It imports nothing of the package but its own files, and nothing but the standard library. A problem comes as the JSON that
``stowplan convert`` writes; its rules are read from it anew, by the pages of ``docs/reference`` alone.

    python -m stowplan.certificates.checker problem.json proof.json

To audit it, read docs/reference/certificates.md, which says by an example what each form of proof shows, and then, each file
knowing only those before it:

- ``reading`` and its table ``problems.toml``: files are refused unless they are what they should be; all that problems may say
- ``packing``: forms ``load`` and ``search`` of packing
- ``graphs``, ``orders``: operators and storages, forms ``cut`` and ``ranges``; form ``search`` of operator order
- ``loops``: loop bodies; forms ``recurrence``, ``resource`` and ``search`` of modulo scheduling
- ``prices``, ``placement``, ``mapping``: forms ``prices`` and ``tree`` of tiers, banks and memory mapping
- ``models``: form ``prices`` of LLM placement
- this file: which form belongs to which kind, and the order of checks

A function of a form returns the largest bound that a proof shows, and its docstring has the inequality. Wherever a proof could
leave out something that makes plans cheaper, what is computed is a lower bound of it.

Other packages add the kinds that they have brought by an entry point (:data:`GROUP`).
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
    check_known,
    digest,
    expect,
    need,
    parse,
    whole,
)

FORMAT, VERSION = "stowplan.certificate", 1

#: Entry points of other packages: the name of a kind, and ``module:name`` of its :class:`Rules`.
GROUP = "stowplan.certificates"

#: Characters that a message shows of a kind's name, and of an error that a proof has led to.
SHOWN_KIND, SHOWN_ERROR = 40, 100

#: What a proof of a problem shows: the largest bound, or None for infeasible.
Form = Callable[[Fields, Fields], int | None]


def _priced(prices: Prices) -> dict[str, Form]:
    """Prices alone, and below splits."""
    return {"prices": lambda problem, proof: prices(problem, proof, Splits()), "tree": partial(tree, prices)}


#: Forms of proof, by kind.
FORMS: dict[str, dict[str, Form]] = {
    "packing": {"load": packing.load, "search": packing.search},
    "operator_order": {"cut": graphs.cut, "search": orders.search},
    "rematerialization": {"cut": graphs.cut, "ranges": graphs.ranges},
    "modulo_scheduling": dict.fromkeys(loops.FORMS, loops.schedule),
    "memory_mapping": _priced(mapping.prices),
    "tier_placement": _priced(partial(placement.prices, placement.tiers)),
    "banked_packing": _priced(partial(placement.prices, placement.banks)),
    "bank_mapping": _priced(partial(placement.prices, placement.chip)),
    "llm_placement": {"prices": models.prices},
}

#: What Python raises where a proof is not of the shape that its form reads.
SHAPE_ERRORS = (LookupError, TypeError, AttributeError, ArithmeticError, MemoryError, ValueError, RecursionError)


class Rules(NamedTuple):
    """What the checker knows of a kind."""

    known: Fields
    """What its problems may say, as ``problems.toml`` has it."""
    forms: dict[str, Form]
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


def check_parsed(problem: Fields, certificate: Fields) -> Verdict:
    """The same of what :func:`parse` makes of them."""
    claim = _claim(certificate)
    kind = str(problem.get("format")).removeprefix("stowplan.").removesuffix(".problem")
    _check_is_for(problem, kind, certificate)
    known, forms = rules_of(kind)
    check_known(problem, known, "problem")
    form, shown = _shown(problem, kind, forms, certificate)
    _check_claim(claim, shown)
    return Verdict(form, claim, shown)


def _claim(certificate: Fields) -> int | None:
    """The bound that a certificate of this version claims; None: there is no plan."""
    head = certificate.get("format"), certificate.get("version")
    expect(head == (FORMAT, VERSION), "certificate", head, f"format {FORMAT!r}, version {VERSION}")
    return None if certificate.get("bound") is None else whole(certificate, "bound", -LARGEST)


def _check_is_for(problem: Fields, kind: str, certificate: Fields) -> None:
    """A certificate names the kind and the digest of its problem."""
    named = certificate.get("kind")
    need(named == kind, "kind", f"found {str(named)[:SHOWN_KIND]!r}, the problem is of {kind[:SHOWN_KIND]!r}")
    is_same = certificate.get("problem") == digest(problem)
    need(is_same, "problem", "the certificate is for another problem: the digests differ")


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
    """``claim <= shown``; what shows that there is no plan shows every bound."""
    holds = shown is None or (claim is not None and claim <= shown)
    need(holds, "bound", f"it claims {claim}, its proof shows {shown}")
