"""The back end where torch is not, or not yet, loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stowplan.backends.torch import entry
from stowplan.errors import MissingDependencyError
from tests.patience import HANG


def test_importing_it_loads_no_torch() -> None:
    code = (
        "import sys, stowplan.backends.torch as b; b.backend, b.memory_limit, b.MemoryLimitError; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG, check=True)
    assert done.stdout.strip() == "False"


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install '\.\[learned\]'"):
        entry.backend("4 GiB")
