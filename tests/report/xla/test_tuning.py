"""The page and the picture about a tuning: what changed, to the last cycle; both layouts; the options as they are set."""

from __future__ import annotations

import ast
import json
import re
import shlex
from html import unescape
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from stowplan.backends.xla.evidence import Evidence
from stowplan.backends.xla.knobs import ALL_SLOW, CAPACITY_OPTION, DEFAULT, Knobs
from stowplan.backends.xla.store import Compiled
from stowplan.backends.xla.tuning import TrialRecord, Tuning
from stowplan.errors import InputError
from stowplan.report.inline import plot_html
from stowplan.report.xla import render_tuning_report, save_tuning_report, signed_share, trials_plot
from stowplan.report.xla_comparison import Changes, MemoryChange, TensorChange, compare_trials, read_comparison
from tests.report.xla.cases import (
    CYCLES,
    ORDER,
    chain_results,
    evidence_of,
    keep,
    text_of,
    tuning_of,
    with_cycles,
)

HOSTILE = "<script>alert('1')</script>&\"$x_1$"


class Run(NamedTuple):
    """A tuning and the folder of its results."""

    tuning: Tuning
    folder: Path
    evidence: Evidence

    @property
    def changes(self) -> Changes:
        """Of the best from the default."""
        return compare_trials(read_comparison(self.tuning, self.folder))

    def page(self, **changes: object) -> str:
        """Of the tuning with some fields changed."""
        return render_tuning_report(msgspec.structs.replace(self.tuning, **changes), self.folder)


def run_of(*trials: tuple[str, Knobs, Compiled]) -> Run:
    """A run with these trials: way, setting and result."""
    evidence = evidence_of(*((knobs, compiled) for _, knobs, compiled in trials))
    return Run(tuning_of(evidence, tuple(way for way, *_ in trials)), trials[0][2].folder.parent.parent, evidence)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """XLA's default, all in slow memory, and the best."""
    default, best, slow = chain_results(tmp_path_factory.mktemp("results"))
    return run_of(("default", DEFAULT, default), ("all_slow", ALL_SLOW, slow), ("plan_first", ORDER, best))


def part_of(run: Run, *numbers: int) -> Run:
    """A run with some of the trials, the default first."""
    return run_of(
        *((run.tuning.trials[at].way, run.evidence.trials[at].knobs, run.evidence.trials[at].compiled) for at in numbers)
    )


def section(page: str, heading: str) -> str:
    """One section of a page, its text between the tags."""
    found = re.search(rf"<section><h2>{re.escape(heading)}</h2>(.*?)</section>", page, re.DOTALL)
    assert found is not None, heading
    return unescape(re.sub(r"<[^>]+>", " ", found[1]))


# --- changes -------------------------------------------------------------------------------------------------------------


def test_instructions_with_other_cycles(run: Run) -> None:
    changes = run.changes
    tensor = run.evidence.program.value_tensor["d"]
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
    tuning = run.tuning
    assert sum(row.cycles for row in changes.instructions) == tuning.trials[2].cycles - tuning.default.cycles


def test_tensors_that_moved(run: Run) -> None:
    tensor = run.evidence.program.value_tensor["d"]
    size = run.evidence.program.tensors[tensor].size
    assert run.changes.tensors == (TensorChange(tensor, 2, 0, 2, 2 * size, -35_000),)


def test_an_instruction_that_only_one_module_has(run: Run) -> None:
    plan, offsets = text_of("chain.plan.hlo.txt"), text_of("chain.plan.fastmem.txt")
    renamed = re.sub(r"%d\b", "%d.clone", with_cycles(plan, {**CYCLES, "d": 39_000}))
    default = run.evidence.trials[0].compiled
    compiled = keep(run.folder, text_of("chain.hlo.txt"), plan, offsets, renamed, {"renamed": True})
    own = run_of(("default", DEFAULT, default), ("plan", ORDER, compiled))
    assert [(row.name, row.before, row.after) for row in own.changes.instructions] == [
        ("d", 40_000, None),
        ("d.clone", None, 39_000),
    ]


def test_loops_count_with_their_runs(tmp_path: Path) -> None:
    program, plan = text_of("loop.hlo.txt"), text_of("loop.plan.hlo.txt")
    names = set(re.findall(r"(?m)^ *(?:ROOT )?%([\w.\-]+) = ", program))
    slow, fast = (dict.fromkeys(names, cycles) for cycles in (90_000, 50_000))
    before = keep(tmp_path, program, program, "", with_cycles(program, slow))
    after = keep(tmp_path, program, plan, text_of("loop.plan.fastmem.txt"), with_cycles(plan, fast), ORDER.compiler_options())
    own = run_of(("default", DEFAULT, before), ("plan", ORDER, after))
    changes = own.changes.instructions
    assert {row.runs for row in changes} > {1}
    assert all(row.cycles == -40_000 * row.runs for row in changes if row.after and row.before)
    assert sum(row.cycles for row in changes) == own.tuning.trials[1].cycles - own.tuning.default.cycles


# --- layouts -------------------------------------------------------------------------------------------------------------


def test_layouts_are_played_with_the_cycles_of_their_own_modules(run: Run) -> None:
    comparison = read_comparison(run.tuning, run.folder)
    for trial in comparison.trials:
        timeline = trial.layout.timeline
        assert timeline.stall_ps == pytest.approx(comparison.target.cycles_ps(trial.record.stall_cycles), abs=1000)
        assert timeline.total_ps == pytest.approx(comparison.target.cycles_ps(trial.record.total), abs=10_000)


def test_everything_in_slow_memory_is_an_empty_layout(run: Run) -> None:
    own = part_of(run, 1, 0)
    before = read_comparison(own.tuning, own.folder).before
    assert not before.layout.boxes
    assert before.notes == ("everything in slow memory",)
    assert "everything in slow memory" in section(own.page(), "Notes")
    assert own.page().count("<figure>") == 2


# --- page ----------------------------------------------------------------------------------------------------------------


def test_page(run: Run, tmp_path: Path) -> None:
    save_tuning_report(tmp_path / "page.html", run.tuning, run.folder)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    default, best = run.tuning.default, run.tuning.trials[2]
    assert f"XLA's default: {default.total:,} cycles" in unescape(page)
    assert f"Best (plan first): {best.total:,} cycles, {run.tuning.gain:.2%} fewer" in unescape(page)
    assert "2 instructions gained 35,000 cycles over all runs, 1 lost 5,000" in section(page, "Instructions that gained")
    assert "reads d from fast" in section(page, "Instructions that gained")
    assert "writes d to fast" in section(page, "Instructions that gained")
    assert "0 → 2 of 2" in section(page, "Tensors that moved")
    assert "+64 KiB" in section(page, "Tensors that moved")
    assert "cross-program prefetch" in section(page, "Notes")
    assert "as the budget of compilations was used up, after " in page
    # Nothing is loaded from anywhere.
    assert not re.search(r"https?://|\bsrc=|<link", page)


def test_both_layouts_have_the_same_tensors_and_colours(run: Run) -> None:
    page = run.page()
    found = re.search(r'<script id="data"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    assert [len(plan) for plan in data["plans"]] == [7, 8]
    colours: dict[str, set[str]] = {}
    for tensor, colour in re.findall(r'<g data-t="(\d+)" fill="(#\w+)">', page):
        colours.setdefault(tensor, set()).add(colour)
    assert {data["tensors"][tensor][0] for tensor in colours} == {"w0", "w1", "a", "b", "c{0}", "d", "e"}
    assert all(len(each) == 1 for each in colours.values())


def test_the_same_tuning_gives_the_same_bytes(run: Run) -> None:
    assert run.page() == run.page()


def test_names_and_messages_are_text(run: Run) -> None:
    trials = [msgspec.structs.replace(trial, way=HOSTILE) for trial in run.tuning.trials]
    refused = TrialRecord(way=HOSTILE, first=1, last=0, error=HOSTILE)
    page = run.page(name=HOSTILE, notes=(HOSTILE,), trials=(*trials, refused), compiler_options={HOSTILE: HOSTILE})
    assert "alert(" in page
    assert "<script>alert" not in page


def test_options_can_be_copied_as_they_are(run: Run) -> None:
    options = {**run.tuning.compiler_options, CAPACITY_OPTION: "16384", "xla_some_switch": False}
    page = run.page(compiler_options=options)
    python, flags = (unescape(text) for text in re.findall(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL))
    assert ast.literal_eval(python.removeprefix("compiler_options = ")) == options
    assert f"--{CAPACITY_OPTION}=16384" in shlex.split(flags)
    assert "--xla_some_switch=false" in shlex.split(flags)
    assert "16384 KiB" in section(page, "Options to set")


def test_long_options_are_folded(run: Run) -> None:
    assert "<details open><summary>Python" in run.page()
    page = run.page(compiler_options={"xla_order": "x" * 5000})
    assert "<details><summary>Python" in page
    assert "5,000 characters" in section(page, "Options to set")
    assert "Linux takes no variable" not in page
    assert "Linux takes no variable" in run.page(compiler_options={"xla_order": "x" * (128 << 10)})


def test_a_default_that_nothing_beats_stands_alone(run: Run) -> None:
    own = part_of(run, 0, 1)
    page = own.page()
    assert "no setting was better" in page
    assert "None: XLA's default is the best" in section(page, "Options to set")
    assert "Your own and no others: XLA's default" in section(own.page(compiler_options={"xla_own": True}), "Options to set")
    assert page.count("<figure>") == 1
    assert "Instructions that gained" not in page
    assert "Tensors that moved" not in page


def test_results_of_another_run(run: Run, tmp_path: Path) -> None:
    trials = list(run.tuning.trials)
    trials[2] = msgspec.structs.replace(trials[2], cycles=1)
    other = msgspec.structs.replace(run.tuning, trials=tuple(trials))
    with pytest.raises(InputError, match=r"found a module of 250,000 cycles, expected 1 as in the tuning"):
        save_tuning_report(tmp_path / "out.svg", other, run.folder)
    with pytest.raises(InputError, match=r"record\.json"):
        save_tuning_report(tmp_path / "out.svg", run.tuning, tmp_path)
    assert not (tmp_path / "out.svg").exists()


# --- curve ---------------------------------------------------------------------------------------------------------------


def test_trials_off_the_scale_and_without_a_result(run: Run) -> None:
    refused = TrialRecord(way="explore", first=3, last=0, error="Unknown flag")
    plot = plot_html(trials_plot(msgspec.structs.replace(run.tuning, trials=(*run.tuning.trials, refused))), "Trials")
    # All in slow memory takes three times as long, which would flatten all else.
    assert plot.count('class="off-scale"') == 1
    assert plot.count('class="refused"') == 1
    assert plot.count('class="dot chosen"') == 1
    assert "4. explore\nno result: Unknown flag" in unescape(plot)


def test_a_single_trial(run: Run) -> None:
    alone = msgspec.structs.replace(run.tuning, trials=run.tuning.trials[:1], best=0)
    assert plot_html(trials_plot(alone), "Trials").count('class="dot chosen"') == 1


def test_shares_have_a_sign_and_enough_digits() -> None:
    shares = {0.0: "0%", -0.0342: "−3.42%", 0.5: "+50.00%", -0.00001234: "−0.001%"}
    assert {share: signed_share(share) for share in shares} == shares
