"""Files of weights: kept and read, without torch, without running anything; and refused in one line."""

from __future__ import annotations

import contextlib
import pickle
import random
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.lib.memory_mapping.guide_file import save
from stowplan.errors import InputError
from stowplan.learned_guidance.memory_mapping.guide import guide
from tests.learned_guidance.memory_mapping.guide.weights import random_weights


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save(tmp_path / "guide.npz", random_weights())
    return tmp_path / "guide.npz"


def test_weights_come_back(path: Path) -> None:
    weights = guide.load(path)
    for name, value in random_weights().items():
        np.testing.assert_allclose(weights[name], value, rtol=1e-3, atol=1e-6)


def test_the_shipped_guide_is_small_and_needs_no_torch() -> None:
    assert guide.SHIPPED.stat().st_size < 1_000_000
    code = """
import sys
sys.modules["torch"] = None
import random
from stowplan.learned_guidance.memory_mapping.guide.guide import learned_hint
from stowplan.models import hint
from stowplan.models.memory_mapping.hint import VALUES
from tests.models.memory_mapping.cases import random_problem
problem = random_problem(random.Random(1), steps=8, tensors=5)
hint.check_hint(problem, learned_hint(problem), VALUES)
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
        ({"scores.bias": np.array([0, 1e300])}, r"scores.bias: found float64 of shape \(2,\), expected finite"),
        ({"scores.bias": np.array([Evil(), Evil()], object)}, r"found no readable archive of arrays \(ValueError\)"),
    ],
)
def test_what_is_no_guide_is_refused_in_one_line(path: Path, values: dict[str, Any], expected: str) -> None:
    changed(path, **values)
    with pytest.raises(InputError, match=expected) as error:
        guide.load(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)
    assert not Path(sys.argv[0] + ".evil").exists()


@pytest.mark.parametrize("content", [b"", b"no archive", pickle.dumps(Evil()), b"PK\x03\x04" + bytes(40)])
def test_so_is_what_is_no_archive(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "guide.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match="expected a learned guide"):
        guide.load(path)
    with pytest.raises(InputError, match="No such file"):
        guide.load(tmp_path / "none.npz")
    assert not Path(sys.argv[0] + ".evil").exists()


def test_damaged_bytes_are_refused(path: Path) -> None:
    """Wherever they are: in the archive's directory, in what is packed, in the header of an array."""
    whole, chance = path.read_bytes(), random.Random(1)
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 3))):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data[: chance.choice((len(data), len(data), chance.randrange(len(data))))])
        with contextlib.suppress(InputError):
            guide.load(path)


def test_a_single_array_and_a_locked_archive_are_refused(tmp_path: Path, path: Path) -> None:
    np.save(tmp_path / "one.npy", np.zeros(3))
    data = bytearray(path.read_bytes())
    data[data.rindex(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "locked.npz").write_bytes(data)
    for name in ("one.npy", "locked.npz"):
        with pytest.raises(InputError, match="expected a learned guide"):
            guide.load(tmp_path / name)


def test_text_of_numbers_that_are_no_characters_is_refused(path: Path) -> None:
    changed(path, format=np.array([0x7FFFFFFF], np.uint32).view("<U1"))
    with pytest.raises(InputError, match="format: found no array of numbers or text"):
        guide.load(path)


def test_a_file_that_has_changed_is_read_again(path: Path) -> None:
    first = guide.load(path)
    assert guide.load(path) is first
    changed(path, **{"scores.bias": np.array([0.25, 0.5])})
    assert guide.load(path)["scores.bias"].tolist() == [0.25, 0.5]


def test_members_that_are_no_arrays_and_bombs_are_refused(tmp_path: Path, path: Path) -> None:
    for name, content, expected in (
        ("scores.bias.npy", b"no array", "scores.bias: found no array"),
        ("more.npy", bytes(1 << 28), r"found arrays of \d+ bytes, expected at most"),
    ):
        with zipfile.ZipFile(path) as archive, zipfile.ZipFile(tmp_path / "other.npz", "w", zipfile.ZIP_DEFLATED) as other:
            for each in archive.namelist():
                other.writestr(each, archive.read(each) if each != name else content)
            if name not in archive.namelist():
                other.writestr(name, content)
        with pytest.raises(InputError, match=expected):
            guide.load(tmp_path / "other.npz")
