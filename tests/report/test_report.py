"""Pictures, the HTML report and plans as text."""

from __future__ import annotations

import itertools
import json
import random
import re
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stowplan.errors import InputError, MissingDependencyError, UsageError
from stowplan.hardware.simulator import simulate
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import Piece, Problem, Step, Table, Tensor, Use
from stowplan.report import inline
from stowplan.report.boxes import Box, Boxes, assign_colours, choose_tags, name_boxes, place_tags
from stowplan.report.colours import PALETTE, ink_on
from stowplan.report.curves import convergence_plot
from stowplan.report.figures import draw_paper, save_picture
from stowplan.report.html import render_report, write_report
from stowplan.report.memory_mapping import analyse_steps, analyse_tensors, summarize_plan
from stowplan.report.memory_mapping_drawing import build_layout, picture, share_top
from stowplan.report.paper import lay_out
from stowplan.report.presenter import draw, presenter_for
from stowplan.report.scene import Dot, Picture, Rect
from stowplan.report.text import format_bytes, memory_ticks, nice_ticks, shorten
from stowplan.result import CandidateReport, HistoryEntry, Provenance, Result
from stowplan.units import BYTES, Pair, Unit
from tests.report.cases import packed_plan, training_step

HOSTILE = "<script>alert('1')</script>&\"$x_1$"


def result_for(problem: Problem, plan: Plan | None, **changes: object) -> Result:
    objective = None if plan is None else plan.objective
    bound = int(problem.all_fast_ps)
    result = Result(
        kind="memory_mapping",
        plan=plan,
        objective=objective,
        bound=bound,
        status="no_plan" if plan is None else "feasible",
        stop_reason="time_limit",
        verified=plan is not None,
        baseline_name="greedy",
        baseline=problem.all_slow_ps,
        baselines={"greedy": problem.all_slow_ps, "xla": problem.all_slow_ps - 1},
        history=(
            HistoryEntry(0.02, "greedy", problem.all_slow_ps, None),
            HistoryEntry(0.5, "milp", problem.all_slow_ps, bound - 1000),
            HistoryEntry(20.0, "cpsat", objective, bound),
        ),
        candidates=(
            CandidateReport("evolution", None, None, 1.0, "rejected", "overlap"),
            CandidateReport("greedy", problem.all_slow_ps, None, 0.02, "finished"),
            CandidateReport("cpsat", objective, bound, 20.0, "stopped"),
        ),
        provenance=Provenance("cpsat", 7, True, {"stowplan": "0"}, problem.name, problem.target, "roofline", problem.digest),
        seconds=20.1,
        warnings=("trip count of while.3 unknown: taken as 1",),
    )
    return msgspec.structs.replace(result, **changes)


def stalled_copy() -> tuple[Problem, Plan]:
    """Two steps of 10 ps; ``a`` is copied in (25 ps) over the first and read by the second, which waits 15 ps."""
    steps = tuple(
        Step(f"s{i}", "op", 1, (Use(t, False, 64),), (Piece(10, (0,), (0,)), Piece(0, (40,), (4,))))
        for i, t in ((0, 1), (1, 0))
    )
    problem = Problem(
        name="p",
        target="t",
        cost_model="c",
        capacity=256,
        steps=steps,
        tensors=(Tensor("a", 64, 25, 25, is_input=True), Tensor("b", 64, 25, 25, is_input=True)),
        max_preloads=1,
    )
    plan = Plan(
        problem=problem.digest,
        objective=35,
        residencies=(Residency(0, 0, 2, 64), Residency(1, 0, 1, 0, preloaded=True)),
        copies=(Copy(0, "in", 0, 1),),
        fast_uses=(0, 1),
    )
    assert simulate(problem, plan).total_ps == 35
    return problem, plan


# --- scene ---------------------------------------------------------------------------------------------------------------


def test_scene_on_the_axis_of_steps() -> None:
    scene = build_layout(*stalled_copy())
    assert scene.left.tolist() == [0, 0]
    assert scene.right.tolist() == [2, 1]
    assert scene.occupancy.tolist() == [128, 64]
    # The copy takes longer than step 0: it fills its window, and the rest is the stall.
    (bar,), (stall,) = scene.bars, scene.stalls
    assert (bar.left, bar.right) == (0, 1)
    assert (stall.boundary, stall.wait_ps, stall.left, stall.right) == (1, 15, 1, 1)


def test_plans_that_use_little_of_fast_memory_can_be_seen() -> None:
    problem, plan = stalled_copy()
    large = msgspec.structs.replace(problem, capacity=1 << 20)
    scene = build_layout(large, msgspec.structs.replace(plan, problem=large.digest))
    empty = build_layout(large, Plan(problem=large.digest, objective=0))
    # The highest box ends at 128 bytes; both axes are the same, with something in one of them or not.
    assert [each.top for each in share_top([scene, empty])] == [128, 128]
    assert [each.top for each in share_top([empty])] == [1 << 20]
    assert share_top([build_layout(problem, plan)])[0].top == problem.capacity
    result = result_for(large, scene.plan)
    assert "Only the first 128 B of 1 MiB are shown." in render_report(large, result)
    assert "are shown." not in render_report(problem, result_for(problem, plan))


def test_scene_on_the_axis_of_seconds() -> None:
    scene = build_layout(*stalled_copy(), "seconds")
    assert scene.end == 35
    assert scene.right.tolist() == [35, 10]
    assert (scene.bars[0].left, scene.bars[0].right) == (0, 25)
    assert (scene.stalls[0].left, scene.stalls[0].right) == (10, 25)


def test_copy_within_a_step_is_drawn_within_it() -> None:
    problem, plan = stalled_copy()
    tensors = (msgspec.structs.replace(problem.tensors[0], copy_in_ps=5), problem.tensors[1])
    problem = msgspec.structs.replace(problem, tensors=tensors)
    scene = build_layout(problem, msgspec.structs.replace(plan, problem=problem.digest))
    assert (scene.bars[0].left, scene.bars[0].right) == (0, 0.5)
    assert not scene.stalls


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 8), st.sampled_from(["steps", "seconds"]))
def test_scenes_of_packed_plans_hold_together(seed: int, layers: int, axis: str) -> None:
    rng = random.Random(seed)
    problem = training_step(layers, seed, capacity_mib=rng.choice([6, 12, 40]), bandwidth=rng.choice([50, 600]))
    plan = packed_plan(problem, lead=rng.randint(1, 3), longest=rng.choice([1, 4, 30]))
    scene = build_layout(problem, plan, axis)  # type: ignore[arg-type]
    assert (np.diff(scene.boundaries) >= 0).all()
    assert (scene.left <= scene.right).all()
    for step in range(problem.horizon):
        in_use = sum(problem.tensors[r.tensor].size for r in plan.residencies if r.start <= step < r.end)
        assert scene.occupancy[step] == in_use <= problem.capacity
    assert sum(stall.wait_ps for stall in scene.stalls) == scene.timeline.stall_ps
    for bar in scene.bars:
        copy = plan.copies[bar.transfer.copy]
        if axis == "steps":
            assert copy.start <= bar.left <= bar.right <= copy.end
        else:
            assert bar.right - bar.left == bar.transfer.end_ps - bar.transfer.begin_ps
    for direction in ("in", "out"):
        for lane in range(scene.lanes):
            row = sorted(
                (bar.left, bar.right) for bar in scene.bars if bar.transfer.direction == direction and bar.lane == lane
            )
            assert all(first[1] <= second[0] + 1e-9 for first, second in itertools.pairwise(row))
    assert scene.lanes <= problem.channels


def test_another_problems_plan_is_refused() -> None:
    problem, plan = stalled_copy()
    with pytest.raises(InputError, match="found a plan for problem"):
        build_layout(problem, msgspec.structs.replace(plan, problem="0" * 64))
    with pytest.raises(InputError, match=r"plan.copies\[0\]: found tensor 9"):
        build_layout(problem, msgspec.structs.replace(plan, copies=(Copy(9, "in", 0, 1),)))
    with pytest.raises(InputError, match="found use 2, expected one below 2"):
        summarize_plan(problem, msgspec.structs.replace(plan, fast_uses=(2,)))
    with pytest.raises(UsageError, match="time axis"):
        build_layout(problem, plan, "hours")  # type: ignore[arg-type]


# --- colours, units ------------------------------------------------------------------------------------------------------


def test_few_tensors_get_colours_of_their_own() -> None:
    problem = training_step(3)
    colours = assign_colours([build_layout(problem, packed_plan(problem)).boxes])
    assert 6 < len(colours) <= len(PALETTE)
    assert len(set(colours.values())) == len(colours)


def test_neighbours_differ_where_colours_repeat() -> None:
    problem = training_step(60, capacity_mib=60)
    plans = [packed_plan(problem, longest=4), packed_plan(problem, longest=20)]
    colours = assign_colours([build_layout(problem, plan).boxes for plan in plans])
    assert len(colours) > 3 * len(PALETTE)
    assert set(colours) == {residency.tensor for plan in plans for residency in plan.residencies}
    for plan in plans:
        for first in plan.residencies:
            for second in plan.residencies:
                stacked = first.offset + problem.tensors[first.tensor].size == second.offset
                if stacked and first.start == second.start and first.tensor != second.tensor:
                    assert colours[first.tensor] != colours[second.tensor]


def test_ink_is_read_on_every_colour() -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        return float(
            np.dot([c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts], [0.2126, 0.7152, 0.0722])
        )

    for colour in PALETTE:
        dark, light = sorted((luminance(colour), luminance(ink_on(colour))))
        assert (light + 0.05) / (dark + 0.05) >= 4.5


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (24 << 20, "24 MiB"), (3 << 30, "3 GiB")]
)
def test_sizes(count: int, text: str) -> None:
    assert format_bytes(count) == text


@given(st.floats(0, 1e15), st.floats(1e-6, 1e15), st.integers(2, 12))
def test_ticks_are_few_and_in_range(low: float, span: float, most: int) -> None:
    high = low + span
    ticks = nice_ticks(low, high, most)
    assert 1 <= len(ticks) <= most
    assert all(low - 1e-6 * high <= tick <= high * (1 + 1e-6) for tick in ticks)


def test_ticks_are_round() -> None:
    assert nice_ticks(0, 40) == [0, 10, 20, 30, 40]
    assert nice_ticks(0, 0) == [0]
    assert memory_ticks(24 << 20) == [0, 6, 12, 18, 24]
    assert shorten("fusion.1234", 9) == "fusi…1234"
    assert shorten("fusion", 6) == "fusion"


# --- analysis ------------------------------------------------------------------------------------------------------------


def test_savings_are_what_losing_one_tensor_costs() -> None:
    problem, plan = stalled_copy()
    rows = {row.tensor: row for row in analyse_tensors(problem, plan)}
    assert (rows[0].saving_ps, rows[0].fast_uses, rows[0].residencies, rows[0].copies) == (30, 1, 1, 1)
    assert (rows[1].saving_ps, rows[1].copies) == (30, 0)


def test_limits_of_steps() -> None:
    problem, plan = stalled_copy()
    table = Step("s2", "op", 3, (Use(0, False, 64),), table=Table((0,), (9, 7)))
    traffic = Step("s3", "op", 1, (Use(0, False, 64),), (Piece(1, (9,), (4,)),))
    problem = msgspec.structs.replace(problem, steps=(*problem.steps, table, traffic))
    rows = analyse_steps(problem, msgspec.structs.replace(plan, fast_uses=(0, 2, 3)))
    assert [(row.step, row.latency_ps, row.limit) for row in rows] == [
        (1, 40, "slow memory"),
        (2, 21, "its floor"),
        (0, 10, "compute"),
        (3, 5, "fast memory"),
    ]
    assert rows[1].all_slow_ps == 27


# --- pictures ------------------------------------------------------------------------------------------------------------


def text_in(path: Path) -> list[str]:
    """What is written in an SVG."""
    return [unescape(text) for text in re.findall(r"<text[^>]*>(.*?)</text>", path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("seconds", [False, True])
def test_drawing_shows_every_box_copy_and_stall(seconds: bool) -> None:
    problem = training_step()
    plan = packed_plan(problem)
    ((plot,),) = presenter_for(problem).picture(problem, [("greedy", plan)], seconds=seconds).rows
    layout, _, copies_in, copies_out, stalls = plot.panels
    (boxes, _) = layout.marks
    assert isinstance(boxes, Boxes)
    first = plan.residencies[0]
    assert [box.bottom for box in boxes.boxes] == [residency.offset for residency in plan.residencies]
    assert boxes.boxes[0].size == problem.tensors[first.tensor].size
    assert (layout.up.low, layout.up.high) == (0, 24 << 20)
    assert plot.heading.startswith("greedy: ")
    bars = [mark for panel in (copies_in, copies_out) for mark in panel.marks if isinstance(mark, Rect)]
    assert len(bars) == len(plan.copies)
    assert len(stalls.marks) == sum(wait > 0 for wait in simulate(problem, plan).step_wait_ps) > 0
    assert max(box.right for box in boxes.boxes) <= plot.across.high


def test_a_picture_can_be_drawn_into_axes_of_matplotlib() -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    problem = training_step()
    plan = packed_plan(problem)
    ax = Figure().subplots()
    paper = lay_out(picture(problem, [("greedy", plan)]))
    draw_paper(paper, ax)
    assert (ax.get_xlim(), ax.get_ylim()) == ((0, paper.width), (paper.height, 0))
    assert sum(len(each.get_paths()) for each in ax.collections) > len(plan.residencies)
    assert any(text.get_text().startswith("greedy: ") for text in ax.texts)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_pictures_are_the_same_twice(tmp_path: Path, suffix: str) -> None:
    if suffix == "png":
        pytest.importorskip("matplotlib")
    problem = msgspec.structs.replace(training_step(), name=HOSTILE)
    plans = [(HOSTILE, packed_plan(problem)), ("greedy", packed_plan(problem, longest=20))]
    for name in ("one", "two"):
        draw(problem, plans, tmp_path / f"{name}.{suffix}")
    first, second = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in ("one", "two"))
    assert first == second
    assert first.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
    if suffix == "svg":
        ElementTree.fromstring(first)
        assert any(HOSTILE in text for text in text_in(tmp_path / "one.svg"))


def test_pictures_of_empty_plans(tmp_path: Path) -> None:
    problem, _ = stalled_copy()
    empty = Plan(problem=problem.digest, objective=problem.all_slow_ps)
    draw(problem, [("all slow", empty)], tmp_path / "empty.svg", seconds=True)
    assert "no stalls" in text_in(tmp_path / "empty.svg")


def test_large_plans_are_drawn_in_little_time_and_space(tmp_path: Path) -> None:
    problem = training_step(850, capacity_mib=64)
    plan = packed_plan(problem, longest=4)
    draw(problem, [("plan", plan)], tmp_path / "plan.svg")
    assert (tmp_path / "plan.svg").stat().st_size < 130 * len(plan.residencies)


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    problem, plan = stalled_copy()
    with pytest.raises(UsageError, match=r"found picture format '.bmp', expected .png, .svg or .pdf"):
        draw(problem, [("p", plan)], tmp_path / "p.bmp")
    with pytest.raises(UsageError, match="found 0 plans"):
        draw(problem, [], tmp_path / "p.svg")


def test_pictures_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    problem, plan = stalled_copy()
    for suffix in ("png", "pdf"):
        with pytest.raises(MissingDependencyError, match=re.escape("need matplotlib (.svg does not): pip install '.[viz]'")):
            draw(problem, [("p", plan)], tmp_path / f"p.{suffix}")
    draw(problem, [("p", plan)], tmp_path / "p.svg")
    write_report(problem, result_for(problem, plan), tmp_path / "p.html")
    assert (tmp_path / "p.html").exists()


def test_reports_load_neither_matplotlib_nor_solvers() -> None:
    code = (
        "import sys, stowplan.report.html, stowplan.report.memory_mapping, stowplan.report.figures;"
        "print([name for name in ('matplotlib', 'torch', 'ortools', 'highspy') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def marks_of_copies(problem: Problem, plan: Plan) -> list[Dot]:
    ((plot,),) = picture(problem, [("plan", plan)]).rows
    return [mark for panel in plot.panels[2:4] for mark in panel.marks if isinstance(mark, Dot)]


def test_copies_without_a_window_are_marked() -> None:
    """On the axis of steps they have no width; a mark says that they are there."""
    problem, plan = stalled_copy()
    plan = msgspec.structs.replace(plan, copies=(Copy(0, "in", 1, 1),))
    (bar,) = build_layout(problem, plan).bars
    assert (bar.left, bar.right, bar.in_stall) == (1, 1, True)
    (mark,) = marks_of_copies(problem, plan)
    assert (mark.x, mark.y, mark.shape) == (1, 0.5, "up")
    assert not marks_of_copies(*stalled_copy())
    page = render_report(problem, result_for(problem, plan))
    assert '<g class="dot in"' in page
    assert "all of it while the program waits" in page


def test_large_boxes_have_names_and_thin_ones_numbers(tmp_path: Path) -> None:
    problem = training_step(16, capacity_mib=60)
    plan = packed_plan(problem, longest=12)
    assert len(plan.residencies) > 60
    draw(problem, [("plan", plan)], tmp_path / "plan.svg")
    texts = text_in(tmp_path / "plan.svg")
    listed = [text for text in texts if re.fullmatch(r"\d+  \S+, [\d.]+ [KM]iB", text)]
    assert "numbered boxes, the largest first" in texts
    assert listed
    # Every number of the list stands in the layout, too.
    assert {text.split()[0] for text in listed} <= set(texts)
    named = {text for text in texts if re.match(r"(activation|weights|update|gradient|images)", text)}
    assert len(named) > 5


def test_only_what_has_room_is_named() -> None:
    boxes = [Box(0, 0, 50, 0, 50), Box(1, 60, 65, 0, 90), Box(2, 70, 71, 0, 90), Box(3, 0, 50, 60, 1)]
    mark = Boxes(boxes, assign_colours([boxes]), lambda owner: (f"tensor.{owner}", 1))
    names = name_boxes(mark, 3.0, 2.5)
    assert [(name.box.owner, name.is_vertical) for name in names] == [(0, False), (1, True)]
    # The largest first.
    assert choose_tags([(boxes, {0, 1})]) == {2: 1, 3: 2}
    assert place_tags(boxes, {2: 1}, 3.0, 2.5) == {2: (70.5, 45)}


# --- report --------------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Checks that elements nest, and gathers what the tests ask for."""

    VOID = frozenset({"meta", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        (self.scripts if "script" in self.open else self.words).append(data)

    def count(self, tag: str, **attributes: str) -> int:
        return sum(name == tag and all(has.get(key) == value for key, value in attributes.items()) for name, has in self.tags)


@pytest.fixture(scope="module")
def compared() -> tuple[Problem, Plan, Plan]:
    problem = training_step()
    return problem, packed_plan(problem, longest=4), packed_plan(problem, lead=1, longest=20)


def test_report_says_what_was_found(compared: tuple[Problem, Plan, Plan]) -> None:
    problem, plan, other = compared
    result = result_for(problem, plan)
    provenance = msgspec.structs.replace(result.provenance, deterministic=False)
    result = msgspec.structs.replace(result, provenance=provenance).within(30.0, 1.2)
    page = Page(render_report(problem, result, compare=("xla", other)))
    text = " ".join(page.words)
    for expected in (
        f"{problem.name} on {problem.target}",
        f"{result.speedup:.3f}×",
        f"gap {result.gap:.2%}",
        f"{problem.normalised_return(plan.objective):.4f}",
        "stopped at the time limit of 30.0 s (1.2 s of it reading and start-up)",
        "verified",
        "trip count of while.3 unknown: taken as 1",
        "Cost model",
        "roofline",
        "rejected",
        problem.steps[analyse_steps(problem, plan)[0].step].name,
        problem.tensors[analyse_tensors(problem, plan)[0].tensor].name,
    ):
        assert expected in text
    assert "not verified" not in text
    details = json.loads(page.scripts[0])
    assert [len(rows) for rows in details["plans"]] == [len(plan.residencies), len(other.residencies)]
    boxes = [has for tag, has in page.tags if tag == "path" and "data-i" in has]
    assert len(boxes) == len(plan.residencies) + len(other.residencies)
    # One colour a tensor, in both plans.
    fills: dict[str | None, set[str | None]] = {}
    for tag, has in page.tags:
        if tag == "g" and "data-t" in has:
            fills.setdefault(has["data-t"], set()).add(has["fill"])
    assert all(len(colours) == 1 for colours in fills.values())


def test_boxes_stand_where_the_plan_says() -> None:
    problem, plan = stalled_copy()
    page = render_report(problem, result_for(problem, plan))
    # Tensor a: both steps, bytes 64 to 128 of 256; heights count from the top.
    wide, high = inline.WIDE, inline.HIGH
    assert f'<g data-t="0" fill="{PALETTE[0]}"><path d="M0 {high // 2}h{wide}v{high // 4}h-{wide}z"' in page
    assert "waits 15 ps before step 1" in page
    assert "64 B copied in in 25 ps" in page


def test_report_is_self_contained_and_accessible(compared: tuple[Problem, Plan, Plan]) -> None:
    problem, plan, other = compared
    text = render_report(problem, result_for(problem, plan), compare=("xla", other))
    page = Page(text)
    assert not {"img", "link", "iframe", "object", "image", "use"} & {tag for tag, _ in page.tags}
    assert not any({"src", "href", "xlink:href"} & has.keys() for _, has in page.tags)
    assert not re.search(r"https?:|url\(|@import", text)
    assert page.count("html", lang="en") == 1
    assert all(has.get("aria-label") for tag, has in page.tags if tag == "svg")
    assert page.count("table") == page.count("caption") > 2
    assert "prefers-color-scheme: dark" in text


def test_report_escapes_names(tmp_path: Path) -> None:
    problem, plan = stalled_copy()
    problem = msgspec.structs.replace(
        problem,
        name=HOSTILE,
        target=HOSTILE,
        tensors=tuple(msgspec.structs.replace(tensor, name=HOSTILE) for tensor in problem.tensors),
        steps=tuple(msgspec.structs.replace(step, name=HOSTILE, opcode=HOSTILE) for step in problem.steps),
    )
    plan = msgspec.structs.replace(plan, problem=problem.digest)
    result = result_for(
        problem, plan, warnings=(HOSTILE,), baselines={HOSTILE: 40}, baseline_name=HOSTILE, details={HOSTILE: HOSTILE}
    )
    candidates = (CandidateReport(HOSTILE, 35, None, 1.0, "finished", HOSTILE),)
    history = (HistoryEntry(1.0, HOSTILE, 35, 30),)
    page_text = render_report(
        problem, msgspec.structs.replace(result, candidates=candidates, history=history), compare=(HOSTILE, plan)
    )
    page = Page(page_text)
    assert page.count("script") == 2
    assert json.loads(page.scripts[0])["tensors"]["0"][0] == HOSTILE


def test_report_shows_how_unlike_near_values_are() -> None:
    problem, plan = stalled_copy()
    result = result_for(problem, plan, objective=28_350_000_002, bound=28_350_000_001, baselines={"greedy": 28_350_000_003})
    words = " ".join(Page(render_report(problem, result)).words)
    for expected in ("28.350000002 ms", "28.350000001 ms", "28.350000003 ms", "gap < 0.01%"):
        assert expected in words
    assert "gap 0.00%" not in words


def test_report_says_what_is_gained_over_a_baseline_that_was_named() -> None:
    problem, plan = stalled_copy()
    result = result_for(problem, plan, objective=50, baseline=80, baseline_name=HOSTILE)
    assert "better than" not in render_report(problem, result)
    named = msgspec.structs.replace(result.provenance, options={"baseline": HOSTILE})
    page = Page(render_report(problem, msgspec.structs.replace(result, provenance=named)))
    assert f"37.50 % better than {HOSTILE}" in " ".join(page.words)
    assert page.count("script") == 2


def test_report_without_a_plan_keeps_the_bound(tmp_path: Path) -> None:
    problem, _ = stalled_copy()
    page = Page(render_report(problem, result_for(problem, None)))
    text = " ".join(page.words)
    assert "no plan" in text
    assert "20 ps" in text
    assert page.count("figure") == 0


def test_report_on_another_kind_has_no_layout() -> None:
    problem, plan = stalled_copy()
    result = result_for(problem, plan, kind="packing", unit=BYTES, objective=1536)
    page = Page(render_report(object(), result))
    assert "1.5 KiB" in " ".join(page.words)
    assert page.count("figure") == 0


def test_odd_histories_are_drawn() -> None:
    problem, plan = stalled_copy()
    for history in (
        (),
        (HistoryEntry(0.0, "greedy", 35, None),),
        (HistoryEntry(0.0, "milp", None, 0),),
        (HistoryEntry(0.0, "a", 0, 0), HistoryEntry(1e-9, "b", 0, 0)),
        tuple(HistoryEntry(i / 100, "lns", 10**6 - i, i) for i in range(3000)),
    ):
        for seconds in (0.0, 30.0):
            page = render_report(problem, result_for(problem, plan, history=history, seconds=seconds))
            assert "nan" not in page.lower().split("convergence")[-1][:4000]
            dots = re.findall(r'<g class="dot incumbent"[^>]*>(.*?)</g>', page)
            assert sum(group.count("<path") for group in dots) <= 202


def test_large_reports_stay_small(tmp_path: Path) -> None:
    problem = training_step(850, capacity_mib=64)
    plan, other = packed_plan(problem, longest=4), packed_plan(problem, lead=1, longest=20)
    assert len(plan.residencies) > 5000
    write_report(problem, result_for(problem, plan), tmp_path / "one.html", compare=("xla", other))
    write_report(problem, result_for(problem, plan), tmp_path / "two.html", compare=("xla", other))
    assert (tmp_path / "one.html").stat().st_size < 3_000_000
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


def test_boxes_beyond_the_limit_are_drawn_without_details(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "MAX_DESCRIBED_BOXES", 10)
    problem = training_step()
    plan = packed_plan(problem)
    page = Page(render_report(problem, result_for(problem, plan)))
    paths = [has for tag, has in page.tags if tag == "path" and ("data-i" in has or "fill" in has)]
    assert sum("data-i" in has for has in paths) == 10
    assert sum((has["d"] or "").count("z") for has in paths) == len(plan.residencies)


# --- text ----------------------------------------------------------------------------------------------------------------


def test_plan_as_text() -> None:
    problem, plan = stalled_copy()
    lines = summarize_plan(problem, plan).splitlines()
    assert lines[0] == "p on t: 35 ps simulated"
    assert "  stalls        15 ps before 1 step" in lines
    assert "  fast memory   128 B of 256 B at the peak" in lines
    at = lines.index("2 residencies, by start")
    assert lines[at + 2].split() == ["[0,", "1)", "0x0", "64", "B", "b", "preloaded"]
    assert lines[at + 3].split() == ["[0,", "2)", "0x40", "64", "B", "a", "copied", "in"]
    assert lines[-1].split() == ["in", "[0,", "1)", "64", "B", "0", "ps", "25", "ps", "-", "a"]


def test_text_counts_what_it_leaves_out(compared: tuple[Problem, Plan, Plan]) -> None:
    problem, plan, _ = compared
    text = summarize_plan(problem, plan, top=5)
    assert f"… and {len(plan.residencies) - 5} more" in text
    assert f"… and {len(plan.copies) - 5} more" in text
    whole = summarize_plan(problem, plan, top=None)
    assert "more" not in whole
    assert len(whole.splitlines()) > len(plan.residencies) + len(plan.copies)


def test_text_shows_a_claim_that_is_not_so() -> None:
    problem, plan = stalled_copy()
    assert "claimed       34 ps" in summarize_plan(problem, msgspec.structs.replace(plan, objective=34))


def test_names_do_not_steer_the_terminal() -> None:
    problem, plan = stalled_copy()
    tensors = tuple(msgspec.structs.replace(tensor, name="\x1b[2J") for tensor in problem.tensors)
    problem = msgspec.structs.replace(problem, tensors=tensors)
    assert "\x1b" not in summarize_plan(problem, msgspec.structs.replace(plan, problem=problem.digest))


def drawn_curve(history: list[HistoryEntry], unit: Unit, baselines: dict[str, int], baseline: int | None) -> str:
    plot = convergence_plot(history, 1.0, unit, baselines, baseline)
    assert plot is not None
    return inline.plot_html(plot, "Convergence")


def test_a_curve_can_be_a_picture_too(tmp_path: Path) -> None:
    plot = convergence_plot(
        [HistoryEntry(0.1, "greedy", 9, 3), HistoryEntry(2.0, "milp", 7, 7)], 3.0, Unit("points"), {"greedy": 9}, 9
    )
    assert plot is not None
    save_picture(Picture("search", [[plot]]), tmp_path / "curve.svg")
    assert {"search", "best objective", "greedy", "seconds"} <= {*text_in(tmp_path / "curve.svg")}


def test_the_curve_of_two_numbers_is_of_the_second_where_the_first_stays() -> None:
    """Latencies of one initiation interval are told apart, as 3.00002 and 3.000019 were not."""
    unit = Unit("clocks", Pair("II", 1_000_000, "latency"))
    history = [HistoryEntry(0.1, "list", 3_000_020, 2_000_018), HistoryEntry(0.5, "cpsat", 3_000_019, 3_000_019)]
    text = drawn_curve(history, unit, {"list": 3_000_020, "other": 4_000_020}, 4_000_020)
    assert "objective (latency at II 3)" in text
    ticks = re.findall(r'class="tick"[^>]*>([\d.,]+)<', text)
    assert {"19", "20"} <= {*ticks}
    assert "II 3, latency 19" in text
    unlike = drawn_curve([*history, HistoryEntry(0.7, "cpsat", 2_000_030, None)], unit, {}, None)
    assert "objective (II)" in unlike
