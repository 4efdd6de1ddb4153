"""The part of the HTML report that is about operator order: live bytes over the order, and the operators at the peak."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from stowplan.models.operator_order.problem import Problem
from stowplan.report.operator_order.profile import Profile
from stowplan.report.page import Overview, Section, table
from stowplan.report.plots import HIGH, WIDE, axis_labels, flip, plot, svg, time_labels
from stowplan.report.units import byte_unit, format_bytes, format_tick, nice_ticks

#: Rows of the table of tensors.
TOP = 40


def overview(problem: Problem) -> Overview:
    """What is to be ordered."""
    total = sum(tensor.size for tensor in problem.tensors if tensor.alias_of is None)
    views = sum(tensor.alias_of is not None for tensor in problem.tensors)
    places = sum(len(op.in_place) for op in problem.ops)
    facts = [
        ("Operators", f"{len(problem.ops):,}"),
        ("Tensors", f"{len(problem.tensors):,}, {format_bytes(total)} in all"),
        ("Inputs", "free after their last reader" if problem.free_inputs else "there to the end"),
    ]
    facts += [("Views", f"{views:,}")] if views else []
    facts += [("Results that may take an operand's place", f"{places:,}")] if places else []
    return Overview(facts=facts)


def live_bytes(profiles: Sequence[tuple[str, Profile]], bound: int | None) -> Section:
    """Live bytes of the plan over its order, those of other plans beside them as lines, and the bound."""
    label, first = profiles[0]
    top = max(1, *(profile.peak for _, profile in profiles))
    unit, size = byte_unit(top)
    steps = max(1, len(first.live))
    ticks = nice_ticks(0, top / size)
    drawn = "".join(f'<path class="grid" d="M0 {flip(tick * size / top)}h{WIDE}"/>' for tick in ticks)
    drawn += f'<path class="usage" d="M0 {HIGH}{_steps(first, top)}H{WIDE}V{HIGH}z"/>'
    named = []
    for name, profile in profiles[1:]:
        begin = flip(int(profile.live[0]) / top) if len(profile.live) else HIGH
        drawn += f'<path class="rule" d="M0 {begin}{_steps(profile, top)}"/>'
        named.append(name)
    if bound is not None:
        drawn += f'<path class="rule dash" d="M0 {flip(bound / top)}h{WIDE}"/>'
    spoken = f"Live bytes over the order of {steps} operators"
    labels = [
        axis_labels("h-layout", ((tick * size / top, format_tick(tick)) for tick in ticks), f"live ({unit})"),
        '<div class="h-ticks"></div>',
    ]
    major, minor = ([(tick / steps, format_tick(tick)) for tick in nice_ticks(0, steps, most)] for most in (6, 40))
    panels = [f'<div class="h-layout frame">{svg(drawn, spoken)}</div>', time_labels(major, "operator", minor)]
    peaks = ", ".join(f"{escape(name)} {format_bytes(profile.peak, 6)}" for name, profile in profiles)
    lines = f" The line is {escape(' and '.join(named))}." if named else ""
    dashed = "" if bound is None else f" Dashed: the proven bound, {format_bytes(bound, 6)}."
    return Section(
        "Live bytes over the order",
        f"<p>Operators run from left to right; the area is what is live while each runs under {escape(label)}.{lines}{dashed} "
        f"Peaks: {peaks}.</p>\n{plot(labels, panels, 'Live bytes over the order')}",
    )


def _steps(profile: Profile, top: int) -> str:
    """A path of steps, one for each operator; equal neighbours are one."""
    scale = WIDE / max(1, len(profile.live))
    parts: list[str] = []
    before = None
    for at, live in enumerate(profile.live.tolist()):
        if live != before:
            parts.append(f"H{round(at * scale)}V{flip(live / top)}")
            before = live
    return "".join(parts) + f"H{WIDE}"


def at_the_peak(profile: Profile) -> Section:
    """The tensors that are live at the first moment of the peak."""
    moment = int(profile.live.argmax()) if len(profile.live) else 0
    live = [
        (buffer, offset)
        for buffer, offset in zip(profile.lives.packing.buffers, profile.lives.offsets(profile.plan).offsets, strict=True)
        if buffer.lower <= moment < buffer.upper and buffer.size
    ]
    live.sort(key=lambda each: (-each[0].size, each[0].id))
    rows = [
        (buffer.id, f"{buffer.size:,}", f"{offset:,}", f"[{buffer.lower:,}, {buffer.upper:,})") for buffer, offset in live[:TOP]
    ]
    name = profile.problem.ops[profile.plan.order[moment]].id if profile.plan.order else ""
    caption = f"{len(rows):,} of {len(live):,} tensors that are live while {name} runs, step {moment:,}: the peak"
    return Section("At the peak", table(caption, ("Tensor:n", "Bytes:r", "Offset:r", "Steps:r"), rows), follows_search=True)
