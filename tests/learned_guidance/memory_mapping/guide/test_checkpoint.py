"""Files of weights: kept and read, without torch, without running anything; and refused in one line."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lib.memory_mapping.guide_file import save
from stowplan.errors import InputError
from stowplan.learned_guidance.memory_mapping.guide import checkpoint
from tests.learned_guidance.memory_mapping.guide.weights import random_weights


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save(tmp_path / "guide.npz", random_weights())
    return tmp_path / "guide.npz"


def test_weights_come_back(path: Path) -> None:
    weights = checkpoint.load(path)
    for name, value in random_weights().items():
        np.testing.assert_allclose(weights[name], value, rtol=1e-3, atol=1e-6)


def test_the_shipped_guide_is_small_and_needs_no_torch() -> None:
    assert checkpoint.SHIPPED.stat().st_size < 1_000_000
    code = """
import sys
sys.modules["torch"] = None
import random
from stowplan.learned_guidance.memory_mapping.guide.guide import learned_hint
from stowplan.models import hint
from tests.models.memory_mapping.cases import random_problem
problem = random_problem(random.Random(1), steps=8, tensors=5)
hint.check(problem, learned_hint(problem))
assert not [name for name in sys.modules if name.startswith(("torch.", "sklearn", "scipy"))]
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[4])


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (Path(sys.argv[0] + ".evil"), "ran"))


def changed(path: Path, **values: Any) -> None:
    with np.load(path) as found:
        arrays = dict(found) | values
    np.savez(path, **{name: each for name, each in arrays.items() if each is not None})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"format": "other"}, "format: found other, expected stowplan.memory_mapping.guide"),
        ({"version": 2}, "version: found 2, expected 1"),
        ({"version": None}, "version: found nothing, expected 1"),
        ({"scores.bias": None}, r"scores.bias: found nothing, expected finite floats of shape \(2,\)"),
        ({"scores.bias": np.zeros(3)}, r"scores.bias: found float64 of shape \(3,\), expected finite"),
        ({"scores.bias": np.array([0, np.nan])}, r"scores.bias: found float64 of shape \(2,\), expected finite"),
        ({"scores.bias": np.array([Evil(), Evil()], object)}, r"found no readable archive of arrays \(ValueError\)"),
    ],
)
def test_what_is_no_guide_is_refused_in_one_line(path: Path, values: dict[str, Any], expected: str) -> None:
    changed(path, **values)
    with pytest.raises(InputError, match=expected) as error:
        checkpoint.load(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)
    assert not Path(sys.argv[0] + ".evil").exists()


@pytest.mark.parametrize("content", [b"", b"no archive", pickle.dumps(Evil()), b"PK\x03\x04" + bytes(40)])
def test_so_is_what_is_no_archive(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "guide.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match="expected a learned guide"):
        checkpoint.load(path)
    with pytest.raises(InputError, match="no such file"):
        checkpoint.load(tmp_path / "none.npz")
    assert not Path(sys.argv[0] + ".evil").exists()
