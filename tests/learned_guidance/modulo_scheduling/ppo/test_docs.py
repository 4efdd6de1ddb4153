"""docs/reference/ppo.md states the hyperparameters and the columns that there are."""

from __future__ import annotations

import json
import re

import msgspec
import pytest

pytest.importorskip("torch")

from stowplan.learned_guidance.modulo_scheduling.ppo.config import PpoConfig
from stowplan.learned_guidance.modulo_scheduling.ppo.trainer import Trainer
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "ppo.md").read_text(encoding="utf-8")


def stated(value: object) -> str:
    return json.dumps(msgspec.to_builtins(value)).strip('"')


def test_the_table_has_the_values_of_both_presets() -> None:
    paper, cpu = PpoConfig.paper(), PpoConfig.cpu()
    expected = [
        (field.name, stated(getattr(paper, field.name)), stated(getattr(cpu, field.name)))
        for field in msgspec.structs.fields(PpoConfig)
    ]
    table = PAGE.partition("### Hyperparameters")[2].partition("\n### ")[0]
    found = re.findall(r"^\| `(\w+)` \| ([^|]*) \| ([^|]*) \|$", table, flags=re.MULTILINE)
    assert found == [row for row in expected if row[1] != row[2]]


def test_every_column_of_the_curve_is_explained() -> None:
    table = PAGE.partition("| column | |")[2].partition("\n\n")[0]
    assert re.findall(r"`(\w+)`", table) == [*Trainer.COLUMNS]
