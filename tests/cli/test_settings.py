"""``--set NAME=VALUE``, ``stowplan settings``, and flags that are settings now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from stowplan.cli.app import app_for
from stowplan.cli.options import REPLACED_FLAGS, names_of
from stowplan.cli.solve import solve_command
from tests.cli.conftest import ALEXNET, BRIEF, Cli, error_line
from tests.paths import EXAMPLES

MISTAKES = {
    "stalls": "--set: found 'stalls', expected NAME=VALUE",
    "stals=allowed": "--set: found 'stals', expected one of .*, stalls, .*; perhaps stalls",
    "windows=all": "--set: found 'windows', expected one of hint_program, keep_close_within, ",
    "work_limit=much": "--set work_limit: found 'much', expected a number",
    "work_limit=-1": "found a work limit of -1.0, expected more than 0",
    "work_limit=3": "found a work limit, which is for deterministic runs: expected --deterministic with it",
    "cache_bytes=1XB": "--set cache_bytes: found '1XB', expected bytes, or a number with kB",
    "certify=perhaps": "--set certify: found 'perhaps', expected yes or no",
    "stalls=alowed": "--set stalls: found 'alowed', expected allowed or forbidden",
    "fuse=yes": "it takes --target, .* but not --set RULE=VALUE",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_one_line(cli: Cli, tmp_path: Path, text: str) -> None:
    line = error_line(cli("solve", ALEXNET, "--target", "teaching", *BRIEF, "--set", text, "-o", tmp_path / "plan.json"))
    assert re.search(MISTAKES[text], line), line
    assert list(tmp_path.iterdir()) == []


def test_a_value_is_given_once_unless_there_may_be_several(cli: Cli, tmp_path: Path) -> None:
    twice = ("--set", "stalls=allowed", "--set", "stalls=forbidden")
    line = error_line(cli("convert", ALEXNET, "--target", "teaching", *twice, "-o", tmp_path / "out.json"))
    assert line == "stowplan: --set stalls: found 'allowed' and 'forbidden', expected one value"
    rules = ("--set", "inputs=copies", "--set", "fuse=yes")
    assert cli("convert", EXAMPLES / "fir.dfg.json", "--target", "se", *rules, "-o", tmp_path / "out.json").code == 0


@pytest.mark.parametrize(
    ("arguments", "now"),
    [
        (("solve", ALEXNET, "--stalls", "allowed"), "--stalls, expected --set stalls=MODE"),
        (("solve", ALEXNET, "--rule", "fuse=yes"), "--rule, expected --set NAME=VALUE"),
        (("solve", ALEXNET, "--address-spaces"), "--address-spaces, expected --set address_spaces=yes"),
        (("solve", ALEXNET, "--xla-plan", ALEXNET), "--xla-plan, expected --plan xla=FILE"),
        (("solve", ALEXNET, "--prod"), "--prod, expected --baseline prod"),
        (("batch", ALEXNET, "-o", "out", "--jsonl", "lines"), "--jsonl, expected --set jsonl=FILE"),
        (("show", ALEXNET, ALEXNET, "--seconds"), "--seconds, expected --set seconds=yes"),
    ],
)
def test_flags_that_are_no_more_say_what_is_in_their_place(cli: Cli, arguments: tuple[str, ...], now: str) -> None:
    assert error_line(cli(*arguments)) == f"stowplan: No such option: {now} (try 'stowplan {arguments[0]} --help')"


def test_all_flags_are_few() -> None:
    flags: dict[str, set[str]] = {}
    whole = typer.main.get_command(app_for([]))
    for name, command in whole.commands.items():  # type: ignore[attr-defined]
        for one in getattr(command, "commands", {"": command}).values():
            found = {max(each.opts, key=len) for each in one.params if each.param_type_name == "option"}
            flags.setdefault(name, set()).update(found)
            assert not found & {*REPLACED_FLAGS}
    assert len(flags["solve"]) < 26


def test_a_plan_at_hand_is_a_baseline(cli: Cli, tmp_path: Path) -> None:
    buffers, plan = EXAMPLES / "buffers.csv", tmp_path / "plan.json"
    assert cli("solve", buffers, *BRIEF[2:], "-q", "-o", plan).code == 0
    done = cli("solve", buffers, "-q", "--plan", f"mine={plan}", "--baseline", "mine", "--time-limit", 60)
    assert (done.code, "mine" in done.out) == (0, True)
    assert "found 'mine', expected a name and a path" in error_line(cli("solve", buffers, "--plan", "mine"))
    assert "found mine twice" in error_line(cli("solve", buffers, *("--plan", f"mine={plan}") * 2))
    assert "expected xla=FOLDER" in error_line(cli("batch", buffers, "-o", tmp_path / "out", "--plan", f"mine={plan}"))


def test_names_are_completed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_STOWPLAN_COMPLETE", "complete_bash")
    for words, expected in (("stowplan solve --set sta", ["starts=", "stalls="]), ("stowplan export --set w", ["windows="])):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        assert sorted(cli().out.split()) == sorted(expected)


def test_the_list_has_each_name_once(cli: Cli) -> None:
    names = re.findall(r"^  (\w+)", cli("settings").out, re.M)
    assert len(names) == len({*names})
    assert {*names_of(solve_command.settings)} < {*names}  # type: ignore[attr-defined]
