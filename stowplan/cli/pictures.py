"""What the commands do with pictures and reports, whatever the kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stowplan.cli.output import note
from stowplan.result import Result


def check_picture(problem: Any, png: Path | None) -> None:
    """Raise now, not after the time limit, where a picture of a plan for this problem could not be written.

    Raises
    ------
    UsageError, MissingDependencyError
        Plans of this kind are not drawn, there is no such format, or it needs matplotlib, which is missing.
    """
    if png is not None:
        from stowplan.report.presenter import check_picture

        check_picture(problem, png)


def write_pictures(problem: Any, result: Result, plans: dict[str, Any], report: Path | None, png: Path | None) -> None:
    """Report and picture of a result, beside the first of ``plans``, else beside what its kind is usually compared with."""
    other = next(iter(plans.items()), None)
    if report is not None:
        from stowplan.report.html import write_report

        write_report(problem, result, report, compare=other)
    if png is None:
        return
    if result.plan is None:
        note(f"{png}: not drawn: there is no plan")
        return
    from stowplan.report.presenter import draw, presenter_for

    others = [other] if other is not None else presenter_for(problem).references(problem)
    draw(problem, [(result.provenance.candidate, result.plan), *others], png)
