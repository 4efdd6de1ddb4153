"""Pictures of operator orders with matplotlib: live bytes over the order, another plan's as a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stowplan.models.operator_order.plan import Plan
from stowplan.models.operator_order.problem import Problem
from stowplan.report.figures import FAINT, INK, check_pair, plain, save_figure
from stowplan.report.operator_order.profile import build_profile
from stowplan.report.units import byte_unit, format_bytes, shorten

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_order_picture(problem: Problem, plans: Sequence[tuple[str, Plan]], path: str | Path) -> None:
    """Write a picture of one labelled plan, or of one beside another.

    Raises
    ------
    MissingDependencyError
        Without matplotlib.
    UsageError
        For another number of plans or another suffix than .png, .svg or .pdf.
    InputError
        If a plan is for another problem, or the file cannot be written.
    """
    check_pair(path, plans)
    profiles = [(label, build_profile(problem, plan)) for label, plan in plans]
    unit, size = byte_unit(max(1, *(profile.peak for _, profile in profiles)))

    def fill(figure: Figure) -> None:
        ax = figure.subplots()
        steps = np.arange(len(profiles[0][1].live) + 1)
        for number, (label, profile) in enumerate(profiles):
            name = plain(
                shorten(f"{label}: peak {format_bytes(profile.peak, 6)}, arena {format_bytes(profile.plan.arena, 6)}", 60)
            )
            if number == 0:
                ax.stairs(profile.live / size, steps, fill=True, color="#9aa7b5", linewidth=0, label=name)
            else:
                ax.stairs(profile.live / size, steps, color=INK, linewidth=1, label=name)
        ax.set_axisbelow(True)
        ax.grid(axis="y", color=FAINT, linewidth=0.6)
        ax.spines[["top", "right"]].set_visible(False)
        ax.set_xlim(0, max(1, len(steps) - 1))
        ax.set_ylim(bottom=0)
        ax.set_xlabel("operator")
        ax.set_ylabel(f"live ({unit})")
        ax.set_title(plain(shorten(f"{problem.name or 'graph'}: {len(problem.ops):,} operators", 90)), fontsize=10, loc="left")
        ax.legend(frameon=False, fontsize=8)

    save_figure(path, (9.0, 4.2), fill, layout="constrained")
