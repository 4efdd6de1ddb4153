"""``benchmarks/house/drawn.py``: which modules are read."""

from __future__ import annotations

from pathlib import Path, PurePath

import pytest

from benchmarks.house.drawn import LEAST_LINES, draw, modules


def test_short_modules_are_not_drawn(tmp_path: Path) -> None:
    folder = tmp_path / "package"
    (folder / "inner").mkdir(parents=True)
    (folder / "short.py").write_text("\n" * 59)
    (folder / "inner" / "long.py").write_text("\n" * 60)
    (folder / "page.md").write_text("\n" * 100)
    assert modules(folder) == {PurePath("package/inner/long.py"): 60}


def test_the_same_seed_draws_the_same_modules() -> None:
    paths = [PurePath(f"{number}.py") for number in range(30)]
    drawn = draw(paths, 12, seed=7)
    assert len({*drawn}) == 12
    assert drawn == draw(reversed(paths), 12, seed=7)
    assert drawn != draw(paths, 12, seed=8)


def test_no_more_modules_than_there_are() -> None:
    with pytest.raises(ValueError, match="larger than population"):
        draw([PurePath("a.py")], 2, seed=0)


def test_modules_of_the_package_can_be_drawn() -> None:
    lengths = modules()
    assert lengths[PurePath("stowplan/kernel/solve.py")] >= LEAST_LINES
    assert len(draw(lengths, 12, seed=0)) == 12
