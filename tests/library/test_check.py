"""Checks of rows find every fault that is put into a library, and additions are compared with what is there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from stowplan.certificates.certificate import Certificate
from stowplan.errors import InputError, VerificationError
from stowplan.library.check import MAX_PLAIN_BYTES, added, faults, named, strays, write
from stowplan.library.table import INFEASIBLE, Library
from stowplan.models.banked_packing.plan import Plan as BankedPlan
from stowplan.models.packing.problem import Buffer
from tests.library.cases import PROVEN, TWO, UNKNOWN, digest_of, library, plan, proof

NOTED = {"who": "somebody", "when": "2026-12-01", "how": "by hand"}


@pytest.fixture
def made(tmp_path: Path) -> Library:
    return library(tmp_path / "library")


def found(made: Library) -> list[str]:
    opened = Library.open(made.folder)
    return [text for row in opened.rows.values() for text in faults(opened, row)] + strays(opened)


def rewritten(name: str, old: str, new: str) -> Callable[[Library], None]:
    def change(made: Library) -> None:
        path = made.folder / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return change


def row(**changes: object) -> Callable[[Library], None]:
    return lambda made: made.changed(msgspec.structs.replace(PROVEN, **changes)).save_table()


FAULTS: dict[str, tuple[Callable[[Library], None], str]] = {
    "instance": (rewritten("packing/two-proven.json", '"size": 32', '"size": 33'), "digest: found"),
    "no JSON": (rewritten("packing/two-proven.json", "{", "["), "no JSON that can be read"),
    "no instance": (lambda made: (made.folder / "packing/two-open.json").unlink(), "found no file, expected an instance"),
    "overlap": (lambda made: write(made.folder / PROVEN.plan, plan(0, 60)), "not a valid plan: overlap"),
    "objective": (row(objective=97, class_="open"), "objective: the table says 97, the plan has 96"),
    "stated objective": (rewritten(PROVEN.plan, '"objective": 96', '"objective": 95'), "not a valid plan: wrong_objective"),
    "other plan": (rewritten(PROVEN.plan, TWO.digest, "0" * 64), "not a valid plan: wrong_problem"),
    "bound": (rewritten(PROVEN.certificate, '"bound": 96', '"bound": 97'), "the bound is not proven: bound: it claims 97"),
    "moment": (rewritten(PROVEN.certificate, '"moment": 2', '"moment": 4'), "its proof shows 32"),
    "other proof": (rewritten(PROVEN.certificate, PROVEN.digest, "0" * 64), "the certificate is for another problem"),
    "trusted": (rewritten(PROVEN.certificate, '"load"', '"trusted"'), "it names a solver that is trusted"),
    "certified": (row(certified=95), "certified: the table says 95, the certificate claims 96"),
    "low bound": (row(bound=95, class_="open"), "bound: found 95, expected at least the certified 96"),
    "high bound": (row(bound=97, class_="open"), "bound: found 97, expected at most the objective 96"),
    "infeasible": (row(bound=INFEASIBLE), "bound: found infeasible, expected at most the objective 96"),
    "class": (row(class_="open"), "class: found open, but the optimum is proven"),
    "no plan": (row(plan=""), "plan: an objective needs a plan"),
    "no certificate": (row(certificate=""), "certificate: a certified bound needs a certificate"),
    "missing": (lambda made: (made.folder / PROVEN.plan).unlink(), "found no file, but table.csv names it"),
    "stray": (lambda made: write(made.folder / "plans" / "three.json", plan(0, 64)), "three.json: no row of table.csv names"),
}


def test_a_library_without_faults(made: Library) -> None:
    assert found(made) == []


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_found(made: Library, name: str) -> None:
    change, said = FAULTS[name]
    change(made)
    assert any(said in text for text in found(made)), found(made)


def test_what_a_recipe_makes_may_be_missing(made: Library) -> None:
    recipe = msgspec.structs.replace(PROVEN, source="recipe others")
    (made.folder / "packing/two-proven.json").unlink()
    made.changed(recipe).save_table()
    assert found(made) == []
    made.changed(msgspec.structs.replace(recipe, bound=95)).save_table()
    assert "bound: found 95, expected at least the certified 96" in found(made)
    # Once it is there, it is checked like any other.
    made.changed(recipe).save_table()
    write(made.folder / "packing/two-proven.json.gz", TWO)
    assert found(made) == []
    write(made.folder / "packing/two-proven.json.gz", msgspec.structs.replace(TWO, buffers=TWO.buffers[:1]))
    assert any("digest: found" in text for text in found(made))


def test_plans_are_compared_with_the_best(made: Library, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write(path, plan(0, 100))
    first = added(made, UNKNOWN, path, **NOTED)
    assert (first.row.objective, first.row.plan, first.row.who, first.row.class_) == (
        132,
        "plans/two-open.json",
        "somebody",
        "open",
    )
    assert (first.is_better, first.verdict) == (True, "plan 132: better, the table has none")
    made = first.save(made)
    assert found(made) == []
    again = added(made, made.row("two-open"), path, **NOTED)
    assert (again.is_better, again.verdict, again.row) == (False, "plan 132: equal, the table has 132", made.row("two-open"))
    write(path, plan(0, 101))
    assert added(made, made.row("two-open"), path, **NOTED).verdict == "plan 133: no better, the table has 132"
    # Offsets as minimalloc writes them.
    (tmp_path / "plan.csv").write_text("id,lower,upper,size,offset\na,0,3,64,0\nb,2,5,32,64\n")
    better = added(made, made.row("two-open"), tmp_path / "plan.csv", **NOTED)
    assert (better.row.objective, better.is_better) == (96, True)
    made = better.save(made)
    assert found(made) == []
    assert Library.open(made.folder).row("two-open") == better.row


def test_a_proof_closes_an_open_instance(made: Library, tmp_path: Path) -> None:
    path, other = tmp_path / "plan.json", tmp_path / "proof.json"
    write(path, plan(0, 64))
    write(other, proof(90))
    made = added(made, UNKNOWN, path, **NOTED).save(made)
    made = added(made, made.row("two-open"), other, **NOTED).save(made)
    assert (made.row("two-open").bound, made.row("two-open").class_) == (90, "open")
    write(other, proof(80))
    assert added(made, made.row("two-open"), other, **NOTED).verdict == "certified bound 80: no better, the table has 90"
    write(other, proof())
    closed = added(made, made.row("two-open"), other, **NOTED)
    assert (closed.row.bound, closed.row.certified, closed.row.class_) == (96, 96, "hard")
    assert found(closed.save(made)) == []
    # A bound that rests on trusting a solver, and that a plan goes below, was wrong.
    wrong = msgspec.structs.replace(UNKNOWN, bound=100)
    assert added(made, wrong, path, **NOTED).row.bound is None


def test_that_there_is_no_plan_can_be_proven(made: Library, tmp_path: Path) -> None:
    problem = msgspec.structs.replace(TWO, capacity=80)
    write(made.folder / "packing" / "two-open.json", problem)
    row = msgspec.structs.replace(UNKNOWN, digest=digest_of(problem))
    made = made.changed(row)
    claim = Certificate(kind="packing", problem=row.digest, bound=None, proof={"form": "search"})
    write(tmp_path / "proof.json", claim)
    addition = added(made, row, tmp_path / "proof.json", **NOTED)
    assert (addition.row.certified, addition.row.class_, addition.row.is_certified) == (INFEASIBLE, "hard", True)
    made = addition.save(made)
    assert found(made) == []
    assert not added(made, addition.row, tmp_path / "proof.json", **NOTED).is_better


def test_what_is_wrong_is_refused(made: Library, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    before = {each: each.read_bytes() for each in made.folder.rglob("*") if each.is_file()}

    def refused(kind: type[Exception], said: str, row: object = UNKNOWN) -> None:
        with pytest.raises(kind, match=said):
            added(made, row, path, **NOTED)  # type: ignore[arg-type]

    write(path, plan(0, 60))
    refused(VerificationError, "not a valid plan: overlap")
    write(path, proof(97))
    refused(VerificationError, "the bound is not proven: bound: it claims 97, its proof shows 96")
    write(path, BankedPlan(problem=TWO.digest, objective=0, banks=(0, 0), offsets=(0, 64)))
    refused(InputError, r"found stowplan\.banked_packing\.plan, expected a plan of packing")
    path.write_text(json.dumps({"format": "stowplan.certificate", "version": 1}))
    refused(InputError, "kind")
    path.write_text("{}")
    refused(InputError, "expected a plan")
    write(path, plan(0, 64))
    refused(
        VerificationError, "a plan of 96 contradicts the certified bound 100", msgspec.structs.replace(PROVEN, certified=100)
    )
    assert before == {each: each.read_bytes() for each in made.folder.rglob("*") if each.is_file()}


def test_large_files_are_compressed_and_the_other_form_goes(made: Library, tmp_path: Path) -> None:
    many = tuple(Buffer(id=f"b{number}", lower=0, upper=1, size=1) for number in range(MAX_PLAIN_BYTES // 10))
    assert named("plans", UNKNOWN, msgspec.structs.replace(TWO, buffers=many)) == "plans/two-open.json.gz"
    # A first plan was large, a better one is small.
    write(made.folder / "plans" / "two-open.json.gz", plan(0, 100))
    made = made.changed(msgspec.structs.replace(UNKNOWN, objective=132, plan="plans/two-open.json.gz"))
    write(tmp_path / "plan.json", plan(0, 64))
    made = added(made, made.row("two-open"), tmp_path / "plan.json", **NOTED).save(made)
    assert found(made) == []
