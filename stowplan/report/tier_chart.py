"""Pictures of memory maps with matplotlib, after figure 6 of the EGRL paper: tier transitions, and every tensor's tier.

Matplotlib is an optional package (extra ``viz``) and is imported when the first picture is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stowplan import files
from stowplan.errors import MissingDependencyError, UsageError
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem
from stowplan.report.tiers import What, check_fits, rows_of, tier_colour, transitions, use_of_tiers
from stowplan.report.units import format_bytes, shorten
from stowplan.result import format_ps

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Where a layer has no weights.
EMPTY = "#f2f2f2"


def save_map_picture(problem: Problem, plans: Sequence[tuple[str, Plan]], path: str | Path, *, dpi: int = 130) -> None:
    """Write a picture of one labelled map, or of two and the transitions from the second to the first.

    Above (for two): for each tier of the second plan, where the first has what stood in it. Below: a band for each tensor of
    each plan, layers from left to right; then the bytes in the limited tiers over time.

    Raises
    ------
    MissingDependencyError
        Without matplotlib.
    UsageError
        For another number of plans or another suffix than .png, .svg or .pdf.
    InputError
        If a plan is for another problem, or the file cannot be written.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"found picture format {suffix or 'none'!r}, expected .png, .svg or .pdf")
    if not 1 <= len(plans) <= 2:
        raise UsageError(f"found {len(plans)} plans, expected one or two")
    for _, plan in plans:
        check_fits(problem, plan)
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError("pictures need matplotlib: pip install 'stowplan[viz]'") from error
    limited = _limited(problem)
    with matplotlib.rc_context({"svg.hashsalt": "stowplan", "pdf.fonttype": 42, "font.size": 9}):
        matrices = 3 if len(plans) == 2 else 0
        heights = [*([2.3] if matrices else []), 0.55 * 2 * len(plans) + 0.5, *([1.5] * bool(limited))]
        figure = Figure(figsize=(11, sum(heights) + 1.3), layout="constrained")
        parts: list[Any] = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0].tolist()
        if matrices:
            _draw_transitions(problem, plans, parts.pop(0).subplots(1, 3))
        _draw_bands(problem, plans, parts.pop(0).subplots())
        if limited:
            _draw_use(problem, plans, limited, parts.pop(0).subplots(1, len(limited), squeeze=False)[0])
        figure.suptitle(shorten(f"{problem.name} on {problem.target}, {problem.cost_model}", 110), fontsize=11)
        stream = io.BytesIO()
        undated: dict[str, Any] = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}[suffix]
        figure.savefig(stream, format=suffix[1:], dpi=dpi, metadata=undated)
    files.write_atomic(path, stream.getvalue())


def _limited(problem: Problem) -> list[int]:
    """Tiers that do not hold everything."""
    total = sum(layer.weight_bytes + layer.output_bytes for layer in problem.layers)
    return [number for number, tier in enumerate(problem.tiers) if tier.capacity < total]


def _draw_transitions(problem: Problem, plans: Sequence[tuple[str, Plan]], axes: Sequence[Axes]) -> None:
    (after_name, after), (before_name, before) = plans
    names = [tier.name for tier in problem.tiers]
    whats: tuple[What, ...] = ("weights", "outputs", "all")
    for ax, what, title in zip(axes, whats, ("weights", "outputs", "all tensors"), strict=True):
        table = transitions(problem, before, after, what)
        total = table.sum(axis=1, keepdims=True)
        part = np.divide(table, total, out=np.zeros(table.shape), where=total > 0)
        ax.imshow(part, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        for row in range(len(names)):
            for column in range(len(names)):
                text = f"{part[row, column]:.0%}\n{table[row, column]}" if total[row, 0] else "–"
                ax.text(column, row, text, ha="center", va="center", color="white" if part[row, column] > 0.55 else "#222222")
        ax.set_xticks(range(len(names)), names)
        ax.set_yticks(range(len(names)), names)
        ax.set_title(title, fontsize=9)
        ax.set_xlabel(f"in {after_name}")
        ax.tick_params(length=0)
        for spine in ax.spines.values():
            spine.set_visible(False)
    axes[0].set_ylabel(f"in {before_name}")


def _draw_bands(problem: Problem, plans: Sequence[tuple[str, Plan]], ax: Axes) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    rows = rows_of(problem, plans)
    colours = [EMPTY, *(tier_colour(number) for number in range(len(problem.tiers)))]
    table = np.array([[0 if tier is None else tier + 1 for tier in places] for _, _, places in rows])
    chart = ListedColormap(colours)
    ax.imshow(table, cmap=chart, vmin=0, vmax=len(colours) - 1, aspect="auto", interpolation="nearest")
    ax.set_yticks(range(len(rows)), [f"{label}: {what}" for label, what, _ in rows])
    ax.set_xlabel("layer")
    for row in range(1, len(rows)):
        ax.axhline(row - 0.5, color="white", linewidth=6 if row % 2 == 0 else 2)
    ax.tick_params(axis="y", length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    handles = [Patch(facecolor=tier_colour(number), label=tier.name) for number, tier in enumerate(problem.tiers)]
    latencies = ", ".join(f"{label} {format_ps(plan.objective_ps)}" for label, plan in plans)
    ax.set_title(latencies, fontsize=9, loc="left")
    ax.legend(handles=handles, ncols=len(handles), loc="lower right", bbox_to_anchor=(1, 1), frameon=False, borderaxespad=0.2)


def _draw_use(problem: Problem, plans: Sequence[tuple[str, Plan]], limited: list[int], axes: Sequence[Axes]) -> None:
    used = [(label, use_of_tiers(problem, plan)) for label, plan in plans]
    for ax, tier in zip(axes, limited, strict=True):
        capacity = problem.tiers[tier].capacity
        for (label, table), style in zip(used, ("-", ":"), strict=False):
            values = np.append(table[tier], table[tier][-1]) / capacity
            ax.step(np.arange(len(values)), values, where="post", color=tier_colour(tier), linestyle=style, label=label)
        ax.axhline(1, color="#333333", linewidth=0.8)
        ax.set_ylim(0, 1.08)
        ax.set_xlim(0, len(problem.layers))
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        ax.set_title(f"{problem.tiers[tier].name}: part of {format_bytes(capacity)} in use", fontsize=9)
        ax.set_xlabel("layer")
        if len(used) > 1:
            ax.legend(frameon=False, fontsize=8, loc="lower right")
