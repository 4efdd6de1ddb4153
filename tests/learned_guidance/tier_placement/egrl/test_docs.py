"""docs/reference/egrl.md states the hyperparameters and the columns that there are."""

from __future__ import annotations

import json
import re

import msgspec
import pytest

pytest.importorskip("torch")

from stowplan.learned_guidance.tier_placement.egrl.config import EgrlConfig
from stowplan.learned_guidance.tier_placement.egrl.trainer import Progress
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "egrl.md").read_text(encoding="utf-8")


def stated(value: object) -> str:
    return json.dumps(msgspec.to_builtins(value)).strip('"')


def test_the_table_has_the_values_of_both_presets() -> None:
    paper, cpu = EgrlConfig.paper(), EgrlConfig.cpu()
    expected = [
        (field.name, stated(getattr(paper, field.name)), stated(getattr(cpu, field.name)))
        for field in msgspec.structs.fields(EgrlConfig)
    ]
    table = PAGE.partition("## Hyperparameters")[2].partition("\n## ")[0]
    found = re.findall(r"^\| `(\w+)` \| ([^|]*) \| ([^|]*) \|$", table, flags=re.MULTILINE)
    assert [row for row in found if row not in expected] == []
    assert [row for row in expected if row[1] != row[2] and row not in found] == []


def test_what_both_presets_have_from_the_paper() -> None:
    text = " ".join(PAGE.split()).partition("from table 2 of the paper (appendix B): ")[2].partition(". They differ")[0]
    found = [
        (name, float(value))
        for names, value in re.findall(r"((?:`\w+`(?:, | and | ))+)([\d.]+)", text)
        for name in re.findall(r"\w+", names)
    ]
    found = [(name, value) for name, value in found if name != "and"]
    assert len(found) == 10
    for config in (EgrlConfig.paper(), EgrlConfig.cpu()):
        assert [name for name, value in found if getattr(config, name) != value] == []


def test_every_column_of_the_curve_is_explained() -> None:
    table = PAGE.partition("| column | meaning |")[2].partition("\n\n")[0]
    assert re.findall(r"`(\w+)`", table) == [*Progress.columns()]
