"""Reading HLO text: what is read, and how each kind of damage is reported."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stowplan.errors import InputError
from stowplan.frontends.hlo import TupleShape, parse_module, program_from_module, read_module, read_program
from tests.paths import DATA

DATA = DATA / "hlo"
SMALL = sorted(DATA.glob("*.hlo.txt"))
LOOP = (DATA / "loop.hlo.txt").read_text()

TINY = """HloModule tiny, is_scheduled=true

%double (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  ROOT %twice = f32[4]{0} add(%x, %x)
}

ENTRY %main (a: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  ROOT %out = f32[4]{0} fusion(%a), kind=kLoop, calls=%double
}
"""


def test_reads_a_module() -> None:
    module = read_module(DATA / "loop.hlo.txt")
    assert module.name == "counter"
    assert module.is_scheduled
    assert module.attributes["frontend_attributes"] == r'{note="a brace } in a \"string\" {"}'
    assert list(module.computations) == ["fused_update", "condition", "body", "main"]
    assert module.entry.name == "main"
    loop = module.entry.by_name["loop"]
    assert loop.opcode == "while"
    assert loop.called == ("condition", "body")
    assert loop.operands == ("state",)
    assert isinstance(loop.shape, TupleShape)
    assert module.entry.by_name["state"].operands == ("start", "first", "empty", "scale")
    assert module.entry.root.name == "all"
    assert LOOP.splitlines()[loop.line - 1].lstrip().startswith("%loop = ")
    update = module.computations["fused_update"].root
    assert update.attributes == {"backend_config": '{"indices_config":{"note":"}}"}}'}
    assert [parameter.name for parameter in module.computations["fused_update"].parameters] == ["buffer", "row.1", "at"]


def test_reads_text_without_signs_and_signatures() -> None:
    module = read_module(DATA / "plain.hlo.txt")
    assert not module.is_scheduled
    assert module.entry.by_name["total"].called == ("region.1",)
    assert module.entry.by_name["table"].argument == "{ { 1, (2) }, { 3, 4 } }"
    # Operands may carry their shapes.
    assert module.entry.root.operands == ("conv", "total")
    assert module.entry.by_name["conv"].attribute("dim_labels") == "b01f_01io->b01f"
    assert module.entry.by_name["conv"].attribute("absent") is None


def test_donations_and_aliases() -> None:
    module = read_module(DATA / "cache.hlo.txt")
    (alias,) = module.input_output_alias
    assert (alias.output_index, alias.operand, alias.operand_index, alias.kind) == ((0,), 0, (), "may-alias")
    (pair,) = read_module(DATA / "transfers.hlo.txt").entry.by_name["down"].output_aliases
    assert (pair.output_index, pair.operand, pair.operand_index) == ((), 0, ())


def test_skips_tables_of_source_locations() -> None:
    tables = 'FileNames\n1 "a.py"\n2 "}{"\n\nStackFrames\n1 {file_location_id=1 parent_frame_id=1}\n\n'
    module = parse_module(TINY.replace("\n\n", f"\n\n{tables}", 1))
    assert len(module.computations) == 2
    assert module.entry.root.line == TINY.count("\n", 0, TINY.index("%out")) + 1 + tables.count("\n")


def test_carriage_returns_and_gzip(tmp_path: Path) -> None:
    path = tmp_path / "tiny.txt"
    path.write_bytes(gzip.compress(TINY.replace("\n", "\r\n").encode()))
    assert read_program(path).steps[0].name == "out"


def changed(old: str, new: str) -> str:
    assert old in TINY
    return TINY.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        pytest.param("", "line 0", "expected HloModule", id="empty"),
        pytest.param("\n\n", "line 2", "expected HloModule", id="blank"),
        pytest.param("Hello\n", "line 1", "found 'Hello', expected 'HloModule", id="no module"),
        pytest.param("HloModule a\n", "line 1", "expected an ENTRY", id="no computation"),
        pytest.param(changed("ENTRY ", ""), "line 11", "expected an ENTRY", id="no entry"),
        pytest.param(changed("%double (", "ENTRY %double ("), "line 8", "second ENTRY (first in line 3)", id="two entries"),
        pytest.param(changed("%main", "%double"), "line 8", "%double a second time (first in line 3)", id="twice"),
        pytest.param(changed("%twice =", "%x ="), "line 5", "instruction %x a second time (first in line 4)", id="name twice"),
        pytest.param(changed("  %x =", "  ROOT %x ="), "line 5", "second ROOT in %double (first in line 4)", id="two roots"),
        pytest.param(changed("fusion(%a)", "fusion(%b)"), "line 10", "unknown operand 'b'", id="unknown operand"),
        pytest.param(
            changed("fusion(%a)", "fusion(%x)"), "line 10", "defined in another computation, in line 4", id="elsewhere"
        ),
        pytest.param(
            changed("add(%x, %x)", "add(%x, %twice)"), "line 5", "%twice, which is defined later, in line 5", id="itself"
        ),
        pytest.param(changed("f32[4]{0} add", "f33[4]{0} add"), "line 5", "element type 'f33'", id="element type"),
        pytest.param(changed("calls=%double", "calls=%main"), "line 10", "call of computation 'main'", id="cycle"),
        pytest.param(changed("calls=%double", "calls=%nothing"), "line 10", "call of computation 'nothing'", id="no callee"),
        pytest.param(changed(", calls=%double", ""), "line 10", "fusion with 0 called computations", id="no calls"),
        pytest.param(changed(", kind=kLoop, calls=%double", ""), "line 10", "fusion without attributes", id="bare fusion"),
        pytest.param(changed("kind=kLoop", "kind={kLoop"), "line 10", "1 unclosed brackets", id="open brace"),
        pytest.param(
            changed("kind=kLoop", "kind=kLoop}"), "line 10", "found '}' after 'kLoop', expected a comma", id="closing brace"
        ),
        pytest.param(changed("kind=kLoop", 'kind="kLoop'), "line 10", "string that never ends", id="open string"),
        pytest.param(
            changed("fusion(%a)", "fusion(%a"), "line 10", "found the end of the line after '%a, kind=", id="no parenthesis"
        ),
        pytest.param(
            changed("parameter(0)", "parameter(x)"), "line 4", "found parameter(x), expected a number", id="parameter"
        ),
        pytest.param(changed("parameter(0)", "parameter(1)"), "line 6", "parameters 1 in %double, expected 0 to 0", id="gap"),
        pytest.param(
            changed("(x: f32[4]) -> f32[4] {", "(x: f32[4]) {"), "line 3", "expected the start of a computation", id="signature"
        ),
        pytest.param(
            changed("  %x = f32[4]{0} parameter(0)\n  ROOT %twice = f32[4]{0} add(%x, %x)\n", ""),
            "line 4",
            "end of %double, expected an instruction",
            id="no instructions",
        ),
        pytest.param(TINY[: TINY.index("kind=kLo") + 8], "line 10", "fusion with 0 called computations", id="cut"),
        pytest.param(TINY[:-2], "line 10", "expected the closing brace of %main opened in line 8", id="cut between lines"),
        pytest.param(TINY.replace("fusion", "fu" + chr(0) + "sion"), "line 10", "expected an instruction", id="zero byte"),
    ],
)
def test_damage_is_reported(text: str, place: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        parse_module(text)
    assert caught.value.place == place
    assert "\n" not in str(caught.value)


def test_file_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "bad.hlo.txt"
    path.write_text(changed("f32[4]{0} add", "f33[4]{0} add"))
    with pytest.raises(InputError, match=r"bad\.hlo\.txt: line 5: found element type"):
        read_module(path)
    path.write_text(TINY.replace(", is_scheduled=true", ""))
    with pytest.raises(InputError, match=r"bad\.hlo\.txt: line 1: found a module without is_scheduled"):
        read_program(path)
    path.write_bytes(gzip.compress(LOOP.encode() * 100)[:-20])
    with pytest.raises(InputError, match=r"bad\.hlo\.txt: truncated gzip file"):
        read_module(path)
    path.write_bytes(TINY.encode().replace(b"kLoop", b"k\xffoop"))
    with pytest.raises(InputError, match=r"bad\.hlo\.txt: line 10: found byte 0xff"):
        read_module(path)
    path.write_bytes(b"")
    with pytest.raises(InputError, match=r"bad\.hlo\.txt: line 1: found an empty file"):
        read_module(path)
    with pytest.raises(InputError, match="cannot read"):
        read_module(tmp_path / "missing.txt")


@pytest.mark.parametrize("noise", [b"\x00\xff\x13", b"lorem ipsum\n", b"\n", b"{"])
def test_noise_is_refused_without_reading_on(tmp_path: Path, noise: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "noise"
    path.write_bytes(noise * 100_000)

    def read_text(*_: object) -> str:
        raise AssertionError("read the whole file")

    monkeypatch.setattr("stowplan.files.read_text", read_text)
    with pytest.raises(InputError, match="HloModule") as caught:
        read_module(path)
    assert len(str(caught.value)) < len(str(path)) + 220


def read_fully(text: str) -> None:
    """Everything that may interpret text; only InputError may come out."""
    try:
        module = parse_module(text)
        for computation in module.computations.values():
            for instruction in computation.instructions:
                assert isinstance(instruction.attributes, dict)
        program_from_module(module)
    except InputError:
        pass


@settings(max_examples=150)
@given(path=st.sampled_from(SMALL), data=st.data())
def test_cut_anywhere(path: Path, data: st.DataObject) -> None:
    text = path.read_text()
    cut = text[: data.draw(st.integers(0, len(text.rstrip()) - 1))]
    with pytest.raises(InputError):
        parse_module(cut)


@settings(max_examples=400)
@given(path=st.sampled_from(SMALL), data=st.data())
def test_mutated_anywhere(path: Path, data: st.DataObject) -> None:
    text = path.read_text()
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 12)))
        piece = data.draw(
            st.one_of(
                st.text(alphabet='{}()[],:="%ROT0129_- \nfs', max_size=8),
                st.sampled_from(
                    [
                        "9" * 30,
                        "-1",
                        "999999999",
                        "while",
                        "fusion",
                        "get-tuple-element",
                        "scatter",
                        "tuple",
                        "dot",
                        "convolution",
                        "dynamic-update-slice",
                        "async-done",
                        "f32[0]",
                        "token[]",
                        "()",
                        "parameter(1)",
                    ]
                ),
            )
        )
        text = text[:start] + piece + text[end:]
    read_fully(text)


@settings(max_examples=300)
@given(path=st.sampled_from(SMALL), data=st.data())
def test_words_exchanged(path: Path, data: st.DataObject) -> None:
    """Swapping names, shapes and opcodes keeps lines well formed, so that damage reaches what interprets them."""
    text = path.read_text()
    words = list(re.finditer(r"%?[\w.\-]+(?:\[[^\]]*\])?(?:\{[^{}]*\})?", text))
    first, second = sorted(data.draw(st.lists(st.sampled_from(words), min_size=2, max_size=2)), key=lambda word: word.start())
    if first.end() <= second.start():
        text = text[: first.start()] + second[0] + text[first.end() : second.start()] + first[0] + text[second.end() :]
    read_fully(text)


@given(st.text(alphabet='{}()[]",=%aT0 \\', max_size=200))
@example('{"' * 50)
@example("(" * 5000)
def test_any_attributes(text: str) -> None:
    read_fully(changed("kind=kLoop", text))


@pytest.mark.parametrize(
    "text",
    [
        changed("f32[4]{0} add(%x, %x)", "(" * 100_000 + "f32[4]" + ")" * 100_000 + " add(%x, %x)"),
        changed("kind=kLoop", "kind=" + "{" * 100_000 + "}" * 100_000),
        changed("add(%x, %x)", "constant(" + "{(" * 50_000 + ")}" * 50_000 + ")"),
        changed("(x: f32[4]) -> f32[4] {", "(x: f32[4]) -> " + " " * 100_000 + "x"),
    ],
)
def test_nesting_bombs(text: str) -> None:
    read_fully(text)


def test_call_bombs() -> None:
    """Calls that double at each level, and calls nested too deep, are refused before anything is built."""
    head = "HloModule bomb, is_scheduled=true\n\n"
    level = "%c{n} (v: f32[1]) -> f32[1] {{\n  %v = f32[1]{{0}} parameter(0)\n{body}}}\n\n"
    base = level.format(n=0, body="  ROOT %r = f32[1]{0} negate(%v)\n")
    twice = "  %r = f32[1]{{0}} call(%v), to_apply=%c{n}\n  ROOT %s = f32[1]{{0}} call(%r), to_apply=%c{n}\n"
    once = "  ROOT %r = f32[1]{{0}} call(%v), to_apply=%c{n}\n"
    for body, depth, message in ((twice, 40, "more than 2000000 instructions"), (once, 5000, "nested 5001 deep")):
        text = head + base + "".join(level.format(n=n, body=body.format(n=n - 1)) for n in range(1, depth + 1))
        where = text.index(f"%c{depth} (")
        with pytest.raises(InputError, match=message):
            program_from_module(parse_module(text[:where] + "ENTRY " + text[where:]))


@pytest.mark.corpus
def test_reads_the_corpus_of_other_stages(corpus: Path) -> None:
    """Modules before XLA's optimisations have no signatures, those after memory assignment have asynchronous copies."""
    for path in sorted((corpus / "unoptimized").glob("*.hlo.txt.gz")):
        module = read_module(path)
        assert not module.is_scheduled
        assert sum(len(each.instructions) for each in module.computations.values()) > 50
    planned = read_module(corpus / "tpu_v4_xla_plan" / "alexnet_train_b32.hlo.txt.gz")
    assert any(instruction.opcode == "copy-start" for instruction in planned.entry.instructions)
    costed = read_program(corpus / "tpu_v4_cycles" / "alexnet_train_b32.nomsa.hlo.txt.gz")
    plain = read_program(corpus / "tpu_v4" / "alexnet_train_b32.hlo.txt.gz")
    assert [step.name for step in costed.steps] == [step.name for step in plain.steps]
    assert sum(step.cycles is not None for step in costed.steps) > 0.7 * len(costed.steps)
