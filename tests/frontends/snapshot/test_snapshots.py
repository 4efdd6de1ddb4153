"""Memory snapshots as inputs: what torch's own statistics said of them, what is told of plans, and what is refused."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stowplan
from benchmarks.lib.fuzz_inputs import snapshot
from benchmarks.torch_memory.allocator import MIB, Allocator
from stowplan.cli import main
from stowplan.errors import InputError, UsageError
from stowplan.frontends.options import ReadOptions
from stowplan.frontends.read import open_input
from stowplan.frontends.snapshot import trace as traces
from stowplan.frontends.snapshot.plain_pickle import load
from stowplan.frontends.snapshot.replay import Replay
from stowplan.frontends.snapshot.trace import read_trace
from stowplan.log import UnmodelledWarning
from stowplan.models.packing.verify import verify
from tests.paths import ROOT

DATA = ROOT / "tests" / "data" / "snapshots"
TRUTH = json.loads((DATA / "truth.json").read_text())

#: Recorded on a GPU, with ``memory_stats`` beside; of these the history is not whole.
PARTS = ("state", "wrapped")


def recorded(name: str) -> Path:
    """A snapshot that was recorded on an H200 with torch 2.11 (``benchmarks/torch_memory/record_snapshots.py``)."""
    path = DATA / f"{name}.pickle.gz"
    return path if path.exists() else ROOT / "examples" / "data" / f"{name}.pickle.gz"


def run(command: list[str]) -> int:
    """Exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def written(path: Path, value: Any) -> Path:
    path.write_bytes(pickle.dumps(value))
    return path


def details(path: Path, objective: int | None = None, bound: int | None = None) -> dict[str, Any]:
    findings = open_input(path, ReadOptions()).findings
    assert findings is not None
    facts: dict[str, Any] = findings.details(objective, bound)["snapshot"]
    return facts


@pytest.mark.parametrize("name", TRUTH)
def test_what_torch_counted(name: str) -> None:
    replay = Replay(read_trace(load(gzip.decompress(recorded(name).read_bytes())), None))
    for kind, found in replay.peaks._asdict().items():
        if kind == "reserved" or name not in PARTS:
            assert found == TRUTH[name][kind]["peak"], kind
        assert getattr(replay.at(-1), kind) == TRUTH[name][kind]["current"], kind


@pytest.mark.parametrize("name", TRUTH)
def test_torchs_layout_is_a_valid_plan(name: str) -> None:
    opened = open_input(recorded(name), ReadOptions())
    assert opened.findings is not None
    (plan,) = opened.findings.plans().values()
    assert verify(opened.problem, plan).ok
    assert plan.objective <= TRUTH[name]["reserved"]["peak"]


def test_what_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page, picture = tmp_path / "page.html", tmp_path / "picture.svg"
    command = ["solve", str(recorded("fragmented")), "--time-limit", "20", "-q", "--report", str(page), "--png", str(picture)]
    assert run(command) == 0
    text = capsys.readouterr().out
    assert "  reserved   457,179,136 bytes (436 MiB) at most, first for 5,477,435 bytes (5.224 MiB) of train.py:" in text
    assert "  arena      " in text
    assert "(proven)" in text
    assert "  hole       15,493,632 bytes" in text
    assert "  largest    25,165,824 bytes (24 MiB), train.py:" in text
    assert "Memory snapshot" in page.read_text()
    assert "torch: " in picture.read_text()


def test_what_json_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["solve", str(recorded("oom")), "--time-limit", "20", "-q", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    facts = values["details"]["snapshot"]
    assert facts["arena"] == values["objective"] >= facts["arena_bound"] == values["bound"]
    assert facts["fragmentation"] == TRUTH["oom"]["reserved"]["peak"] - values["objective"]
    (shortage,) = facts["out_of_memory"]
    assert shortage["asked"] == 1 << 30
    assert all(hole["bytes"] <= hole["segment"] for hole in facts["holes"])
    assert facts["largest"][0]["stack"]


def test_streams_apart_and_pending_frees() -> None:
    facts = details(recorded("streams"))
    assert facts["streams"] == 2
    assert facts["peaks"]["active"] > facts["peaks"]["allocated"]
    # Each stream for itself needs no less than both together.
    assert facts["streams_apart_bound"] >= stowplan.read(recorded("streams")).spans.size.max()
    assert facts["streams_apart_bound"] > facts["peaks"]["active"]


def test_an_allocation_lives_until_its_free_is_complete(tmp_path: Path) -> None:
    allocator = Allocator()
    first = allocator.malloc(1000)
    allocator.free(first, completes=False)
    allocator.malloc(600)
    allocator.complete(first)
    one, two = stowplan.read(written(tmp_path / "a.pickle", allocator.snapshot())).buffers
    # Event 0 reserves a segment.
    assert (one.lower, one.upper, one.size, one.alignment) == (1, 4, 1024, 512)
    assert (two.lower, two.upper, two.size) == (3, 5, 1024)


def test_events_that_mean_nothing_here(tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.malloc(1000)
    value = allocator.snapshot()
    others = [
        {"action": name, "addr": 0, "size": 5, "stream": 0} for name in ("snapshot", "user_defined", "workspace_snapshot")
    ]
    value["device_traces"][0][1:1] = [*others, {"action": "of a later version", "pool_id": (0, 1)}]
    (buffer,) = stowplan.read(written(tmp_path / "a.pickle", value)).buffers
    assert (buffer.lower, buffer.upper) == (5, 6)


def test_older_versions_have_no_addresses_of_blocks(tmp_path: Path) -> None:
    value = snapshot()
    expected = stowplan.read(written(tmp_path / "a.pickle", value), device=1)
    del value["allocator_settings"]
    for segment in value["segments"]:
        del segment["is_expandable"], segment["segment_pool_id"]
        for block in segment["blocks"]:
            del block["address"]
    assert stowplan.read(written(tmp_path / "a.pickle", value), device=1).digest == expected.digest


def test_events_that_were_not_recorded(tmp_path: Path) -> None:
    allocator = Allocator()
    for _ in range(2):
        allocator.free(allocator.malloc(1000))
    value = allocator.snapshot()
    events = value["device_traces"][0]
    value["device_traces"][0] = [event for event in events if event["action"] != "free_completed"]
    with pytest.warns(UnmodelledWarning, match="2 allocations end without an event"):
        one, two = stowplan.read(written(tmp_path / "a.pickle", value)).buffers
    assert (one.lower, one.upper, two.lower, two.upper) == (1, 2, 3, 4)


def test_devices(tmp_path: Path) -> None:
    one, two = Allocator(), Allocator()
    one.malloc(1000)
    for size in (3000, 5000):
        two.malloc(size)
    value, other = one.snapshot(), two.snapshot(device=1)
    value["segments"] += other["segments"]
    value["device_traces"].append(other["device_traces"][1])
    path = written(tmp_path / "a.pickle", value)
    with pytest.warns(UnmodelledWarning, match="device 1: it has the most events; there are others: 0"):
        assert len(stowplan.read(path).buffers) == 2
    assert [buffer.size for buffer in stowplan.read(path, device=0).buffers] == [1024]
    with pytest.raises(InputError, match="found nothing of device 2, expected one of 0, 1"):
        stowplan.read(path, device=2)
    with pytest.raises(UsageError, match="--set device"):
        stowplan.read(ROOT / "examples" / "data" / "buffers.csv", device=0)


def test_without_history_there_is_what_stands(tmp_path: Path) -> None:
    problem = stowplan.read(recorded("state"))
    assert {(buffer.lower, buffer.upper) for buffer in problem.buffers} == {(-1, 1)}
    result = stowplan.solve(problem, time_limit=20)
    assert (result.objective, result.status) == (TRUTH["state"]["allocated"]["current"], "optimal")


def test_capacity(tmp_path: Path) -> None:
    result = stowplan.solve(stowplan.read(recorded("mlp"), capacity=200 * MIB), time_limit=20)
    assert result.status == "infeasible"
    assert "live at once" in result.details["explanation"]


def test_gzip_and_any_name(tmp_path: Path) -> None:
    path = tmp_path / "memory of a step"
    path.write_bytes(gzip.compress(pickle.dumps(snapshot())))
    assert stowplan.read(path).buffers


def bad(change: Callable[[dict[str, Any]], object]) -> bytes:
    value = snapshot()
    change(value)
    return pickle.dumps(value)


BAD = {
    "a list": (lambda: pickle.dumps([1]), "found a pickle of list, expected a memory snapshot with segments and device_traces"),
    "other keys": (
        lambda: pickle.dumps({"state_dict": 1, "epoch": 2}),
        "found a pickle of the keys state_dict, epoch, expected",
    ),
    "an empty one": (
        lambda: pickle.dumps({"segments": [], "device_traces": [[], []]}),
        "found neither segments nor events, expected what torch.cuda.memory._record_memory_history recorded",
    ),
    "no list": (lambda: bad(lambda value: value.update(segments={})), "segments: Expected `array`, got `object`"),
    "no trace": (lambda: bad(lambda value: value.update(device_traces=[1])), "device_traces[0]: Expected `array`, got `int`"),
    "no action": (
        lambda: bad(lambda value: value["device_traces"][1][2].pop("action")),
        "device_traces[1][2]: Object missing required field `action`",
    ),
    "a negative size": (
        lambda: bad(lambda value: value["device_traces"][1][2].update(size=-1)),
        "device_traces[1][2].size: Expected `int` >= 0",
    ),
    "an address as text": (
        lambda: bad(lambda value: value["device_traces"][1][2].update(addr="0x7f")),
        "device_traces[1][2].addr: Expected `int`, got `str`",
    ),
    "a size beyond all memory": (
        lambda: bad(lambda value: value["segments"][0].update(total_size=1 << 60)),
        "segments[0].total_size: Expected `int` <= ",
    ),
    "sizes beyond all memory": (
        lambda: bad(lambda value: [segment.update(total_size=(1 << 60) - 1) for segment in value["segments"]]),
        "found sizes that add up to",
    ),
    "a state that is none": (
        lambda: bad(lambda value: value["segments"][0]["blocks"][0].update(state=3)),
        "segments[0].blocks[0].state: Expected `str`, got `int`",
    ),
    "cut off": (lambda: pickle.dumps(snapshot())[:-40], "found a pickle that is cut off or damaged"),
    "a call": (
        lambda: pickle.dumps({"segments": [], "device_traces": [], "x": json.loads}),
        "found the opcode STACK_GLOBAL, expected a pickle of plain data, which constructs and calls nothing",
    ),
    "text keys": (lambda: pickle.dumps({1: 2}), "found a key that is not text, expected dictionaries whose keys are text"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_snapshots(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, expected = BAD[name]
    path = tmp_path / "bad.pickle"
    path.write_bytes(make())
    assert run(["solve", str(path), "-q"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert expected in line
    assert str(path) in line


def test_lists_that_stand_in_many_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MOST_ENTRIES", 10_000)
    value = snapshot()
    value["device_traces"] = [value["device_traces"][1] * 100] * 100
    with pytest.raises(InputError, match="found more than 10000 events and blocks"):
        stowplan.read(written(tmp_path / "a.pickle", value))


def test_a_gzip_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stowplan.frontends.snapshot.MAX_BYTES", 1 << 20)
    path = tmp_path / "a.pickle.gz"
    path.write_bytes(gzip.compress(b"\x80\x04" + bytes(1 << 24)))
    assert path.stat().st_size < 1 << 16
    with pytest.raises(InputError, match="larger than the limit of 1048576 bytes"):
        stowplan.read(path)


def test_segments_that_overlap_and_wild_numbers(tmp_path: Path) -> None:
    """Damaged values give some problem or a line; what is told of them never fails."""
    value = snapshot()
    for segment in value["segments"]:
        segment["address"] = value["segments"][0]["address"] + 100
        segment["total_size"] = 1 << 58
    value["allocator_settings"] = {"max_split_size": "x", "roundup_power2_divisions": {"1": 1 << 70}}
    assert details(written(tmp_path / "a.pickle", value), 1, 1)["peaks"]["reserved"] > 0


def test_other_files_of_the_name_are_refused(tmp_path: Path) -> None:
    for number, data in enumerate((b"", b"hello", pickle.dumps({"segments": []}, protocol=0))):
        path = tmp_path / f"{number}.pickle"
        path.write_bytes(data)
        with pytest.raises(InputError, match="found no pickle of protocol 2 to 5"):
            stowplan.read(path)
