"""The answer to an operator-order problem: an order of the operators, and an offset for every tensor. Plain data, no rules."""

from __future__ import annotations

from stowplan.models.document import Document

FORMAT = "stowplan.operator_order.plan"
VERSION = 1


class Plan(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Order and offsets; :func:`stowplan.models.operator_order.verify.verify` says whether they are valid."""

    problem: str
    """Digest of the problem it is for."""
    objective: int
    """Peak in bytes: the most that is live while an operator runs."""
    arena: int
    """Bytes of memory that the offsets need: the highest end of a tensor."""
    order: tuple[int, ...]
    """Numbers of the operators, first to last."""
    offsets: tuple[int, ...]
    """Bytes, one for each tensor in the problem's order; a view's is its base's."""
    name: str = ""
    """Name of the problem, for people; the digest decides."""
    target: str = ""
    """What other inputs are read for, so that they mean this kind: ``order``."""
    format: str = FORMAT
    version: int = VERSION
