"""A batch whose command and workers are killed at random moments has one result for each input."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.calls import batch_kills


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_nothing_is_lost_and_nothing_twice(capsys: pytest.CaptureFixture[str]) -> None:
    code = batch_kills.main(["--files", "30", "--kills", "5", "--seed", "1"])
    rows = dict(line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:])
    assert (code, rows["lines in the journal"], rows["plans that differ from those of the other run"]) == (0, "30", "0")
