"""Settings of the tree search."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from stowplan.errors import UsageError

Method = Literal["puct", "gumbel"]
Span = Literal["tree", "siblings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig:
    """How a move is searched. The defaults are those of the papers of each method, and of Wang et al. 2023 (table 6).

    Raises :class:`~stowplan.errors.UsageError` for a setting out of its range.
    """

    method: Method = "puct"
    """``puct``: MuZero's search (Schrittwieser et al. 2020, appendix B). ``gumbel``: "Policy improvement by planning with
    Gumbel" (Danihelka et al. 2022), which improves the policy even with two or three simulations."""
    simulations: int = 400
    """Evaluations of the model for one move, besides that of the root."""
    forced_simulations: int = 1
    """Simulations where only one action is legal: nothing is to be chosen, and they make the value of the root better."""
    discount: float = 0.9999

    span: Span = "tree"
    """What the difference of two values is measured by: the range of all values in the tree (both papers), or of those at the
    node: its actions' and its own. Small rewards tell actions apart only relative to such a range."""
    min_span: float = 1e-3
    """That range is taken to be at least this, in units of values, lest noise decide where all actions are equal."""

    noise_alpha: float = 0.03
    """PUCT, exploring: parameter of the Dirichlet noise over the root's legal actions."""
    noise_fraction: float = 0.25
    """PUCT, exploring: share of the noise in the root's prior."""
    temperature: float = 1.0
    """PUCT, exploring: the action is drawn in proportion to visits^(1 / temperature); 0 for the most visited."""
    c_init: float = 1.25
    c_base: float = 19652.0
    """PUCT: the prior's weight is c_init + log((visits + c_base + 1) / c_base)."""

    max_considered: int = 16
    """Gumbel: actions at the root that are simulated at all, at most."""
    gumbel_scale: float = 1.0
    """Gumbel, exploring: factor of the random part at the root."""
    c_visit: float = 50.0
    c_scale: float = 0.1
    """Gumbel: sigma(q) = (c_visit + most visits of an action) * c_scale * q, with q in the range of ``span``."""

    def __post_init__(self) -> None:
        for name, choices in (("method", ("puct", "gumbel")), ("span", ("tree", "siblings"))):
            if getattr(self, name) not in choices:
                raise UsageError(f"search: {name} is {getattr(self, name)!r}, expected one of {', '.join(choices)}")
        for name, low, high in (
            ("simulations", 1, math.inf),
            ("forced_simulations", 0, math.inf),
            ("discount", 0, 1),
            ("noise_fraction", 0, 1),
            ("temperature", 0, math.inf),
            ("c_init", 0, math.inf),
            ("max_considered", 1, math.inf),
            ("gumbel_scale", 0, math.inf),
            ("c_visit", 0, math.inf),
            ("c_scale", 0, math.inf),
        ):
            if not low <= getattr(self, name) <= high:
                raise UsageError(f"search: {name} is {getattr(self, name)}, expected {low} to {high}")
        for name in ("min_span", "noise_alpha", "c_base"):
            if not getattr(self, name) > 0:
                raise UsageError(f"search: {name} is {getattr(self, name)}, expected more than 0")
