"""The logger ``stowplan``: the progress of runs, for whoever attaches a handler. Without one nothing is written.

What a run must not leave unsaid is in the warnings of its result; the logger repeats none of that as a warning.
"""

from __future__ import annotations

import logging

LOGGER = logging.getLogger("stowplan")
"""INFO: runs, plans, bounds and failures. DEBUG: candidates that start and end, plans that are no better."""

LOGGER.addHandler(logging.NullHandler())
