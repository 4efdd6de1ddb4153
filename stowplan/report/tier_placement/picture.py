"""Pictures of memory maps with matplotlib, after figure 6 of the EGRL paper: tier transitions, and every tensor's tier.

Matplotlib is an optional package (extra ``viz``) and is imported when the first picture is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem
from stowplan.report.boxes import assign_colours, draw_boxes, finish_layout, name_boxes
from stowplan.report.figures import check_pair, plain, save_figure
from stowplan.report.tier_placement.maps import (
    What,
    check_fits,
    rows_of,
    tensor_name,
    tier_boxes,
    tier_colour,
    transitions,
    use_of_tiers,
)
from stowplan.report.units import byte_unit, format_bytes, shorten
from stowplan.result import format_ps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Where a layer has no weights.
EMPTY = "#f2f2f2"


def save_map_picture(problem: Problem, plans: Sequence[tuple[str, Plan]], path: str | Path) -> None:
    """Write a picture of one labelled map, or of two and the transitions from the second to the first.

    Above (for two that differ): for each tier of the second plan, where the first has what stood in it. Below: a band for each
    tensor of each plan, layers from left to right; then the bytes in the limited tiers over time. Where tiers are address
    spaces, these are drawn box by box for the first plan.

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
    for _, plan in plans:
        check_fits(problem, plan)
    limited = _limited(problem)
    has_offsets = bool(plans[0][1].output_offsets)
    heights = [
        *([2.3] if len(plans) == 2 else []),
        0.55 * 2 * len(plans) + 0.5,
        *([2.8 if has_offsets else 1.5] * bool(limited)),
    ]
    save_figure(path, (11, sum(heights) + 1.3), partial(_fill, problem, plans, limited, heights), layout="constrained")


def _fill(
    problem: Problem, plans: Sequence[tuple[str, Plan]], limited: list[int], heights: list[float], figure: Figure
) -> None:
    parts: list[Any] = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0].tolist()
    figure.suptitle(plain(shorten(f"{problem.name} on {problem.target}, {problem.cost_model}", 110)), fontsize=11)
    if len(plans) == 2:
        _draw_transitions(problem, plans, parts.pop(0).subplots(1, 3))
    draw_bands(problem, plans, parts.pop(0).subplots())
    if not limited:
        return
    axes = parts.pop(0).subplots(1, len(limited), squeeze=False)[0]
    if plans[0][1].output_offsets:
        _draw_addresses(problem, plans[0], limited, axes, figure)
    else:
        _draw_use(problem, plans, limited, axes)


def _limited(problem: Problem) -> list[int]:
    """Tiers that do not hold everything."""
    total = sum(layer.weight_bytes + layer.output_bytes for layer in problem.layers)
    return [number for number, tier in enumerate(problem.tiers) if tier.capacity < total]


def _draw_transitions(problem: Problem, plans: Sequence[tuple[str, Plan]], axes: Sequence[Axes]) -> None:
    (after_name, after), (before_name, before) = plans
    names = [tier.name for tier in problem.tiers]
    whats: tuple[What, ...] = ("weights", "outputs", "all")
    for ax, what, title in zip(axes, whats, ("weights", "outputs", "all tensors"), strict=True):
        draw_transition(ax, transitions(problem, before, after, what), names, str)
        ax.set_title(title, fontsize=9)
        ax.set_xlabel(f"in {after_name}")
    axes[0].set_ylabel(f"in {before_name}")


def draw_transition(ax: Axes, table: NDArray[np.int64], names: Sequence[str], show: Callable[[int], str]) -> None:
    """A transition matrix: parts of each row, and what they are parts of.

    Parameters
    ----------
    table
        [tiers before, tiers after] As :func:`~stowplan.report.tier_placement.maps.transitions` counts.
    names
        Of the tiers.
    show
        How an entry is written below its part.
    """
    total = table.sum(axis=1, keepdims=True)
    part = np.divide(table, total, out=np.zeros(table.shape), where=total > 0)
    ax.imshow(part, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for row in range(len(names)):
        for column in range(len(names)):
            text = f"{part[row, column]:.0%}\n{show(int(table[row, column]))}" if total[row, 0] else "–"
            ax.text(column, row, text, ha="center", va="center", color="white" if part[row, column] > 0.55 else "#222222")
    ax.set_xticks(range(len(names)), names)
    ax.set_yticks(range(len(names)), names)
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)


def draw_bands(problem: Problem, plans: Sequence[tuple[str, Plan]], ax: Axes) -> None:
    """Bands for the weights and for the outputs of each labelled plan: the tier of every tensor, layers from left to right."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    rows = rows_of(problem, plans)
    colours = [EMPTY, *(tier_colour(number) for number in range(len(problem.tiers)))]
    table = np.array([[0 if tier is None else tier + 1 for tier in places] for _, _, places in rows])
    chart = ListedColormap(colours)
    ax.imshow(table, cmap=chart, vmin=0, vmax=len(colours) - 1, aspect="auto", interpolation="nearest")
    ax.set_yticks(range(len(rows)), [plain(f"{shorten(label, 24)}: {what}") for label, what, _ in rows])
    ax.set_xlabel("layer")
    for row in range(1, len(rows)):
        ax.axhline(row - 0.5, color="white", linewidth=6 if row % 2 == 0 else 2)
    ax.tick_params(axis="y", length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    handles = [
        Patch(facecolor=tier_colour(number), label=f"{tier.name}, {format_bytes(tier.capacity)}")
        for number, tier in enumerate(problem.tiers)
    ]
    handles += [Patch(facecolor=EMPTY, edgecolor="#bbbbbb", label="no weights")] if (table == 0).any() else []
    latencies = ", ".join(f"{label} {format_ps(plan.objective_ps)}" for label, plan in plans)
    ax.set_title(plain(latencies), fontsize=9, loc="left")
    ax.legend(handles=handles, ncols=len(handles), loc="lower right", bbox_to_anchor=(1, 1), frameon=False, borderaxespad=0.2)


def _draw_addresses(
    problem: Problem, labelled: tuple[str, Plan], limited: list[int], axes: Sequence[Axes], figure: Figure
) -> None:
    """Offsets over layers in the limited tiers of one plan."""
    label, plan = labelled
    layouts = [tier_boxes(problem, plan, tier) for tier in limited]
    colours = assign_colours(layouts)
    units = [byte_unit(problem.tiers[tier].capacity) for tier in limited]
    for ax, tier, boxes, (unit, size) in zip(axes, limited, layouts, units, strict=True):
        ax.set_xlim(0, len(problem.layers))
        ax.set_ylim(0, problem.tiers[tier].capacity / size)
        ax.set_title(plain(f"{problem.tiers[tier].name}, {label}: offsets ({unit}), up to the capacity"), fontsize=9)
        ax.set_xlabel("layer")
        draw_boxes(ax, boxes, colours, up=size)
    finish_layout(figure)
    for ax, boxes, (_, size) in zip(axes, layouts, units, strict=True):
        name_boxes(ax, boxes, colours, lambda owner: tensor_name(problem, owner), up=size)


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
