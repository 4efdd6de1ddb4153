"""The network in torch, to train it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from stowplan.learned_guidance.memory_mapping.guide.guide import NEVER, Graph, Numpy


class Torch(Numpy):
    """By torch."""

    def relu(self, x: Any) -> Any:
        """Of any shape."""
        return torch.relu(x)

    def sigmoid(self, x: Any) -> Any:
        """Of any shape."""
        return torch.sigmoid(x)

    def softplus(self, x: Any) -> Any:
        """Of any shape."""
        return functional.softplus(x, threshold=30.0)

    def log1p(self, x: Any) -> Any:
        """Of any shape."""
        return torch.log1p(x)

    def normalised(self, x: Any) -> Any:
        """Rows over the root of their mean square."""
        return x * torch.rsqrt((x * x).mean(dim=1, keepdim=True) + 1e-3)

    def joined(self, parts: list[Any]) -> Any:
        """Side by side."""
        return torch.cat(parts, dim=1)

    def sums(self, values: Any, index: Any, size: int) -> Any:
        """Sums of the rows of each index; shape ``[size, columns]``."""
        return values.new_zeros((size, values.shape[1])).index_add(0, index, values)

    def cumulated(self, values: Any) -> Any:
        """Sums of the rows before each, in double precision; one row more."""
        # Along the last dimension: along the first, a GPU adds up one row after the other.
        return functional.pad(values.double().t().contiguous().cumsum(1), (1, 0)).t()

    def single(self, values: Any) -> Any:
        """In single precision."""
        return values.float()

    def product(self, rows: Any, weight: Any) -> Any:
        return rows @ weight

    def by_rows(self, function: Callable[[slice], Any], total: int) -> Any:
        """A function of rows, of all at once."""
        return function(slice(total))


def scanned(fast: Any, keep: Any, graph: Graph) -> tuple[Any, Any]:
    """The marginals of :mod:`~stowplan.learned_guidance.memory_mapping.guide.guide`, for machines where steps are dear.

    In as many steps as the logarithm of the longest chain.

    Products of the 2 x 2 matrices of ever longer pieces of the chains, by doubling (Hillis and Steele 1986).
    """
    place, left = graph.place, graph.left
    impossible = 2 * NEVER
    glued, both = graph.glued, functional.softplus(keep)
    inner = torch.where(glued, keep, both)
    apart = torch.where(glued, impossible, 0.0).to(fast)
    following = fast[graph.after]
    # From this access to the next one: rows by the state here, columns by the state there.
    link = torch.stack([torch.zeros_like(fast), following + apart, apart, following + inner], dim=1).view(-1, 2, 2)
    start = torch.stack([torch.zeros_like(fast), fast], dim=1)
    into = torch.where(place[:, None, None] > 0, link[graph.before], start[:, None, :])
    most = int(place.max()) if len(place) else 0
    number = torch.arange(len(place), device=place.device)
    span, onward = 1, link
    while span <= most:
        before, after = (number - span).clamp(min=0), (number + span).clamp(max=len(number) - 1)
        into = torch.where((place >= span)[:, None, None], _product(into[before], into), into)
        onward = torch.where((left > span)[:, None, None], _product(onward, onward[after]), onward)
        span *= 2
    ahead = into[:, 0, 1] - into[:, 0, 0]
    rest = torch.logsumexp(onward, dim=2)
    behind = torch.where(left > 0, rest[:, 1] - rest[:, 0], 0.0)
    served = torch.sigmoid(ahead + behind)
    after = following + behind[graph.after]
    total = functional.softplus(ahead) + functional.softplus(
        after + functional.softplus(ahead + both) - functional.softplus(ahead)
    )
    kept = torch.exp(ahead + after + keep - total)
    return served, torch.where(glued, served, kept) * (keep > NEVER)


def _product(left: Any, right: Any) -> Any:
    """Of matrices of logarithms, of shape ``[..., 2, 2]``."""
    return torch.logsumexp(left[:, :, :, None] + right[:, None, :, :], dim=2)


def merged(graphs: Sequence[Graph], device: str) -> Graph:
    """Several programs as one graph of tensors."""
    counts = [len(each.step) for each in graphs]
    steps = [len(each.per_step) for each in graphs]
    access_at = np.cumsum([0, *counts[:-1]])
    step_at = np.cumsum([0, *steps[:-1]])
    columns: dict[str, Any] = {}
    for name in Graph._fields[:-1]:
        parts = [getattr(each, name) for each in graphs]
        if name in ("before", "after"):
            parts = [part + at for part, at in zip(parts, access_at, strict=True)]
        elif name in ("step", "begun", "end"):
            parts = [part + at for part, at in zip(parts, step_at, strict=True)]
        columns[name] = torch.as_tensor(np.concatenate(parts), device=device)
    # What is taken one position after the other, is here taken by :func:`scanned`.
    return Graph(**columns, positions=[])
