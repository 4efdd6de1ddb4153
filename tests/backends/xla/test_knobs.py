"""Settings as the compiler's options: text protos, expressions, flags."""

from __future__ import annotations

import re
import shlex

import msgspec
import pytest

from stowplan.backends.xla.knobs import (
    ALL_SLOW,
    ASSIGNMENT_OPTION,
    CAPACITY_OPTION,
    DEFAULT,
    KNOB_OPTIONS,
    ORDER_OPTION,
    OVERLAP_OPTION,
    PREFETCH_OPTION,
    Knobs,
    as_flags,
    order_overrides,
    values_of,
)
from stowplan.hardware.program import Program, ProgramTensor


def test_the_default_sets_nothing() -> None:
    assert DEFAULT.compiler_options() == {}
    assert ALL_SLOW.compiler_options() == {ASSIGNMENT_OPTION: False}
    assert order_overrides((), ()) == ""


def test_one_entry_for_each_side_and_place() -> None:
    text = order_overrides(["b", "a.1", "f{1}", "g{1}", "h{0,2}"], ["z"])
    assert text == (
        'overrides{hlo_position_matcher{instruction_name_regex:"a[.]1|b"}override_options{assign_first:true}}'
        'overrides{hlo_position_matcher{instruction_name_regex:"h" tuple_index{index:0 index:2}}'
        "override_options{assign_first:true}}"
        'overrides{hlo_position_matcher{instruction_name_regex:"f|g" tuple_index{index:1}}override_options{assign_first:true}}'
        'overrides{hlo_position_matcher{instruction_name_regex:"z"}override_options{assign_last:true}}'
    )


@pytest.mark.parametrize("name", ["fusion.12", "all-reduce.1", "a+b*c?", "x(1)|y", "p^q$r", "loop_fusion_0", "back\\slash"])
def test_a_name_matches_itself_alone(name: str) -> None:
    text = order_overrides([name], ())
    found = re.search(r'regex:"([^"]*)"', text)
    assert found is not None
    # As a text proto's string is read.
    pattern = found[1].replace("\\\\", "\\")
    assert re.fullmatch(pattern, name)
    assert not re.fullmatch(pattern, name.replace(".", "x") + "y")


@pytest.mark.parametrize("value", ["a{", "a{x}", "", "a{1}{2}"])
def test_what_is_no_value(value: str) -> None:
    with pytest.raises(ValueError, match="expected NAME or NAME"):
        order_overrides([value], ())


def test_equal_settings_give_equal_options() -> None:
    one = DEFAULT.moved(first=["a", "b"]).moved(last=["c"]).with_option("xla_b", 1).with_option("xla_a", "2")
    two = DEFAULT.with_option("xla_a", "2").moved(last=["c", "a"]).moved(first=["b", "a"]).with_option("xla_b", 1)
    assert one == two
    assert list(one.compiler_options().items()) == list(two.compiler_options().items())
    # Moved the other way it leaves where it was; in both lists it goes first.
    assert one.moved(last=["a"]) == Knobs(frozenset("b"), frozenset("ac"), one.options)
    assert DEFAULT.moved(first=["a"], last=["a", "b"]) == Knobs(frozenset("a"), frozenset("b"))
    assert Knobs(frozenset("a"), frozenset("a")).compiler_options() == {ORDER_OPTION: order_overrides("a", ())}


def test_what_is_there_beforehand() -> None:
    knobs = Knobs(frozenset(("w", "a")), preload="w")
    options = knobs.compiler_options()
    # The first entry that matches counts: what is there beforehand stands alone, before the others.
    assert options[ORDER_OPTION] == (
        'overrides{hlo_position_matcher{instruction_name_regex:"w"}'
        "override_options{assign_first:true}apply_to_cross_program_prefetches:true}"
        'overrides{hlo_position_matcher{instruction_name_regex:"a"}override_options{assign_first:true}}'
    )
    assert {ORDER_OPTION, PREFETCH_OPTION} < {*KNOB_OPTIONS}


def test_capacity_in_bytes() -> None:
    assert DEFAULT.capacity is None
    assert DEFAULT.with_option(CAPACITY_OPTION, "1024").capacity == 1 << 20


def test_eagerness_by_size() -> None:
    knobs = msgspec.structs.replace(DEFAULT, eager=(1 << 20, 0.5))
    text = "overrides{hlo_operand_filter{size_gte:1048576}override_options{prefetch_eagerness:0.5}}"
    assert knobs.compiler_options() == {PREFETCH_OPTION: text}
    assert knobs.describe() == "eagerness 0.5 from 1024 KiB"


def test_overlap_ratio() -> None:
    assert DEFAULT.overlap is None
    assert DEFAULT.with_option(OVERLAP_OPTION, "10").overlap == 10.0


def test_flags_are_read_back_as_they_were() -> None:
    options = {ORDER_OPTION: order_overrides(["f{1}"], ["a.1"]), ASSIGNMENT_OPTION: False, "xla_n": 3}
    flags = as_flags(options)
    # libtpu splits at blanks outside of single quotes, as a shell does.
    assert shlex.split(flags) == [f"--{ASSIGNMENT_OPTION}=false", "--xla_n=3", f"--{ORDER_OPTION}={options[ORDER_OPTION]}"]
    assert as_flags({}) == ""


def test_values_of_a_program() -> None:
    program = Program(
        name="p",
        steps=(),
        tensors=(ProgramTensor("a", 4, False, False, ("while.1/a", "b{1}", "a")), ProgramTensor("body/c", 4, False, False)),
    )
    assert values_of(program) == {0: ("a", "b{1}"), 1: ("c",)}


def test_knobs_in_a_few_words() -> None:
    assert DEFAULT.describe() == ""
    assert ALL_SLOW.describe() == "no fast memory"
    knobs = Knobs(frozenset({"a", "b"}), frozenset({"b", "c"}), preload="p")
    knobs = knobs.with_option(CAPACITY_OPTION, "12288")
    assert knobs.describe() == "2 first, 1 last, 12 MiB, p preloaded"
    assert knobs.with_option(OVERLAP_OPTION, "2.5").describe().endswith("12 MiB, overlap 2.5, p preloaded")
