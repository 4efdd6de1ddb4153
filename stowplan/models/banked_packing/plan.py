"""The answer to a banked packing problem: a bank and an offset for every buffer. Plain data, no rules."""

from __future__ import annotations

from stowplan.models.banked_packing.problem import Bank, Buffer
from stowplan.models.document import Document

FORMAT = "stowplan.banked_packing.plan"
VERSION = 1


class Plan(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Banks and offsets; :func:`stowplan.models.banked_packing.verify.verify` says whether they are valid."""

    problem: str
    """Digest of the problem it is for."""
    objective: int
    """Bytes times uses times the cost of the bank, summed over the buffers."""
    banks: tuple[int, ...]
    """Number of the bank of each buffer, in the problem's order."""
    offsets: tuple[int, ...]
    """Bytes from the bottom of its bank."""
    buffers: tuple[Buffer, ...] = ()
    """The problem's buffers, for whoever applies or reads the plan; the problem decides."""
    memory: tuple[Bank, ...] = ()
    """The problem's banks, likewise."""
    name: str = ""
    """Name of the problem, for people; the digest decides."""
    target: str = ""
    """Always empty: the banks are the problem's."""
    format: str = FORMAT
    version: int = VERSION
