"""A library of two instances in a folder: one that is proven, and one about which nothing is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from stowplan import files
from stowplan.certificates.certificate import Certificate
from stowplan.certificates.checker.reading import digest, parse
from stowplan.library.check import write
from stowplan.library.table import Library, Row
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Buffer, Problem

TWO = Problem(
    name="two", buffers=(Buffer(id="a", lower=0, upper=3, size=64), Buffer(id="b", lower=2, upper=5, size=32)), capacity=None
)


def digest_of(problem: Any) -> str:
    return digest(parse(files.encode(problem), "problem"))


def plan(*offsets: int) -> Plan:
    """Offsets for the two buffers, with the height that they have."""
    height = max(offset + buffer.size for offset, buffer in zip(offsets, TWO.buffers, strict=True))
    return Plan(problem=TWO.digest, objective=height, offsets=offsets)


def proof(bound: int = 96, problem: Problem = TWO) -> Certificate:
    return Certificate(kind="packing", problem=digest_of(problem), bound=bound, proof={"form": "load", "moment": 2})


PROVEN = Row(
    id="two-proven",
    kind="packing",
    class_="easy",
    source="by hand",
    digest=digest_of(TWO),
    objective=96,
    bound=96,
    certified=96,
    who="a tester",
    when="2026-11-30",
    how="by hand",
    plan="plans/two-proven.json",
    certificate="certificates/two-proven.json",
)

UNKNOWN = msgspec.structs.replace(
    PROVEN, id="two-open", class_="open", objective=None, bound=None, certified=None, plan="", certificate=""
)


def library(folder: Path) -> Library:
    """The library, written to a folder."""
    for name in ("packing", "plans", "certificates"):
        (folder / name).mkdir(parents=True)
    for row in (PROVEN, UNKNOWN):
        write(folder / "packing" / f"{row.id}.json", TWO)
    write(folder / PROVEN.plan, plan(0, 64))
    write(folder / PROVEN.certificate, proof())
    made = Library(folder, {row.id: row for row in (PROVEN, UNKNOWN)})
    made.save_table()
    return Library.open(folder)
