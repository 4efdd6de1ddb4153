"""Adds a certificate to a result: a proof of its bound that does not rest on trusting solvers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stowplan.log import LOGGER
from stowplan.result import Result

if TYPE_CHECKING:
    from stowplan.kernel.state import RunState

#: Part of the time limit that is set aside for a certificate, and the minimum of this time in seconds. If the search ends
#: early, the certificate may take the part MAX_SHARE of the time limit at most.
SHARE, MIN_SECONDS, MAX_SHARE = 0.05, 0.02, 0.2


def seconds_for(time_limit: float) -> float:
    """Seconds that are set aside for the certificate."""
    return max(MIN_SECONDS, SHARE * time_limit)


def seconds_after(time_limit: float, left: float) -> float:
    """Seconds for the certificate of a run that ended ``left`` seconds before the end of its search time. The time that was set
    aside is included."""
    reserved = seconds_for(time_limit)
    return max(reserved, min(reserved + left, MAX_SHARE * time_limit))


def certified(result: Result, problem: object, state: RunState) -> Result:
    """Returns the result with a certificate. If an error occurs, it returns the result with a warning."""
    from stowplan.certificates.maker import certify

    source = max(state.bounds, key=lambda name: state.bounds[name], default="")
    trusted = {
        "solver": source,
        "versions": result.provenance.versions,
        "tolerance": "what solvers in floating point may be wrong by was taken off the bound",
    }
    try:
        certificate = certify(
            problem,  # type: ignore[arg-type]
            bound=result.bound,
            infeasible=result.status == "infeasible",
            plan=result.plan,
            evidence=state.evidence,
            seconds=seconds_after(state.options.time_limit, state.deadline.remaining),
            should_stop=state.deadline.cancelled.is_set,
            trusted=trusted,
        )
    except Exception as error:
        LOGGER.info("no certificate: %s: %s", type(error).__name__, error)
        return msgspec.structs.replace(
            result, warnings=(*result.warnings, f"no certificate was made: {type(error).__name__}: {error}")
        )
    return msgspec.structs.replace(result, certificate=certificate, seconds=round(state.deadline.elapsed, 3))
