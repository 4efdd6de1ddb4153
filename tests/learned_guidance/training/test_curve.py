"""The training curve where it is no regular file."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from stowplan.errors import InputError
from stowplan.learned_guidance.training.curve import CurveFile

COLUMNS = ("tick", "reward")


def test_through_a_named_pipe(tmp_path: Path) -> None:
    """All rows come through one opening: the reader would take the first closing for the end."""
    pipe = tmp_path / "curve.csv"
    os.mkfifo(pipe)
    found: list[list[str]] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text().splitlines()), daemon=True)
    reader.start()
    # Not even a resumed run reads it.
    curve = CurveFile(pipe, COLUMNS, after=2)
    for number in (3, 4):
        curve.append([str(number), ""])
    del curve
    reader.join(20)
    assert found == [["tick,reward", "3,", "4,"]]


def test_where_it_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write: Is a directory"):
        CurveFile(tmp_path, COLUMNS)
    reading, writing = os.pipe()
    os.close(reading)
    with pytest.raises(InputError, match="cannot write: Broken pipe"):
        CurveFile(f"/dev/fd/{writing}", COLUMNS)
    os.close(writing)
