"""``stowplan fit-jax``: what is asked for wrongly, and the picture; what compiles is in ``tests/backends/jax``."""

from __future__ import annotations

from pathlib import Path

import pytest

from stowplan.backends.jax import FitReport, Policy
from stowplan.backends.jax.report import Candidate
from stowplan.cli.fit_jax import _picture
from stowplan.report.figures import save_picture
from tests.cli.conftest import Cli, cli

__all__ = ["cli"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--largest", "batch"], "found no 'batch' in the shapes"),
        (["--largest", "8"], "expected a name"),
        (["--largest", "batch:0", "--shapes", "f32[batch]"], "expected a name"),
        (["--png", "picture.bmp"], "picture format"),
    ],
)
def test_bad_input(cli: Cli, options: list[str], says: str) -> None:
    found = cli("fit-jax", "module:loss", "--hbm", "1GiB", *options)
    assert found.code == 2
    assert says in found.err
    assert found.err.count("\n") == 1


def test_the_picture(tmp_path: Path) -> None:
    policies = [Policy("everything_again"), Policy("planned", ("a",))]
    candidates = [
        Candidate(policy=policy, saved_bytes=0, recomputed_seconds=0.1, recomputed_flops=10**12 - place, hbm_bytes=100 + place)
        for place, policy in enumerate(policies)
    ]
    report = FitReport(
        name="loss",
        target="tpu-v5e",
        limit=200,
        candidates=tuple(candidates),
        best=1,
        frontier=((100, 0.1, 10**12), (150, 0.0, 0)),
    )
    save_picture(_picture(report), tmp_path / "picture.svg")
    text = (tmp_path / "picture.svg").read_text()
    assert "plans, as expected" in text
    assert "everything_again" in text
