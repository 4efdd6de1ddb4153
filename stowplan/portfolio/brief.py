"""The candidate ``brief`` of small problems: what a second is enough for, in a thread of the calling process.

It comes before all others, and where it proves its plan they are not started: a process takes longer to start than the work
takes. Nothing that is compiled runs in it (:mod:`stowplan.interpreted`), and what it does not settle is left to the others as
if it had not been there. Deterministic runs go without it.
"""

from __future__ import annotations

from stowplan.portfolio.context import Context
from stowplan.portfolio.kind import Candidate

#: It takes no longer than so many seconds, and so much of the limit.
_SECONDS, _SHARE = 1.5, 0.25


def brief(function: str) -> Candidate:
    """The candidate, by the ``module:function`` of what it does."""
    return Candidate("brief", "exact", function, share=_SHARE, interpret=True, in_thread=True, is_brief=True)


def brief_seconds(context: Context) -> float:
    """Seconds that it may take."""
    return min(_SECONDS, context.remaining())


def asks_for_heuristics(context: Context) -> bool:
    """Whether heuristics are among what is asked for, so that it makes the kind's baseline."""
    return "heuristic" in context.options.candidates
