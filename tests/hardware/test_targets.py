from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stowplan
from stowplan.cli import main
from stowplan.errors import InputError, UsageError
from stowplan.hardware.inferentia.target import BankTarget
from stowplan.hardware.memories import MemoryTarget
from stowplan.hardware.nnp_i.target import TierTarget
from stowplan.hardware.targets import CMEM, VMEM, Target, decode_target, fast_space_of, load_target, target_names, xla_chip
from stowplan.hardware.targets.toml_files import (
    Bytes,
    BytesPerSecond,
    Hertz,
    Picoseconds,
    duration_ps,
    template,
    template_kinds,
)
from stowplan.models.modulo_scheduling.machine import Machine
from tests.paths import EXAMPLES

TEACHING = (resources.files("stowplan.hardware.targets") / "teaching.toml").read_text()


@pytest.mark.parametrize("name", target_names())
def test_every_target_loads_under_its_own_name(name: str) -> None:
    target = load_target(name)
    assert target.name == name
    assert target.description
    assert target.fast_memory.capacity in target.fast_memory.capacity_options
    assert target.fast_memory.capacity % target.fast_memory.alignment == 0
    # Heuristics may count on it: no fast use makes a step slower.
    assert target.roofline.fast_read_bandwidth >= target.roofline.slow_read_bandwidth
    assert target.roofline.fast_write_bandwidth >= target.roofline.slow_write_bandwidth


def test_names() -> None:
    tpus = ("tpu-7x", "tpu-v4", "tpu-v4-megacore", "tpu-v4i", "tpu-v5e", "tpu-v5p", "tpu-v6e")
    assert target_names() == ("teaching", *tpus)


def test_tpu_v4_facts() -> None:
    target = load_target("tpu-v4")
    assert target.fast_memory.capacity == 64 << 20
    assert target.fast_memory.capacity_options == (64 << 20, 128 << 20)
    assert target.fast_memory.max_preloads == 1
    assert target.clock == 1_050_000_000
    assert target.cycles_ps(21) == 20_000


def test_what_xla_calls_things_on_a_chip() -> None:
    compiled_for = [name for name in target_names() if load_target(name).xla is not None]
    assert compiled_for == ["tpu-7x", "tpu-v4", "tpu-v4-megacore", "tpu-v5e", "tpu-v5p", "tpu-v6e"]
    assert {name: xla_chip(name).fast_space for name in compiled_for if xla_chip(name).fast_space != VMEM} == {
        "tpu-v4": CMEM,
        "tpu-v4-megacore": CMEM,
    }
    assert xla_chip("tpu-v4-megacore").machine == "v4:2x2x1 megacore"
    assert xla_chip(load_target("tpu-v5e")).machine == "v5e:2x2"
    # Two cores have what one has, twice.
    assert load_target("tpu-v4-megacore").fast_memory.capacity == 2 * load_target("tpu-v4").fast_memory.capacity
    with pytest.raises(UsageError, match="found target 'tpu-v4i', expected one that XLA compiles for: tpu-7x, tpu-v4, "):
        xla_chip("tpu-v4i")
    assert (fast_space_of("tpu-v6e"), fast_space_of("of a file of mine")) == (VMEM, CMEM)


def test_teaching_target_is_what_it_says() -> None:
    target = load_target("teaching")
    assert target.copies.in_ps(1000) == target.copies.out_ps(1000) == 100_000
    assert target.cycles_ps(3) == 3000
    assert target.fast_memory.max_preloads == 0


def test_a_path_is_read_and_a_name_is_not_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TEACHING.replace('name = "teaching"', 'name = "mine"'))
    assert load_target(path).name == "mine"
    assert load_target(str(path)).name == "mine"
    monkeypatch.chdir(tmp_path)
    assert load_target("mine.toml").name == "mine"
    with pytest.raises(InputError, match="found target 'mine', expected one of teaching, tpu-7x, tpu-v4, "):
        load_target("mine")


def test_with_capacity_changes_nothing_else() -> None:
    target = load_target("tpu-v4")
    larger = target.with_capacity(128 << 20)
    assert larger.fast_memory.capacity == 128 << 20
    assert larger.with_capacity(64 << 20) == target
    for capacity in (0, -1):
        with pytest.raises(InputError, match=rf"fast_memory.capacity: found {capacity}, expected at least 1"):
            target.with_capacity(capacity)


@pytest.mark.parametrize(
    ("old", "new", "place", "message"),
    [
        ('capacity = "1 MiB"', 'capacity = "0 MiB"', "fast_memory.capacity", "expected a positive whole number of B"),
        ('capacity = "1 MiB"', "capacity = 1048576", "fast_memory.capacity", "a unit such as '64 MiB'"),
        ('capacity = "1 MiB"', 'capacity = "1 MiB/s"', "fast_memory.capacity", "found unit 'MiB/s', expected one of B, kB"),
        ('capacity = "1 MiB"', 'capacity = "0.3 B"', "fast_memory.capacity", "whole number"),
        ('capacity = "1 MiB"', 'capacity = "1e999999999 B"', "fast_memory.capacity", "expected a number and a unit"),
        ('capacity = "1 MiB"', 'capacity = "999999999999 GiB"', "fast_memory.capacity", "below 2^63"),
        ('capacity = "1 MiB"', "", "fast_memory", "missing required field `capacity`"),
        (
            'in_bandwidth = "10 GB/s"',
            'in_bandwidth = "-10 GB/s"',
            "copies.in_bandwidth",
            "found '-10 GB/s', expected a positive",
        ),
        ('latency = "0 ps"', 'latency = "-1 ps"', "copies.latency", "expected a non-negative whole number of ps"),
        ('latency = "0 ps"', 'latncy = "0 ps"', "copies", "unknown field `latncy`"),
        ("channels = 1", "channels = 0", "copies.channels", "found 0, expected at least 1"),
        ("channels = 1", "channels = 1.5", "copies.channels", "Expected `int`, got `float`"),
        ("max_preloads = 0", "max_preloads = -1", "fast_memory.max_preloads", "found -1, expected at least 0"),
        ('clock = "1 GHz"', 'clock = "1 GHz"\nstalls = "maybe"', "stalls", "'maybe', expected one of 'allowed', 'forbidden'"),
        ('clock = "1 GHz"', 'clock = "1 GHz"\nspeed = 3', None, "unknown field `speed`"),
        ('"64 KiB",', '"64 KB",', "fast_memory.capacity_options[0]", "found unit 'KB'"),
        ("version = 1", "version = 2", "version", "found 2, expected 1"),
        ('format = "stowplan.target"', "", "format", "found None, expected 'stowplan.target'"),
        ("[copies]", "[copies", None, "not a TOML file"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path: Path, old: str, new: str, place: str | None, message: str) -> None:
    assert old in TEACHING
    path = tmp_path / "bad.toml"
    path.write_text(TEACHING.replace(old, new))
    with pytest.raises(InputError) as caught:
        load_target(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: {place}: " if place else f"{path}: ")
    assert message in text
    assert "\n" not in text


def test_missing_file_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.toml: cannot read"):
        load_target(tmp_path / "none.toml")
    with pytest.raises(InputError, match="not a TOML file"):
        decode_target(b"\xff\xfe\x00", source="x.toml")


@given(st.binary(max_size=200))
def test_any_bytes_give_a_target_or_an_input_error(data: bytes) -> None:
    with pytest.raises(InputError):
        decode_target(data, source="x.toml")


@given(st.integers(0, 10**12), st.integers(1, 10**15))
def test_durations_are_rounded_to_the_nearest_picosecond(amount: int, rate: int) -> None:
    duration = duration_ps(amount, rate)
    assert abs(2 * (duration * rate - amount * 10**12)) <= rate
    assert duration_ps(amount + 1, rate) >= duration


def test_quantities() -> None:
    assert Bytes.parse("64 MiB") == 64 << 20
    assert Bytes.parse("1.5kB") == 1500
    assert BytesPerSecond.parse("0.5 TB/s") == 500 * 10**9
    assert Hertz.parse("1.05 GHz") == 1_050_000_000
    assert Picoseconds.parse("0 s") == 0
    for text in ("", "MiB", "1 2 MiB", "1,5 MiB", "nan MiB", "1 mib", 5, None, True):
        with pytest.raises(ValueError, match="expected"):
            Bytes.parse(text)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"tpu-v5e"         #',
            '"tpu-v9"  #',
            "xla.predictor: Invalid enum value 'tpu-v9', expected one of 'tpu-7x', 'tpu-v4', ",
        ),
        (
            '"order", ',
            '"ordr", ',
            "xla.steers[0]: Invalid enum value 'ordr', expected one of 'capacity', 'eagerness', 'order', ",
        ),
    ],
)
def test_a_choice_that_is_none_names_those_there_are(tmp_path: Path, old: str, new: str, message: str) -> None:
    path, text = tmp_path / "bad.toml", template("memory-mapping")
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=re.escape(message)):
        load_target(path)


def test_targets_are_values() -> None:
    assert load_target("teaching") == load_target("teaching")
    assert isinstance(load_target("teaching"), Target)


def test_templates_are_whole_target_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every field of every kind of target is in its template, and each is one that inputs of that kind can be read for."""
    data = EXAMPLES
    graph = tmp_path / "graph.hlo.txt"
    graph.write_text("HloModule m\n\nENTRY main {\n  x = f32[8,8]{1,0} parameter(0)\n  ROOT y = f32[8,8]{1,0} tanh(x)\n}\n")
    kinds: dict[str, tuple[type, Path]] = {
        "memory-mapping": (Target, data / "alexnet_inf_b1.hlo.txt.gz"),
        "tier-placement": (TierTarget, data / "resnet50.layers.json"),
        "bank-mapping": (BankTarget, graph),
        "modulo-scheduling": (Machine, data / "fir.dfg.json"),
        "banked-packing": (MemoryTarget, data / "branches.tflite"),
    }
    assert tuple(sorted(kinds)) == template_kinds()
    for kind, (struct, source) in kinds.items():
        with pytest.raises(SystemExit) as left:
            main(["targets", "--template", kind])
        assert not left.value.code
        text = capsys.readouterr().out
        assert text == template(kind)
        named = set(re.findall(r"^(\w+) = ", text, re.MULTILINE)) | set(re.findall(r"\w+", "".join(_headings(text))))
        assert _fields(struct) <= named, kind
        path = tmp_path / f"{kind}.toml"
        path.write_text(text)
        problem = stowplan.read(source, target=path)
        assert problem.digest
    with pytest.raises(InputError, match="expected one of bank-mapping, banked-packing, memory-mapping, modulo"):
        template("packing")


def _headings(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("[")]


def _fields(kind: type) -> set[str]:
    """Names of a struct's fields, and of the structs' in it; format and version included."""
    found = set()
    for field in msgspec.structs.fields(kind):
        found.add(field.name)
        for each in (field.type, *get_args(field.type)):
            if isinstance(each, type) and issubclass(each, msgspec.Struct):
                found |= _fields(each)
    return found
