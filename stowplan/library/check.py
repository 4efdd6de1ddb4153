"""Checks the library without any solver: the rows of its table, and plans and certificates that somebody adds.

A *row* of the table has an instance with its best known objective and bound. The column *certified* has the bound that a
*certificate*, a proof that can be checked without a solver, proves; the column *bound* may be from a solver. An instance that
may not be shipped is made by a *recipe* from files of others.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from stowplan import files, kinds
from stowplan.certificates import checker
from stowplan.certificates.certificate import Certificate
from stowplan.certificates.checker.reading import MalformedError, UnprovenError, digest, parse
from stowplan.document import PlanDocument
from stowplan.errors import InputError, StowplanError, VerificationError
from stowplan.frontends.read import read_plan
from stowplan.kernel.kind import check as check_plan
from stowplan.kernel.kind import kind_of
from stowplan.library.table import INFEASIBLE, TABLE, Bound, Library, Row

#: Folders of the library that have no instances.
PLANS, CERTIFICATES = "plans", "certificates"

#: Plans and certificates of more bytes than this are compressed when they are added.
MAX_PLAIN_BYTES = 16_000


def faults(library: Library, row: Row) -> Iterator[str]:
    """Yields a line for each fault of a row; no line if the row is correct.

    The instance must have the digest of the row, its plan must be valid and have the row's objective, and its certificate must
    prove the bound ``certified``. If the file of an instance that a recipe makes is missing, only contradictions between the
    columns of the row are faults.
    """
    yield from _contradictions(row)
    if row.is_recipe and library.instance(row) is None:
        return
    try:
        data = library.data(row)
        own_digest = digest(parse(data, "problem"))
        if own_digest != row.digest:
            yield f"digest: found {own_digest[:12]}, expected {row.digest[:12]}: the instance was changed"
            return
        problem, plan = library.problem(row), library.plan(row)
        if plan is not None:
            objective = _objective(problem, plan, library.folder / row.plan)
            if objective != row.objective:
                yield f"objective: the table says {row.objective}, the plan has {objective}"
        certificate = library.certificate(row)
        if certificate is not None:
            proven = _proven(data, certificate, library.folder / row.certificate)
            if proven != row.certified:
                yield f"certified: the table says {row.certified}, the certificate claims {proven}"
    except (StowplanError, MalformedError) as error:
        yield str(error)


def _contradictions(row: Row) -> Iterator[str]:
    """Yields a line for each contradiction between columns of a row."""
    if (row.objective is None) != (not row.plan):
        yield "plan: an objective needs a plan, and a plan an objective"
    if (row.certified is None) != (not row.certificate):
        yield "certificate: a certified bound needs a certificate, and a certificate a certified bound"
    if row.certified is not None and not is_at_least(row.bound, row.certified):
        yield f"bound: found {row.bound}, expected at least the certified {row.certified}"
    if row.objective is not None and row.bound is not None and (row.bound == INFEASIBLE or row.bound > row.objective):
        yield f"bound: found {row.bound}, expected at most the objective {row.objective}"
    if (row.class_ == "open") == row.is_proven:
        yield f"class: found {row.class_}, but the optimum is {'proven' if row.is_proven else 'not proven'}"


def is_at_least(bound: Bound, other: Bound) -> bool:
    """Returns whether a bound is at least as strong as another one.

    :data:`~stowplan.library.table.INFEASIBLE` is the strongest bound, None the weakest.
    """
    if other is None or bound == INFEASIBLE:
        return True
    return bound is not None and other != INFEASIBLE and bound >= other


def strays(library: Library) -> list[str]:
    """Returns a line for each file of the library that no row names, and for each file that a row names and that is missing."""
    expected = {library.folder / name for row in library.rows.values() for name in (row.plan, row.certificate) if name}
    instances = {library.instance(row) for row in library.rows.values()}
    folders = (PLANS, CERTIFICATES, *kinds.import_paths())
    present = {path for name in folders for path in (library.folder / name).rglob("*") if path.is_file()}
    unnamed = [f"{path}: no row of {TABLE} names this file" for path in sorted(present - expected - instances)]
    return unnamed + [f"{path}: found no file, but {TABLE} names it" for path in sorted(expected - present)]


def _objective(problem: Any, plan: PlanDocument, source: Path) -> int:
    """The objective of a plan; raises VerificationError if the plan is not valid."""
    verification = check_plan(kind_of(problem), problem, plan)
    if not verification.ok or verification.objective is None:
        raise VerificationError(f"{source}: not a valid plan: {''.join(verification.lines[:1])}")
    return verification.objective


def _proven(data: bytes, certificate: Certificate, source: Path) -> Bound:
    """The bound that a certificate claims and proves; raises VerificationError if the proof fails, and InputError if the file
    is no certificate."""
    try:
        verdict = checker.check(data, files.encode(certificate))
    except UnprovenError as error:
        raise VerificationError(f"{source}: the bound is not proven: {error}") from None
    except MalformedError as error:
        raise InputError(str(error), source=source) from None
    return INFEASIBLE if verdict.bound is None else verdict.bound


@dataclass(frozen=True)
class Addition:
    """A valid plan, or a certificate, that somebody adds to an instance."""

    row: Row
    """The new row of the instance; if the addition is not better, the row of the table."""
    is_better: bool
    """Whether the plan improves the objective, or the certificate the certified bound."""
    verdict: str
    """One line for people, which compares the objective or the bound with the one in the table."""
    document: PlanDocument | Certificate
    """The plan or the certificate."""

    def save(self, library: Library) -> Library:
        """If the addition is better, write its file and the table, and remove an older file of the instance.

        Returns the library with the new row, or ``library`` itself if the addition is not better. Raises InputError if a file
        or folder cannot be written.
        """
        if not self.is_better:
            return library
        is_plan = isinstance(self.document, PlanDocument)
        path = library.folder / (self.row.plan if is_plan else self.row.certificate)
        other = path.with_suffix("") if path.suffix == ".gz" else path.with_name(f"{path.name}.gz")
        files.make_folder(path.parent)
        write(path, self.document)
        other.unlink(missing_ok=True)
        changed = library.changed(self.row)
        changed.save_table()
        return changed


def added(library: Library, row: Row, path: Path, *, who: str, when: str, how: str) -> Addition:
    """Verifies a plan or a certificate from any source, and compares it with the table. No file is written.

    Parameters
    ----------
    row
        The row of the instance.
    path
        A plan as ``stowplan solve -o`` writes it, offsets in minimalloc's CSV (for packing), or a certificate.
    who, when, how
        Values of these columns if the plan or the certificate is better: the finder, the day as YYYY-MM-DD, and the command or
        method. They are not checked.

    Raises
    ------
    InputError
        The file cannot be read, is neither a plan nor a certificate, or is a plan of another kind; or the file of the instance
        is missing or not valid.
    VerificationError
        The plan is not valid, the certificate does not prove its bound, or a valid plan contradicts a certified bound.
    """
    data, problem = library.data(row), library.problem(row)
    noted = {"who": who, "when": when, "how": how}
    if files.is_json(path) and files.peek_format(files.read_bytes(path)) == checker.FORMAT:
        return _added_certificate(row, data, path, noted)
    plan = read_plan(path, problem)
    if not isinstance(plan, kinds.by_name(row.kind).plan):
        raise InputError(f"found {plan.format}, expected a plan of {row.kind}", source=path)
    objective = _objective(problem, plan, path)
    _check_against(row, objective, row.certified, path)
    is_better = row.objective is None or objective < row.objective
    new = msgspec.structs.replace(row, objective=objective, plan=named(PLANS, row, plan), **noted) if is_better else row
    return Addition(_with_class(new), is_better, _compared("plan", objective, row.objective, is_better), plan)


def _added_certificate(row: Row, data: bytes, path: Path, noted: dict[str, str]) -> Addition:
    """Verifies a certificate, and raises the errors of :func:`added`.

    ``data`` is the instance as JSON, and ``noted`` has the columns who, when and how.
    """
    certificate = Certificate.load(path)
    proven = _proven(data, certificate, path)
    _check_against(row, row.objective, proven, path)
    is_better = not is_at_least(row.certified, proven)
    verdict = _compared("certified bound", proven, row.certified, is_better)
    if not is_better:
        return Addition(row, False, verdict, certificate)
    bound = row.bound if is_at_least(row.bound, proven) else proven
    file = named(CERTIFICATES, row, certificate)
    new = msgspec.structs.replace(row, bound=bound, certified=proven, certificate=file, **noted)
    return Addition(_with_class(new), True, verdict, certificate)


def _check_against(row: Row, objective: int | None, proven: Bound, path: Path) -> None:
    """Raise VerificationError if the objective of a valid plan is below a certified bound.

    That would mean that the verifier or the checker of certificates is wrong.
    """
    if objective is not None and proven is not None and (proven == INFEASIBLE or proven > objective):
        raise VerificationError(f"{path}: a plan of {objective} contradicts the certified bound {proven} of {row.id}")


def _with_class(row: Row) -> Row:
    """The row with the class (open, hard or easy) and the bound that follow from its objective and its bounds.

    An open instance whose optimum is now proven becomes hard, and an instance whose optimum is no longer proven becomes open. A
    plan with an objective below an uncertified bound shows that the bound was wrong, so that the certified bound replaces it.
    """
    if row.objective is not None and isinstance(row.bound, int) and row.bound > row.objective:
        row = msgspec.structs.replace(row, bound=row.certified)
    if row.is_proven != (row.class_ == "open"):
        return row
    return msgspec.structs.replace(row, class_="hard" if row.is_proven else "open")


def _compared(what: str, value: Bound, before: Bound, is_better: bool) -> str:
    """One line that compares an objective or a bound with that of the table."""
    table = "the table has none" if before is None else f"the table has {before}"
    word = "better" if is_better else "equal" if value == before else "no better"
    return f"{what} {value}: {word}, {table}"


def named(folder: str, row: Row, document: Any) -> str:
    """Returns the path of a row's file within the library; its extension says whether it is compressed.

    Parameters
    ----------
    folder
        :data:`PLANS` or :data:`CERTIFICATES`.
    row
        The row, whose id is the name of the file.
    document
        Content of the file, on whose size the extension depends.
    """
    ending = ".json.gz" if len(files.encode(document)) > MAX_PLAIN_BYTES else ".json"
    return f"{folder}/{row.id}{ending}"


def write(path: Path, document: Any) -> None:
    """Writes a document, compressed if the extension is ``.gz``. Equal documents give equal bytes.

    Raises InputError if the file cannot be written.
    """
    data = files.encode(document)
    files.write_atomic(path, gzip.compress(data, 9, mtime=0) if path.suffix == ".gz" else data)
