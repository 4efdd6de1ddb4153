"""``--cache``, ``STOWPLAN_CACHE`` and ``stowplan cache``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, error_line
from tests.paths import EXAMPLES

SAXPY = (EXAMPLES / "saxpy.dfg.json", "--target", "se", "--candidates", "search,cpsat", "--time-limit", "60", "-q")


def test_a_second_call_is_answered_from_the_cache(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, plans = tmp_path / "cache", [tmp_path / "1.json", tmp_path / "2.json"]
    first = json.loads(cli("solve", *SAXPY, "--cache", folder, "--json", "-o", plans[0]).out)
    monkeypatch.setenv("STOWPLAN_CACHE", str(folder))
    second = json.loads(cli("solve", *SAXPY, "--json", "-o", plans[1]).out)
    assert "cached" not in first["details"]
    assert second["details"]["cached"] == {"seconds": first["seconds"]}
    assert plans[0].read_bytes() == plans[1].read_bytes()
    info = json.loads(cli("cache", "info", "--json").out)
    assert (info["folder"], info["entries"]) == (str(folder), 1)
    assert cli("cache", "info", "--cache", folder).out.startswith(f"{folder}: 1 result, ")
    assert cli("cache", "clear").out == f"{folder}: threw away 1 result\n"
    assert json.loads(cli("cache", "info", "--json").out)["entries"] == 0


def test_no_cache(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STOWPLAN_CACHE", raising=False)
    assert "expected --cache DIR, or a folder in STOWPLAN_CACHE" in error_line(cli("cache", "info"))
    for command in ("info", "clear"):
        line = error_line(cli("cache", command, "--cache", Path(__file__)))
        assert line.endswith("test_cache.py: found a file, expected the folder of a plan cache")


def test_results_may_be_too_large(cli: Cli, tmp_path: Path) -> None:
    assert cli("solve", *SAXPY, "--cache", tmp_path, "--set", "cache_bytes=10").code == 0
    assert json.loads(cli("cache", "info", "--cache", tmp_path, "--json").out)["entries"] == 0


@pytest.mark.parametrize("kind", ["unreadable", "file", "loop"])
def test_one_that_cannot_be_used_costs_a_warning(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    folder = tmp_path / "cache"
    if kind == "unreadable":
        folder.mkdir()
        (folder / "plans.sqlite").mkdir()
        real = os.access
        monkeypatch.setattr(os, "access", lambda path, *rest, **more: str(path) != str(folder) and real(path, *rest, **more))
    elif kind == "file":
        folder.write_text("")
    else:
        folder.symlink_to(folder)
    monkeypatch.setenv("STOWPLAN_CACHE", str(folder))
    done = cli("solve", EXAMPLES / "buffers.csv", "--time-limit", "60", "-q", "--json")
    assert done.code == 0
    (warning,) = json.loads(done.out)["warnings"]
    assert warning.startswith(f"the plan cache {folder} cannot be used")
