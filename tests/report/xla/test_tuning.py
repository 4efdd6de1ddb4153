"""The page and the picture about a tuning: what changed, to the last cycle; both layouts; the options as they are set."""

from __future__ import annotations

import ast
import json
import re
import shlex
from html import unescape
from pathlib import Path

import msgspec
import pytest

from stowplan.backends.xla.evidence import Evidence, Trial
from stowplan.backends.xla.steer import ALL_SLOW, CAPACITY_OPTION, DEFAULT
from stowplan.backends.xla.tuning import TrialRecord, Tuning
from stowplan.errors import InputError, UsageError
from stowplan.report.xla import render_tuning_report, save_tuning_picture, save_tuning_report
from stowplan.report.xla.changes import Changes, MemoryChange, TensorChange, compare_trials
from stowplan.report.xla.played import play_trial
from stowplan.report.xla.plots import signed_share, trials_plot
from tests.report.xla.cases import (
    CYCLES,
    ORDER,
    chain_results,
    evidence_of,
    keep,
    keep_program,
    text_of,
    tuning_of,
    with_cycles,
)

HOSTILE = "<script>alert('1')</script>&\"$x_1$"


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """XLA's default, all in slow memory, and the best."""
    default, best, slow = chain_results(tmp_path_factory.mktemp("results"))
    return evidence_of((DEFAULT, default), (ALL_SLOW, slow), (ORDER, best))


@pytest.fixture(scope="module")
def tuning(evidence: Evidence) -> Tuning:
    return tuning_of(evidence, ("default", "all_slow", "plan_first"))


def changes_of(evidence: Evidence, before: Trial, after: Trial) -> Changes:
    """Differences of two trials."""
    return compare_trials(evidence, play_trial(evidence, before), play_trial(evidence, after))


def section(page: str, heading: str) -> str:
    """One section of a page, its text between the tags."""
    found = re.search(rf"<section><h2>{re.escape(heading)}</h2>(.*?)</section>", page, re.DOTALL)
    assert found is not None, heading
    return unescape(re.sub(r"<[^>]+>", " ", found[1]))


# --- changes -------------------------------------------------------------------------------------------------------------


def test_instructions_with_other_cycles(evidence: Evidence) -> None:
    default, _, best = evidence.trials
    changes = changes_of(evidence, default, best)
    tensor = evidence.program.value_tensor["d"]
    assert [(row.name, row.before, row.after, row.cycles) for row in changes.gained] == [
        ("g", 70_000, 50_000, -20_000),
        ("d", 40_000, 25_000, -15_000),
    ]
    assert [(row.name, row.cycles) for row in changes.lost] == [("f", 5_000)]
    assert [row.memories for row in changes.gained] == [
        (MemoryChange(tensor, is_output=False, to_fast=True),),
        (MemoryChange(tensor, is_output=True, to_fast=True),),
    ]
    assert changes.lost[0].memories == ()
    assert sum(row.cycles for row in changes.instructions) == best.score.cycles - default.score.cycles


def test_tensors_that_moved(evidence: Evidence) -> None:
    default, _, best = evidence.trials
    changes = changes_of(evidence, default, best)
    tensor = evidence.program.value_tensor["d"]
    size = evidence.program.tensors[tensor].size
    assert changes.tensors == (TensorChange(tensor, 2, 0, 2, 2 * size, -35_000),)
    back = changes_of(evidence, best, default)
    assert back.tensors == (TensorChange(tensor, 2, 2, 0, -2 * size, 35_000),)
    assert [row.cycles for row in back.instructions] == [-row.cycles for row in reversed(changes.instructions)]


def test_an_instruction_that_only_one_module_has(evidence: Evidence, tmp_path: Path) -> None:
    plan, offsets = text_of("chain.plan.hlo.txt"), text_of("chain.plan.fastmem.txt")
    renamed = re.sub(r"%d\b", "%d.clone", with_cycles(plan, CYCLES))
    own = evidence_of((DEFAULT, evidence.trials[0].compiled), (ORDER, keep(tmp_path, "renamed", plan, offsets, renamed)))
    changes = changes_of(own, *own.trials)
    assert [(row.name, row.before, row.after) for row in changes.instructions] == [
        ("d", 40_000, None),
        ("d.clone", None, 40_000),
    ]


def test_loops_count_with_their_runs(tmp_path: Path) -> None:
    program, plan = text_of("loop.hlo.txt"), text_of("loop.plan.hlo.txt")
    names = set(re.findall(r"(?m)^ *(?:ROOT )?%([\w.\-]+) = ", program))
    keep_program(tmp_path, program)
    slow = keep(tmp_path, "slow", program, "", with_cycles(program, dict.fromkeys(names, 900)))
    fast = keep(tmp_path, "fast", plan, text_of("loop.plan.fastmem.txt"), with_cycles(plan, dict.fromkeys(names, 500)))
    own = evidence_of((DEFAULT, slow), (ORDER, fast))
    changes = changes_of(own, *own.trials)
    assert {row.runs for row in changes.instructions} > {1}
    assert all(row.cycles == -400 * row.runs for row in changes.instructions if row.after and row.before)
    assert sum(row.cycles for row in changes.instructions) == own.trials[1].score.cycles - own.trials[0].score.cycles


# --- layouts -------------------------------------------------------------------------------------------------------------


def test_layouts_are_played_with_the_cycles_of_their_own_modules(evidence: Evidence) -> None:
    target = evidence.judge.target
    for trial in evidence.trials:
        timeline = play_trial(evidence, trial).scene.timeline
        assert timeline.stall_ps == pytest.approx(target.cycles_ps(trial.score.stall_cycles), abs=1000)
        assert timeline.total_ps == pytest.approx(target.cycles_ps(trial.score.total), abs=10_000)


def test_everything_in_slow_memory_is_an_empty_layout(evidence: Evidence) -> None:
    played = play_trial(evidence, evidence.trials[1])
    assert not played.scene.boxes
    assert played.notes == ("everything in slow memory",)


# --- page ----------------------------------------------------------------------------------------------------------------


def test_page(evidence: Evidence, tuning: Tuning, tmp_path: Path) -> None:
    save_tuning_report(tmp_path / "page.html", tuning, evidence)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    default, best = tuning.default, tuning.trials[2]
    assert f"XLA's default: {default.total:,} cycles" in unescape(page)
    assert f"Best (plan first): {best.total:,} cycles, {tuning.gain:.2%} fewer" in unescape(page)
    assert "2 instructions gained 35,000 cycles over all runs, 1 lost 5,000" in section(page, "Instructions that gained")
    assert "reads d from fast" in section(page, "Instructions that gained")
    assert "writes d to fast" in section(page, "Instructions that gained")
    assert "0 → 2 of 2" in section(page, "Tensors that moved")
    assert "+64 KiB" in section(page, "Tensors that moved")
    assert "cross-program prefetch" in section(page, "Notes")
    # Nothing is loaded from anywhere.
    assert not re.search(r"https?://|\bsrc=|<link", page)


def test_both_layouts_have_the_same_tensors_and_colours(evidence: Evidence, tuning: Tuning) -> None:
    page = render_tuning_report(tuning, evidence)
    data = json.loads(re.search(r'<script id="data"[^>]*>(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    assert [len(plan) for plan in data["plans"]] == [7, 8]
    colours: dict[str, set[str]] = {}
    for tensor, colour in re.findall(r'<g data-t="(\d+)" fill="(#\w+)">', page):
        colours.setdefault(tensor, set()).add(colour)
    assert {data["tensors"][tensor][0] for tensor in colours} == {"w0", "w1", "a", "b", "c{0}", "d", "e"}
    assert all(len(each) == 1 for each in colours.values())


def test_the_same_tuning_gives_the_same_bytes(evidence: Evidence, tuning: Tuning) -> None:
    assert render_tuning_report(tuning, evidence) == render_tuning_report(tuning, evidence)


def test_simulated_time(evidence: Evidence, tuning: Tuning) -> None:
    assert "simulated time" in render_tuning_report(tuning, evidence, time="seconds")


def test_names_and_messages_are_text(evidence: Evidence) -> None:
    tuning = tuning_of(evidence, ("default", "all_slow", HOSTILE), HOSTILE, (HOSTILE,))
    refused = TrialRecord(way=HOSTILE, first=1, last=0, error=HOSTILE)
    tuning = msgspec.structs.replace(tuning, trials=(*tuning.trials, refused), compiler_options={HOSTILE: HOSTILE})
    page = render_tuning_report(tuning, evidence)
    assert "alert(" in page
    assert "<script>alert" not in page


def test_options_can_be_copied_as_they_are(evidence: Evidence, tuning: Tuning) -> None:
    options = {**tuning.compiler_options, CAPACITY_OPTION: 16384, "xla_some_switch": False}
    page = render_tuning_report(msgspec.structs.replace(tuning, compiler_options=options), evidence)
    python, flags = (unescape(text) for text in re.findall(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL))
    assert ast.literal_eval(python.removeprefix("compiler_options = ")) == options
    assert f"--{CAPACITY_OPTION}=16384" in shlex.split(flags)
    assert "--xla_some_switch=false" in shlex.split(flags)
    assert "16384 KiB" in section(page, "Options to set")


def test_long_options_are_folded(evidence: Evidence, tuning: Tuning) -> None:
    assert "<details open><summary>Python" in render_tuning_report(tuning, evidence)
    long = msgspec.structs.replace(tuning, compiler_options={"xla_order": "x" * 5000})
    page = render_tuning_report(long, evidence)
    assert "<details><summary>Python" in page
    assert "5,000 characters" in section(page, "Options to set")


def test_a_default_that_nothing_beats_stands_alone(evidence: Evidence) -> None:
    own = evidence_of(*((trial.steer, trial.compiled) for trial in evidence.trials[:2]))
    page = render_tuning_report(tuning_of(own, ("default", "all_slow")), own)
    assert "no steer was better" in page
    assert "XLA's default is the best" in section(page, "Options to set")
    assert page.count("<figure>") == 1
    assert "Instructions that gained" not in page
    assert "Tensors that moved" not in page


def test_a_default_in_slow_memory(evidence: Evidence) -> None:
    own = evidence_of(*((trial.steer, trial.compiled) for trial in reversed(evidence.trials[:2])))
    page = render_tuning_report(tuning_of(own, ("default", "plan_first")), own)
    assert "everything in slow memory" in section(page, "Notes")
    assert page.count("<figure>") == 2


def test_evidence_of_another_run(evidence: Evidence, tuning: Tuning, tmp_path: Path) -> None:
    own = evidence_of(*((trial.steer, trial.compiled) for trial in evidence.trials[:2]))
    for save, name in ((save_tuning_report, "page.html"), (save_tuning_picture, "picture.png")):
        with pytest.raises(InputError, match="found evidence of another run"):
            save(tmp_path / name, tuning, own)
        assert not (tmp_path / name).exists()


# --- curve ---------------------------------------------------------------------------------------------------------------


def test_trials_off_the_scale_and_refused(tuning: Tuning) -> None:
    refused = TrialRecord(way="explore", first=3, last=0, error="Unknown flag")
    plot = trials_plot(msgspec.structs.replace(tuning, trials=(*tuning.trials, refused)))
    # All in slow memory takes three times as long, which would flatten all else.
    assert plot.count('class="off-scale"') == 1
    assert plot.count('class="refused"') == 1
    assert plot.count('class="dot chosen"') == 1
    assert "4. explore\nrefused: Unknown flag" in unescape(plot)


def test_a_single_trial(tuning: Tuning) -> None:
    alone = msgspec.structs.replace(tuning, trials=tuning.trials[:1], best=0)
    assert trials_plot(alone).count('class="dot chosen"') == 1


def test_shares_have_a_sign_and_enough_digits() -> None:
    shares = {0.0: "0%", -0.0342: "−3.42%", 0.5: "+50.00%", -0.00001234: "−0.001%"}
    assert {share: signed_share(share) for share in shares} == shares


# --- picture -------------------------------------------------------------------------------------------------------------


def test_picture(evidence: Evidence, tuning: Tuning, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("one.svg", "two.svg"):
        save_tuning_picture(tmp_path / name, tuning, evidence)
    text = (tmp_path / "one.svg").read_bytes()
    assert text == (tmp_path / "two.svg").read_bytes()
    titles = re.findall(r"<!-- (.*?) -->", text.decode())
    assert "chain on tpu-v4, 64 MiB of fast memory" in titles
    assert titles.index(f"XLA's default: {tuning.default.total:,} cycles") < next(
        number for number, title in enumerate(titles) if title.startswith("Best (plan first): ")
    )
    save_tuning_picture(tmp_path / "picture.png", tuning, evidence)
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_picture_format(evidence: Evidence, tuning: Tuning, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.gif"):
        save_tuning_picture(tmp_path / "picture.gif", tuning, evidence)
