"""Pictures of bank mappings with matplotlib: bytes moved beside other plans, and what the scratchpad holds over time.

Matplotlib is an optional package (extra ``viz``) and is imported when the first picture is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stowplan import files
from stowplan.errors import MissingDependencyError, UsageError
from stowplan.models.bank_mapping.plan import Plan
from stowplan.models.bank_mapping.problem import Problem
from stowplan.report.banks import bytes_on_chip, check_fits, moved
from stowplan.report.tiers import TIER_COLOURS
from stowplan.report.units import byte_unit, shorten

_OFF_CHIP, _COPIES, _TENSORS = TIER_COLOURS[:3]


def save_mapping_picture(problem: Problem, plans: Sequence[tuple[str, Plan]], path: str | Path, *, dpi: int = 130) -> None:
    """Write a picture of labelled plans: above a bar of bytes moved for each, below the scratchpad over time of the first.

    Raises
    ------
    MissingDependencyError
        Without matplotlib.
    UsageError
        For no plan or another suffix than .png, .svg or .pdf.
    InputError
        If a plan is for another problem, or the file cannot be written.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"found picture format {suffix or 'none'!r}, expected .png, .svg or .pdf")
    if not plans:
        raise UsageError("found no plan, expected at least one")
    for _, plan in plans:
        check_fits(problem, plan)
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError("pictures need matplotlib: pip install 'stowplan[viz]'") from error
    with matplotlib.rc_context({"svg.hashsalt": "stowplan", "pdf.fonttype": 42, "font.size": 9}):
        heights = (0.35 * len(plans) + 0.9, 2.6)
        figure = Figure(figsize=(11, sum(heights) + 0.5), layout="constrained")
        bars, space = figure.subplots(2, 1, height_ratios=heights)
        _draw_totals(problem, plans, bars)
        _draw_space(problem, plans[0][1], space)
        figure.suptitle(shorten(f"{problem.name} on {problem.target}, {problem.banks} banks", 110), fontsize=11)
        stream = io.BytesIO()
        undated: dict[str, Any] = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}[suffix]
        figure.savefig(stream, format=suffix[1:], dpi=dpi, metadata=undated)
    files.write_atomic(path, stream.getvalue())


def _draw_totals(problem: Problem, plans: Sequence[tuple[str, Plan]], axes: Any) -> None:
    totals = np.array([moved(problem, plan) for _, plan in plans])
    unit, size = byte_unit(int(totals.sum(axis=1).max()))
    places = np.arange(len(plans))
    axes.barh(places, totals[:, 1] / size, color=_OFF_CHIP, label="moved off chip")
    axes.barh(places, totals[:, 0] / size, left=totals[:, 1] / size, color=_COPIES, label="copied between banks")
    axes.set_yticks(places, [shorten(label, 20) for label, _ in plans])
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _draw_space(problem: Problem, plan: Plan, axes: Any) -> None:
    used = bytes_on_chip(problem, plan)
    unit, size = byte_unit(problem.capacity)
    steps = np.arange(len(problem.operators))
    layers = used / size
    axes.stackplot(steps, layers, step="post", colors=(_TENSORS, _COPIES), labels=("tensors on chip", "their copies"))
    axes.axhline(problem.capacity / size, color="black", linewidth=0.8, linestyle="--", label="capacity")
    axes.set_xlim(0, max(1, len(steps) - 1))
    axes.set_ylim(0, None)
    axes.set_xlabel("operator")
    axes.set_ylabel(unit)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
