"""The answer to a tier-placement problem: a tier, and maybe an offset, for every tensor. Plain data, no rules."""

from __future__ import annotations

from stowplan.models.document import Document

FORMAT = "stowplan.tier_placement.plan"
VERSION = 1


class Plan(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A memory map; :func:`stowplan.models.tier_placement.verify.verify` says whether it is valid.

    All tuples have an entry for each layer, in the problem's order. What is said of weights of 0 bytes is of no consequence;
    it is 0 by custom.
    """

    problem: str
    """Digest of the problem it is for."""
    objective_ps: int
    """Latency of the network."""
    weight_tiers: tuple[int, ...]
    """Number of the tier of each layer's weights."""
    output_tiers: tuple[int, ...]
    """Number of the tier of each layer's output activation."""
    weight_offsets: tuple[int, ...] = ()
    """Bytes from the start of the tier; empty where tiers are no address spaces."""
    output_offsets: tuple[int, ...] = ()
    name: str = ""
    """Name of the network, for people; the digest decides."""
    target: str = ""
    tiers: tuple[str, ...] = ()
    """Names of the tiers, for whoever applies or reads the plan; the numbers decide."""
    layers: tuple[str, ...] = ()
    """Names of the layers, likewise."""
    format: str = FORMAT
    version: int = VERSION
