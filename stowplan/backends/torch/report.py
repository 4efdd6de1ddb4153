"""Reports about the steps of a training loop, and the text of the error for a step that needs more than the memory limit.

A *graph* is a part of a model that ``torch.compile`` has compiled, with its backward pass. The *plan of least peak* of a graph
needs the least memory; the first steps run with it, while the bytes outside of the graphs are measured. Afterwards graphs get
*fitted* plans, which use the bytes that are left.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import torch

from stowplan.backends.fallback import MemoryLimitError
from stowplan.backends.torch.planning import GraphReport
from stowplan.backends.torch.uses import State

if TYPE_CHECKING:
    from stowplan.backends.torch.scopes import Scopes

#: A suggested limit is the measured peak times this factor, because a new plan may differ from the measured one.
SPARE = 1.01


class StepsReport(msgspec.Struct, kw_only=True):
    """A report about the steps so far.

    A step is everything that runs inside of ``with memory.step():``. Without this statement, a step begins when a compiled
    graph is called, and ends when a graph is called for the first time after the backward pass. Successive calls without
    autograd, before or between such steps, are one step together.
    """

    limit: int
    """The memory limit, in bytes."""
    count: int = 0
    """How many steps have begun."""
    checked: int = 0
    """In how many of these steps live bytes were counted."""
    by: str = "storages"
    """How bytes were counted: ``storages`` adds up the live storages that operators read or create; ``allocator`` takes the
    peak that CUDA's allocator reports."""
    largest: int = 0
    """The largest peak of all checked steps in bytes, including parameters, gradients, optimizer states and other models."""
    outside: int = 0
    """Bytes that were live when the last checked step began."""
    warnings: list[str] = []
    """One line for each warning about memory that could not be checked or attributed to a step."""


class TrainingReport(msgspec.Struct, kw_only=True):
    """A report about a training loop so far; ``str(report)`` is a text of one line for the steps and one for each graph."""

    steps: StepsReport
    """The measured peaks."""
    graphs: list[GraphReport]
    """A report for each plan that was made, in the order in which the plans were made."""
    least: int | None
    """The smallest limit, in bytes, within which the steps so far would have run; None before a step has ended."""

    def __str__(self) -> str:
        steps = self.steps
        lines = [
            f"{steps.count} steps, {steps.checked} of them checked by {steps.by}: the largest took {steps.largest:,} bytes "
            f"of {steps.limit:,}, all that was live included"
        ]
        for graph in self.graphs:
            seconds = "" if graph.added_seconds is None else f", {graph.added_seconds:.3g} s"
            unknown = "; no bound was computed" if graph.bound is None else ""
            lines.append(
                f"graph of {graph.operators} operators: {graph.source}, peak {graph.peak:,} bytes with inputs, gradients and "
                f"what was measured beside it, {graph.added_share:.1%} of its work added{seconds}{unknown}"
            )
        return "\n".join(lines)


def refusal(scopes: Scopes, peak: int) -> str:
    """Returns one line that says why a step needs more bytes than the limit, with advice for the user.

    Parameters
    ----------
    scopes
        The training steps; the current step needs more than the limit.
    peak
        The largest number of bytes that were live at once in the step.
    """
    text = f"a step took {peak} bytes, and the limit is {scopes.limit}: "
    reports = scopes.planner.planned()
    planned, saved = (sum(getattr(report, name) for report in reports) for name in ("peak", "saved"))
    variant, *_, waiting = scopes.phase or (None, [])
    is_fitted = any(graph.fitted is not None for graph in scopes.fitting.graphs)
    # The message names the first of these causes that holds:
    # - there is no graph
    # - no graph runs or waits for its backward pass
    # - the user said how many bytes live outside of the graphs, so that nothing was measured
    # - the loop keeps more than it did when it was measured
    # - even the plans of least peak need too much
    if not scopes.fitting.graphs:
        return text + "torch.compile made no graph of the model, so that nothing was planned, and the model runs in eager mode"
    if variant is None and not waiting:
        place = "in a step without gradients" if scopes.state is State.EVALUATION else "between the graphs"
        text += f"the peak is {place}, where no plan lowers it: "
        return text + "take a smaller batch, keep fewer results, or pass a larger memory"
    if reports and not scopes.settings.is_measured:
        text += f"the plans of the graphs need {planned} bytes, and {saved} between the two passes: "
        return text + f"pass outside={peak - planned}, at most {peak - saved}, or compute the loss in the model"
    if is_fitted:
        margin = peak - scopes.limit + scopes.fitting.margin_bytes
        return text + f"more bytes were live outside of the graphs than in earlier steps: pass margin={margin}"
    least = scopes.fitting.least()
    if least is None:
        text += "the plans of least peak need too much, and the step had not ended: "
        return text + "TrainingMemory.least(step) measures the smallest limit that is enough"
    text += "even the plans of least peak need too much: "
    return text + f"pass memory={max(least, math.ceil(SPARE * peak))}, or take a smaller batch"


@contextlib.contextmanager
def naming_out_of_memory(scopes: Scopes) -> Iterator[None]:
    """A context manager that replaces torch's out-of-memory error by a MemoryLimitError, which says how many bytes are live.

    The message gives the limit and the live bytes of ``scopes``, the training steps.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        text = f"the device has no memory left with {scopes.meter.live} bytes live, and the limit is {scopes.limit}"
        line = str(error).partition("\n")[0]
        raise MemoryLimitError(f"{text} ({line})", scopes.limit, scopes.meter.peak, 0) from error
