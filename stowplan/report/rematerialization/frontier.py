"""A picture of peak against added cost."""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.models.rematerialization.problem import Problem
from stowplan.portfolio.rematerialization.frontier import Point
from stowplan.report import scene
from stowplan.report.text import byte_unit

_HIGH = 260.0


def picture(problem: Problem, points: Sequence[Point]) -> scene.Picture:
    """Added cost of the plans, and what is proven, over the limits in bytes."""
    known = [point for point in points if point.added_cost is not None]
    most = max([1, *(point.limit for point in points)])
    cost = max([1, *(point.added_cost or 0 for point in known)])
    across = scene.byte_axis(most, f"limit ({byte_unit(most)[0]})")
    marks: list[scene.Mark] = []
    legend = []
    for name, style, rows in (
        ("added cost", scene.RULE, [(point.limit, point.added_cost or 0) for point in known]),
        ("bound", scene.DASHED, [(point.limit, point.bound or 0) for point in known]),
    ):
        if rows:
            # A limit's plan is good for all up to the next.
            edges = [*(limit for limit, _ in rows), most]
            marks.append(scene.Line(scene.steps(edges, [value for _, value in rows]), style))
            legend.append(scene.Key(name, style, "line"))
    up = scene.number_axis(0, cost, "added cost")
    panel = scene.Panel(up, marks, _HIGH, "Added cost over the limit on the peak")
    name = problem.name or "graph"
    return scene.Picture(f"{name}: {len(problem.ops):,} operators", [[scene.Plot(across, [panel], legend=legend)]], 560)
