"""Tables of the offsets of exported programs, and reports as text; programs are stand-ins for executorch's."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from stowplan.backends.executorch import offset_table, write_offsets
from stowplan.backends.executorch.planning import ArenaReport
from stowplan.errors import UsageError


def node(name: str, *places: tuple[int, int, int]) -> Any:
    """A node with a tensor for each place: arena, offset and bytes."""
    specs = [
        SimpleNamespace(mem_id=arena, mem_offset=offset, alignment=16, lifetime=[at, at + 1], nbytes=lambda size=size: size)
        for at, (arena, offset, size) in enumerate(places)
    ]
    return SimpleNamespace(name=name, meta={"spec": specs[0] if len(specs) == 1 else specs})


def program(**nodes: list[Any]) -> Any:
    """A program whose methods have these nodes, and arenas 1 of 64 bytes."""
    methods = {
        name: SimpleNamespace(
            graph_module=SimpleNamespace(meta={"non_const_buffer_sizes": [0, 64]}, graph=SimpleNamespace(nodes=own))
        )
        for name, own in nodes.items()
    }
    return SimpleNamespace(methods={*methods}, exported_program=methods.__getitem__)


ONE = {"encode": [node("relu", (1, 0, 32)), node("split", (1, 32, 16), (1, 48, 16))]}
TWO = ONE | {"decode": [node("relu", (1, 16, 48))]}


def test_a_program_with_one_method_keeps_the_names_of_its_graph(tmp_path: Path) -> None:
    for table in (offset_table(program(**ONE), None), offset_table(program(**TWO), "encode")):
        assert [row.name for row in table.rows] == ["relu", "split", "split_1"]
        assert [(arena.name, arena.bytes, arena.alignment) for arena in table.arenas] == [("arena0", 0, 1), ("arena1", 64, 16)]
        assert table.program == "encode"
    # The method need not be called forward.
    write_offsets(program(**ONE), tmp_path / "model.h")
    assert "#define MODEL_ARENA1_BYTES UINT64_C(64)" in (tmp_path / "model.h").read_text()


def test_rows_of_several_methods_name_their_method(tmp_path: Path) -> None:
    table = offset_table(program(**TWO), None)
    assert table.program == "decode, encode"
    places = {row.name: (table.arenas[row.arena].name, row.offset, row.size) for row in table.rows}
    assert places == {
        "decode.relu": ("decode.arena1", 16, 48),
        "encode.relu": ("encode.arena1", 0, 32),
        "encode.split": ("encode.arena1", 32, 16),
        "encode.split_1": ("encode.arena1", 48, 16),
    }
    write_offsets(program(**TWO), tmp_path / "model.csv", "csv")
    lines = [line for line in (tmp_path / "model.csv").read_text().splitlines() if not line.startswith("#")]
    assert {row["name"]: row["arena"] for row in csv.DictReader(lines)} == {name: place[0] for name, place in places.items()}
    write_offsets(program(**TWO), tmp_path / "model.h")
    text = (tmp_path / "model.h").read_text()
    assert "#define MODEL_ENCODE_ARENA1_BYTES UINT64_C(64)" in text
    assert "#define MODEL_OFFSET_decode_relu UINT64_C(16)" in text
    write_offsets(program(**TWO), tmp_path / "model.h", method="decode")
    assert "#define MODEL_OFFSET_relu UINT64_C(16)" in (tmp_path / "model.h").read_text()


def test_offsets_change_the_digest_of_the_plan_alone() -> None:
    table = offset_table(program(**ONE), None)
    moved = offset_table(program(encode=[node("relu", (1, 16, 32)), *ONE["encode"][1:]]), None)
    assert table.problem_digest == moved.problem_digest
    assert len({table.problem_digest, table.plan_digest, moved.plan_digest}) == 3


def test_a_method_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="found the method 'forward', expected one of decode, encode"):
        offset_table(program(**TWO))


def test_a_report_is_a_line() -> None:
    report = ArenaReport(
        mem_id=1, buffers=9, greedy=327_680, size=262_144, load_bound=1, bound=262_144, source="x", seconds=0.1
    )
    assert str(report) == "arena 1: greedy 327,680 bytes, now 262,144 (proven least)"
    page = Path(__file__).parents[3] / "docs" / "guide" / "executorch.md"
    assert f"\n```\n{report}\n```\n" in page.read_text(encoding="utf-8")
    open_report = msgspec.structs.replace(report, bound=200_000)
    assert str(open_report).endswith("now 262,144 (at least 200,000 by a proven bound)")
