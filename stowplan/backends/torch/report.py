"""What is said of the steps of a training loop: how many were checked, the largest, and, in an error, what would do."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING

import msgspec
import torch

from stowplan.backends.fallback import MemoryLimitError
from stowplan.backends.torch.planning import GraphReport

if TYPE_CHECKING:
    from stowplan.backends.torch.scopes import Scopes

#: What a suggested limit has beyond what was measured: plans that are made anew may differ by that.
SPARE = 1.01


class State(Enum):
    """Where a step is."""

    IDLE = "no scope is open"
    UNCOMPILED = "torch.compile began to compile something, and no graph came of it yet"
    EVALUATION = "a scope is open, and no graph was called with gradients"
    FORWARD = "a graph was called with gradients, and no backward pass ran since"
    BACKWARD = "a backward pass of a graph began"
    UPDATING = "an optimizer steps"


class StepsReport(msgspec.Struct, kw_only=True):
    """What was seen of the steps so far. A step is a scope: from a first call of a graph to the next, or as its user said."""

    limit: int
    """Bytes."""
    count: int = 0
    """How many steps began."""
    checked: int = 0
    """In how many of them what is live was counted."""
    by: str = "storages"
    """What counted: ``storages`` for the live storages that a dispatch mode sees, ``allocator`` for CUDA's own peak."""
    largest: int = 0
    """The most bytes of any step that was checked, with all that was live: parameters, gradients, optimizers, other models."""
    outside: int = 0
    """Of the last step that was checked, bytes that were live when it began."""
    warnings: list[str] = []
    """What could not be checked."""


class TrainingReport(msgspec.Struct, kw_only=True):
    """What came of a training loop so far."""

    steps: StepsReport
    graphs: list[GraphReport]
    """Each plan that was made, in their order."""
    least: int | None
    """The smallest limit that the steps so far would have run within; None before a step has ended."""

    def __str__(self) -> str:
        steps = self.steps
        lines = [
            f"{steps.count} steps, {steps.checked} of them checked by {steps.by}: the largest took {steps.largest:,} bytes "
            f"of {steps.limit:,}, all that was live included"
        ]
        for graph in self.graphs:
            seconds = "" if graph.added_seconds is None else f", {graph.added_seconds:.3g} s"
            lines.append(
                f"graph of {graph.operators} operators: {graph.source}, peak {graph.peak:,} bytes with inputs, gradients and "
                f"what was measured beside it, {graph.added_share:.1%} of its work added{seconds}"
            )
        return "\n".join(lines)


def refusal(scopes: Scopes, peak: int) -> str:
    """Why a step is above the limit, and what would do, in one line."""
    text = f"a step took {peak} bytes, and the limit is {scopes.limit}: "
    graphs = scopes.planner.planned()
    planned, saved = (sum(getattr(report, name) for report in graphs) for name in ("peak", "saved"))
    variant, *_, waiting = scopes.phase or (None, [])
    is_fitted = any(part.fitted is not None for part in scopes.fitting.parts)
    if not scopes.fitting.parts:
        return text + "torch.compile made no graph of the model, so that nothing was planned: it runs as eager"
    if variant is None and not waiting:
        doing = "of a step without gradients" if scopes.state is State.EVALUATION else "of what runs between the graphs"
        return text + f"no plan lowers that {doing}: take a smaller batch, keep fewer results, or say a larger memory"
    if graphs and not scopes.settings.is_measured:
        text += f"graphs are planned to take {planned}, and are beside a loss with {saved}: "
        return text + f"say outside={peak - planned}, at most {peak - saved}, or compute the loss in the model"
    if is_fitted:
        margin = peak - scopes.limit + scopes.fitting.free
        return text + f"more was live outside of the graphs than in the steps before: say margin={margin}"
    least = scopes.fitting.least()
    if least is None:
        text += "with plans of least peak, and it had not ended: "
        return text + "TrainingMemory.least(step) measures the smallest limit that runs"
    return text + f"with plans of least peak: say memory={max(least, math.ceil(SPARE * peak))}, or take a smaller batch"


@contextlib.contextmanager
def naming_out_of_memory(scopes: Scopes) -> Iterator[None]:
    """A device without memory is a MemoryLimitError with the numbers."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        text = f"the device has no memory left with {scopes.meter.live} bytes live, and the limit is {scopes.limit}"
        line = str(error).partition("\n")[0]
        raise MemoryLimitError(f"{text} ({line})", scopes.limit, scopes.meter.peak, 0) from error
