"""Runs of :func:`stowplan.solve` with fake candidates."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stowplan import kinds
from stowplan.result import Result
from tests.kernel.fakes import fake_kind, ladder_problem
from tests.patience import HANG

#: Limit for runs that end by themselves, long before.
AMPLE = HANG

SolveFakes = Callable[..., Result]

#: An input of each kind, and its target.
OF_EACH_KIND = {
    "memory_mapping": ("lstm_scan_inf_b32.hlo.txt.gz", "tpu-v4"),
    "packing": ("buffers.csv", None),
    "tier_placement": ("resnet50.layers.json", "nnp-i"),
    "bank_mapping": ("attention.hlo.txt", "inferentia"),
    "modulo_scheduling": ("saxpy.dfg.json", "se"),
    "operator_order": ("cells.graph.json", None),
    "rematerialization": ("training.remat.json", None),
    "banked_packing": ("banks.json", None),
    "llm_placement": ("llm.json", None),
}


@pytest.fixture
def solve_fakes(monkeypatch: pytest.MonkeyPatch) -> SolveFakes:
    """``solve`` of the ladder with the named fakes; ``kind`` holds changes to the kind."""
    module = importlib.import_module("stowplan.kernel.solve")

    def run(*names: str, kind: dict[str, Any] | None = None, **options: Any) -> Result:
        # As it was before, after the test.
        monkeypatch.setattr(kinds, "_PLACES", dict(kinds._PLACES))
        fakes = fake_kind(*names, **(kind or {}))
        monkeypatch.setattr(module, "kind_of", lambda problem: fakes)
        if options.get("deterministic"):
            # Of one stage.
            options = {"work_limit": 0.1, **options}
        return module.solve(ladder_problem(), **{"time_limit": AMPLE, **options})

    return run


def is_running(pid: int) -> bool:
    """Whether a process is there and not merely waiting for its parent to notice its end."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return fields[0] not in "ZX"
