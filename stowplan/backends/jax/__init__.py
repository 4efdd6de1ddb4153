"""jax: training steps within so many bytes of a TPU's memory, by policies of ``jax.checkpoint``.

Importing it does not import jax. Each file knows only those above it in this list:

- ``policy``, ``graph``: what is saved; what that costs, and the plan
- ``program``: a traced loss, its parts and their values. ``losses``: losses within steps
- ``report``: what came of it
- ``training``: what is fitted. ``previews``: what the compiler says of it under a policy
- ``search``: which policies are tried and taken. ``check``: gradients under one
- ``entry``: what users call
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from stowplan.lazy import lazy_names, public_names

if TYPE_CHECKING:
    from stowplan.backends.jax.entry import Fitted as Fitted
    from stowplan.backends.jax.entry import Largest as Largest
    from stowplan.backends.jax.entry import fit as fit
    from stowplan.backends.jax.entry import fit_largest as fit_largest
    from stowplan.backends.jax.losses import marked as marked
    from stowplan.backends.jax.losses import with_policy as with_policy
    from stowplan.backends.jax.policy import Policy as Policy
    from stowplan.backends.jax.report import FitReport as FitReport

_PLACES = {
    "entry": ["Fitted", "Largest", "fit", "fit_largest"],
    "losses": ["marked", "with_policy"],
    "policy": ["Policy"],
    "report": ["FitReport"],
}

__all__ = [*chain.from_iterable(_PLACES.values())]

__getattr__ = lazy_names(__name__, _PLACES)
__dir__ = public_names(globals())
