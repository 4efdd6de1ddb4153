"""docs/reference/ppo.md states the columns that there are."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch")

from stowplan.learned_guidance.modulo_scheduling.ppo.trainer import Trainer
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "ppo.md").read_text(encoding="utf-8")


def test_every_column_of_the_curve_is_explained() -> None:
    table = PAGE.partition("| column | meaning |")[2].partition("\n\n")[0]
    assert re.findall(r"`(\w+)`", table) == [*Trainer.COLUMNS]
