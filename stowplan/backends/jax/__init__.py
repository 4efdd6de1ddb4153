"""Back end for jax: fits a training step into the memory of a TPU by a policy of ``jax.checkpoint``.

A policy says which values of the forward pass are saved for the backward pass. All other values that the backward pass reads
are computed again. The *peak* is the largest number of bytes that the compiled program needs at once. A *preview* is a
compilation that ends once XLA has assigned memory, and reports the peak. A program is divided into *parts*, such as scans or
repeated layers, each of which gets the policy.

Importing this package does not import jax. A file imports only files that come before it in this list:

- ``policy``, ``graph``: policies; the values that a policy saves and recomputes, and plans of the values to save
- ``program``: a traced loss, its parts and their values. ``losses``: losses that are marked inside of a training step
- ``report``: the report about all policies that were tried
- ``training``: the training step that is fitted. ``previews``: bytes and cycles of a training step with a policy
- ``search``: the search for a policy. ``check``: compares gradients with and without a policy
- ``entry``: the functions that users call
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
