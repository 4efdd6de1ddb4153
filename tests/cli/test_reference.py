"""The page on the command line is what the commands say."""

from __future__ import annotations

import importlib.util
import re

from tests.paths import ROOT

SCRIPT = ROOT / "docs" / "command_line.py"


def test_the_page_is_what_its_script_writes() -> None:
    spec = importlib.util.spec_from_file_location("command_line", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    written = script.PAGE.read_text(encoding="utf-8")
    assert written == script.page(), "stale: run python docs/command_line.py"
    # Each command, each group, and each option at least once.
    assert {"solve", "tune-xla", "cache info", "train", "train egrl", "Exit codes"} <= {*re.findall("^## (.*)$", written, re.M)}
    for flag in ("evictions=MODE", "--set NAME=VALUE", "--help"):
        assert (f"`{flag}`: " in written) == (flag != "--help")
