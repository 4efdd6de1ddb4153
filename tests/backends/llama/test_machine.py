"""Machine files: what they say, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from stowplan.backends.llama.calibration import machine_text
from stowplan.backends.llama.machine import MIB, read_machine
from stowplan.errors import InputError

TEXT = """
[host]
free_mib = 1000
weight_gbs = 40
cache_gbs = 2.2
tflops = 0.3
[[device]]
name = "CUDA0"
free_mib = 100.5
weight_gbs = 750.0
tflops = 60
[[device]]
name = "RPC0"
free_mib = 50
[calibration]
error = 0.08
"""


def test_what_a_file_says(tmp_path: Path) -> None:
    path = tmp_path / "desktop.toml"
    path.write_text(TEXT)
    machine = read_machine(path)
    cuda, rpc = machine.devices
    assert (machine.name, machine.error, machine.unmeasured) == ("desktop", 0.08, ["RPC0"])
    assert (cuda.free, cuda.margin, cuda.weight_rate, cuda.cache_rate) == (
        int(100.5 * MIB),
        1024 * MIB,
        750 * 10**9,
        750 * 10**9,
    )
    assert (machine.host.cache_rate, machine.host.margin, machine.host.copies_weights) == (2_200_000_000, 0, False)
    assert (cuda.copies_weights, rpc.copies_weights) == (True, False)
    written = tmp_path / "again.toml"
    written.write_text(machine_text(machine))
    again = read_machine(written)
    assert again.devices[0].weight_rate == cuda.weight_rate
    assert again.host == machine.host


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[host]", "[hosts]", "found the table 'hosts'"),
        ("free_mib = 1000\n", "", r"host \(CPU\): found no free_mib"),
        ("weight_gbs = 40", "weight_gbs = -1", "found weight_gbs -1, expected a positive number"),
        ("weight_gbs = 40", "weights = 40", "found the key 'weights', expected one of name, free_mib"),
        ('"RPC0"', '"CUDA0"', "expected each once"),
        ('"RPC0"', "3", "device 1: found name 3"),
        ("error = 0.08", "error = true", "found error True, expected a number"),
        ("[[device]]", "[[device", "not a TOML file"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "machine.toml"
    assert old in TEXT
    path.write_text(TEXT.replace(old, new, 1))
    with pytest.raises(InputError, match=message):
        read_machine(path)
