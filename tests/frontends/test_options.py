"""Options of inputs: declared once, and the same wherever they turn up."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest

import stowplan
from stowplan import kinds
from stowplan.cli import main
from stowplan.cli.batch import batch_command
from stowplan.cli.solve import solve_command
from stowplan.errors import UsageError
from stowplan.frontends.dfg import RULES, LoopOptions
from stowplan.frontends.formats import format_of, formats, look
from stowplan.frontends.options import OPTIONS, ReadOptions, SharedOptions
from stowplan.models.modulo_scheduling.problem import Rules
from stowplan.portfolio.batch.records import Settings
from tests.paths import EXAMPLES


def test_reading_takes_each_of_them() -> None:
    parameters = inspect.signature(stowplan.read).parameters
    assert sorted(parameters) == sorted(["path", *OPTIONS])
    assert sorted(OPTIONS) == sorted(ReadOptions.__struct_fields__)
    for name in OPTIONS:
        assert parameters[name].default == getattr(ReadOptions(), name)


def test_the_command_line_takes_each_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    printed = {}
    for arguments in (["solve", "--help"], ["batch", "--help"], ["settings"]):
        with pytest.raises(SystemExit):
            main(arguments)
        printed[arguments[0]] = " ".join(capsys.readouterr().out.split())
    alone = {"target", "device", "cycles", "fixed", "dim", "shape", "keep", "in_place"}
    commands = {"solve": (solve_command, OPTIONS), "batch": (batch_command, {*OPTIONS} - alone)}
    for command, (function, names) in commands.items():
        for name in names:
            option = OPTIONS[name]
            if option.flag:
                assert f"{option.flag} {option.metavar} {option.help}" in printed[command]
            else:
                assert function.settings[name] == option
                assert all(rule in printed["settings"] for rule in RULES) if name == "rules" else True
                assert name == "rules" or f"{option.usage} {option.help}" in printed["settings"]
    assert {*RULES} == {*Rules.__struct_fields__} | {*LoopOptions.__struct_fields__} - {"rules", "fixed", "op_table"}


def test_formats_and_kinds_name_no_others() -> None:
    targets = [each.targets.example for each in formats() if each.targets is not None]
    sources = [look(path, target) for path in EXAMPLES.iterdir() for target in targets]
    taken = {name for source in sources for name in format_of(source).accepts(source)}
    assert taken == {*OPTIONS} - {"granularity", "dim", "shape"}
    assert {name for kind in kinds.registered() for name in kind.amends} <= {*OPTIONS}


def test_suites_share_what_is_declared_as_shared() -> None:
    shared = {name for name, each in OPTIONS.items() if each.is_shared}
    assert shared <= {*Settings.__struct_fields__}
    assert {*SharedOptions.__struct_fields__} <= shared | {"target"}
    written = msgspec.json.decode(msgspec.json.encode(Settings(rules=("max_delay=1",))))
    assert written["rules"] == ["max_delay=1"]
    assert not {"cycles", "fixed"} & written.keys()


def test_values_are_checked_and_made_plain() -> None:
    for name, option in OPTIONS.items():
        for word in option.words:
            assert getattr(ReadOptions(**{name: word}), name) == word
        if option.words:
            with pytest.raises(UsageError, match=f"found {name} 'other', expected {' or '.join(option.words)}"):
                ReadOptions(**{name: "other"})
    found = ReadOptions(cycles="a.gz", rules=["fuse=yes"])  # type: ignore[arg-type]
    assert (found.cycles, found.rules) == (("a.gz",), ("fuse=yes",))
    assert ReadOptions(cycles=[], capacity=0).given() == {"capacity": 0}  # type: ignore[arg-type]


def test_files_that_options_name_are_known() -> None:
    paths = {name: f"{name}.file" for name, option in OPTIONS.items() if option.metavar == "FILE"}
    kinds_of = get_type_hints(ReadOptions)
    given = ReadOptions(target="mine.toml", **paths)  # type: ignore[arg-type]
    assert {*given.files} == {Path("mine.toml"), *map(Path, paths.values())}
    assert {name for name, kind in kinds_of.items() if "Path" in str(kind)} == {"target", *paths}
