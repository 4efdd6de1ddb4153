"""Names of the Gymnasium environments."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.patience import HANG

pytest.importorskip("gymnasium")

from stowplan.learned_guidance import environments


@pytest.mark.parametrize("name", [environments.MMAP_GAME, environments.TIER_PLACEMENT, environments.MODULO_SCHEDULING])
def test_names_are_found_without_an_import(name: str) -> None:
    """And without torch, which takes seconds to import; a second import changes nothing."""
    code = (
        f"import sys, gymnasium; env = gymnasium.make('stowplan.learned_guidance.environments:{name}');"
        "import importlib, stowplan.learned_guidance.environments as room; importlib.reload(room);"
        "print(env.reset(seed=0)[0] in env.observation_space, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=HANG, check=False
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "True False\n")
