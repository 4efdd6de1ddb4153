"""Parameters of candidates: all are listed with what they are, and a file changes them for a whole run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec

from stowplan.parameters import VARIABLE, all_parameters, rows
from tests.paths import EXAMPLES


def listed(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stowplan.parameters", *arguments]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)


def test_every_parameter_says_what_it_is() -> None:
    found = rows(())
    assert len(found) > 200
    assert len(found) == sum(len(msgspec.structs.fields(values)) for values in all_parameters().values())
    for name, _, what in found:
        assert what[0].isupper(), name
        assert what.endswith("."), name
    assert {"packing", "memory_mapping", "operator_order", "rematerialization"} <= {
        name.partition(".")[0] for name, *_ in found
    }


def test_some_are_listed_by_name() -> None:
    assert {name.rpartition(".")[0] for name, *_ in rows(["packing.quick"])} == {"packing.quick"}
    printed = listed("packing.quick")
    assert printed.returncode == 0
    assert "packing.quick.many" in printed.stdout
    assert "packing.search" not in printed.stdout


def test_a_file_changes_them(tmp_path: Path) -> None:
    file = tmp_path / "parameters.toml"
    file.write_text("[packing.quick]\nmany = 7\n[rematerialization.offload]\nsteps = [0.5]\n")
    printed = listed("packing.quick", "rematerialization.offload", **{VARIABLE: str(file)}).stdout.splitlines()
    values = {line.split()[0]: line.split()[1] for line in printed[1:]}
    assert values["packing.quick.many"] == "7"
    assert values["packing.quick.too_many"] == "200000"
    assert values["rematerialization.offload.steps"] == "(0.5,)"


def test_the_command_line_goes_by_them(tmp_path: Path) -> None:
    file, plan = tmp_path / "parameters.toml", tmp_path / "plan.json"

    def solved() -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "stowplan",
            "solve",
            str(EXAMPLES / "buffers.csv"),
            "--time-limit",
            "10",
            "--json",
            "-q",
        ]
        variables = {**os.environ, VARIABLE: str(file)}
        return subprocess.run([*command, "-o", str(plan)], env=variables, capture_output=True, text=True, check=False)

    file.write_text("[packing.kind]\nexact_buffers = 'many'\n")
    refused = solved()
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "packing.kind: Expected `int`, got `str`" in refused.stderr
    assert not plan.exists()
    listed = []
    for most in (0, 1500):
        file.write_text(f"[packing.kind]\nexact_buffers = {most}\n")
        listed.append({candidate["name"] for candidate in json.loads(solved().stdout)["candidates"]})
    assert len(listed[0]) < len(listed[1])


def test_what_they_do_not_take_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "parameters.toml"
    for text, expected in (
        ("[packing.quick]\nmost = 7\n", "packing.quick: Object contains unknown field `most`"),
        ("[packing]\nquick = 7\n", "packing.quick: Expected `object`, got `int`"),
        ("packing = 7\n", "Expected `object`, got `int`"),
        ("[packing.quick]\nmany = \n", "parameters.toml: "),
        ("[packing.quicker]\nmany = 7\n", "found [packing.quicker], expected one of bank_mapping.choose"),
    ):
        file.write_text(text)
        found = listed(**{VARIABLE: str(file)})
        assert found.returncode == 2, text
        assert (found.stdout, found.stderr.count("\n")) == ("", 1), text
        assert expected in found.stderr, found.stderr
    assert listed(**{VARIABLE: str(tmp_path / "none.toml")}).returncode == 2
