"""Files that say what the model says: read by other programs, they have the same optimum."""

from __future__ import annotations

import gzip
import random
import subprocess
from pathlib import Path

import highspy
import numpy as np
import pulp
import pytest

from stowplan.errors import InputError, UsageError
from stowplan.models.mip.export import lp, mps, save
from stowplan.models.mip.matrix import MatrixModel
from tests.models.mip.cases import optimum, random_model
from tests.patience import HANG


def by_highs(path: Path) -> float | None:
    """Optimum of a file by HiGHS; None where it says infeasible."""
    highs = highspy.Highs()
    highs.silent()
    assert highs.readModel(str(path)) == highspy.HighsStatus.kOk
    highs.run()
    if highs.getModelStatus() == highspy.HighsModelStatus.kOptimal:
        return float(highs.getObjectiveValue())
    assert highs.getModelStatus() in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible)
    return None


def by_cbc(path: Path) -> float | None:
    """Optimum of a file by the CBC that comes with PuLP."""
    program = pulp.PULP_CBC_CMD(msg=False).path
    out = path.with_suffix(".sol")
    done = subprocess.run(
        [program, str(path), "-solve", "-solution", str(out)], capture_output=True, text=True, timeout=HANG, check=True
    )
    assert "errors on input" not in done.stdout
    head = out.read_text().splitlines()[0]
    return float(head.split()[-1]) if head.startswith("Optimal") else None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("ending", ["mps", "lp"])
def test_other_programs_find_the_same_optimum(ending: str, tmp_path: Path) -> None:
    for seed in range(40):
        model = random_model(random.Random(seed))
        path = tmp_path / f"model{seed}.{ending}"
        save(model, path, ["a remark"])
        best = optimum(model)
        assert by_highs(path) == (None if best is None else pytest.approx(best, abs=1e-6)), seed
        if seed < 12:
            assert by_cbc(path) == (None if best is None else pytest.approx(best, abs=1e-6)), seed


def test_every_number_arrives(tmp_path: Path) -> None:
    """Numbers with all their digits, infinite boxes, empty columns, columns that are not integers."""
    rng = random.Random(5)
    for seed in range(30):
        given = random_model(random.Random(seed), whole=seed % 2 == 0)
        data = given.matrix.astype(float)
        data.data = data.data * rng.uniform(0.1, 1e9)
        lower = np.where(given.is_integer, given.lower, -np.inf)
        model = MatrixModel(
            "digits", given.cost / 3, lower, given.upper, given.is_integer, data, given.row_lower / 7, given.row_upper
        )
        for ending in ("mps", "lp"):
            path = tmp_path / f"m.{ending}"
            save(model, path)
            highs = highspy.Highs()
            highs.silent()
            assert highs.readModel(str(path)) == highspy.HighsStatus.kOk
            read = highs.getLp()
            places = {read.col_names_[place]: place for place in range(read.num_col_)}
            written = [column for column in range(model.columns) if model.column_name(column) in places]
            sides = np.isfinite(model.row_lower) | np.isfinite(model.row_upper)
            idle = (model.cost == 0) & (np.bincount(model.matrix[sides].indices, minlength=model.columns) == 0)
            assert written == np.flatnonzero(~idle).tolist()
            for column in written:
                place = places[model.column_name(column)]
                assert read.col_cost_[place] == model.cost[column]
                assert (read.col_lower_[place], read.col_upper_[place]) == (model.lower[column], model.upper[column])
                kind = read.integrality_[place] if len(read.integrality_) else highspy.HighsVarType.kContinuous
                assert (kind == highspy.HighsVarType.kInteger) == bool(model.is_integer[column])
            assert sorted(read.a_matrix_.value_) == pytest.approx(sorted(_entries(model, ending)), rel=1e-15)


def _entries(model: MatrixModel, ending: str) -> list[float]:
    """Entries as the file has them: rows without a side are left out, and in an LP file those with two stand twice."""
    found: list[float] = []
    for row, (low, high) in enumerate(zip(model.row_lower, model.row_upper, strict=True)):
        sides = int(np.isfinite(low)) + int(np.isfinite(high))
        found += (min(1, sides) if ending == "mps" or low == high else sides) * model.matrix[[row]].data.tolist()
    return found


def test_the_same_model_gives_the_same_bytes_packed_or_not(tmp_path: Path) -> None:
    model = random_model(random.Random(3))
    for ending, text in (("mps", mps(model)), ("lp", lp(model))):
        save(model, tmp_path / f"a.{ending}.gz")
        save(model, tmp_path / f"b.{ending}.gz")
        packed = (tmp_path / f"a.{ending}.gz").read_bytes()
        assert packed == (tmp_path / f"b.{ending}.gz").read_bytes()
        assert gzip.decompress(packed).decode() == text


def test_names_of_files_are_checked(tmp_path: Path) -> None:
    model = random_model(random.Random(3))
    with pytest.raises(UsageError, match=r"model\.txt.*\.mps or \.lp"):
        save(model, tmp_path / "model.txt")
    with pytest.raises(InputError, match="cannot write"):
        save(model, tmp_path / "nowhere" / "model.mps")
