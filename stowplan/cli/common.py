"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Input = Annotated[Path, typer.Argument(help="Compiled program (scheduled HLO text, plain or gzip) or problem file.")]
TargetOption = Annotated[
    str | None, typer.Option("--target", help="Target by name, or the path of a target file; 'stowplan targets' lists them.")
]
Capacity = Annotated[int | None, typer.Option("--capacity", help="Fast memory in bytes, in place of the target's.")]
CostModel = Annotated[str | None, typer.Option("--cost-model", help="Cost model, in place of the target's: roofline or table.")]
StallMode = Annotated[str | None, typer.Option("--stalls", help="May the program wait for copies: allowed or forbidden.")]
Cycles = Annotated[
    tuple[Path, Path] | None,
    typer.Option(
        "--cycles",
        metavar="SLOW PLANNED",
        help="For the table cost model: the module compiled without and with a fast-memory plan, cycles in both.",
    ),
]
