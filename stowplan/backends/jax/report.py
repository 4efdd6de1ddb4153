"""The report about fitting a training step into a memory limit: every policy that was tried, its figures, and the best one.

A policy of ``jax.checkpoint`` says which values of the forward pass are saved for the backward pass. The *peak* is the largest
number of bytes that the compiled program needs at once. A *preview* is a compilation that ends once XLA has assigned memory,
and reports the peak. *Offloaded* values are sent to the host's memory instead of being saved on the device. The *roofline
model* predicts the time of an operator from its floating-point operations and its bytes.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from stowplan.backends.jax.policy import Policy
from stowplan.document import Document
from stowplan.errors import InputError, brief
from stowplan.tables import text_table

#: Values of the fields ``format`` and ``version`` of reports.
FORMAT = "stowplan.jax.fit"
VERSION = 1

#: Bytes of a MiB.
_MIB = 1 << 20

#: Why a search ended; :attr:`FitReport.stop_reason` explains the values.
StopReason = Literal["finished", "no_gain", "memory", "time_limit", "cancelled"]
#: The words of the summary for each reason.
_STOPPED: dict[StopReason, str] = {
    "finished": "finished",
    "no_gain": "stopped, as a further preview or compile would take longer than its gain is worth,",
    "memory": "stopped, as this machine has not the free memory that a preview takes,",
    "time_limit": "stopped at the time limit",
    "cancelled": "stopped by the user",
}


class Candidate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A policy with its figures."""

    policy: Policy
    """The policy."""
    saved_bytes: int
    """Predicted bytes that are saved for the backward pass; offloaded bytes are not included."""
    recomputed_seconds: float
    """Time of recomputation in one step, by the roofline model of the target."""
    predicted_bytes: int = 0
    """The peak in bytes that was predicted before the preview; 0 if there is no prediction."""
    hbm_bytes: int = 0
    """The peak in bytes that the compiler reports, including arguments and results; 0 if there is none, because there was no
    preview or the compiler refused."""
    cycles: int = 0
    """Estimated cycles of one training step, from a full compilation; 0 if there was none. The cycles of copies are computed
    from their bytes, all other cycles are XLA's estimates, and the time of transfers to the host is added."""
    recomputed_flops: int = 0
    """Floating-point operations of recomputed matrix products."""
    host_bytes: int = 0
    """Bytes that are offloaded to the host, in one direction."""
    host_seconds: float = 0.0
    """Seconds to send ``host_bytes`` to the host and back if no other instructions run at that time; ``cycles`` include it."""
    error: str = ""
    """The compiler's message if it refused."""


class FitReport(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A report about the search for a policy.

    The *folder* is the one in which results of earlier previews and compilations are stored. The constructor raises InputError
    if ``best`` is no index of a candidate.
    """

    name: str
    """Name of the function."""
    target: str
    """Name of the target machine."""
    limit: int
    """Memory limit in bytes."""
    candidates: tuple[Candidate, ...]
    """The policies that were previewed."""
    best: int
    """Index of the best policy in ``candidates``."""
    lines: tuple[str, ...] = ()
    """A line for each value that the best policy saves: its name and shape, and the operator, file and line that compute it."""
    own_names: tuple[str, ...] = ()
    """Names that the program itself gives to values."""
    frontier: tuple[tuple[int, float, int], ...] = ()
    """Plans of a greedy heuristic, each of which saves more values than the one before. The numbers of a plan are its
    predicted peak in bytes, and the seconds and the floating-point operations of recomputation in one training step."""
    previews: int = 0
    """How many previews were made rather than found in the folder."""
    compiles: int = 0
    """How many full compilations were made rather than found in the folder."""
    seconds: float = 0.0
    """Seconds of the search."""
    processor_seconds: float = 0.0
    """CPU time of previews and compilations, in seconds."""
    preview_seconds: float = 0.0
    """Seconds of the longest preview."""
    stop_reason: StopReason = "finished"
    """Why the search ended. ``no_gain``: further previews or compilations would have taken longer than their gain is worth.
    ``memory``: this machine had too little free memory for another preview. ``time_limit`` and ``cancelled``: the caller's
    limit or event ended it. ``finished``: nothing was left to try."""
    notes: tuple[str, ...] = ()
    """Remarks for users."""
    format: str = FORMAT
    version: int = VERSION

    def __post_init__(self) -> None:
        if not 0 <= self.best < len(self.candidates):
            raise InputError(f"found best candidate {self.best} of {len(self.candidates)}, expected one of them")

    @property
    def chosen(self) -> Candidate:
        """The best candidate."""
        return self.candidates[self.best]

    @property
    def policy_text(self) -> str:
        """Python code to paste: the policy for ``jax.checkpoint``, with comments that say where saved values are computed."""
        policy = self.chosen.policy
        lines = [*(f"# {line}" for line in self.lines), f"policy = {policy.text}"]
        if policy.is_of_own_names:
            lines += [f"# MaxText: {line}" for line in policy.maxtext(self.own_names)]
        if policy.kind == "planned":
            lines += [
                "# or, with these names given by stowplan:",
                "from stowplan.backends.jax import Policy, with_policy",
                f"{self.name} = with_policy({self.name}, {policy!r})",
            ]
        return "\n".join(lines)

    def summary(self) -> str:
        """Returns text for people: a few lines about the search, a line for each candidate, and the notes."""
        work = f"{self.previews} previews, {self.compiles} compiles, {self.processor_seconds:.1f} processor seconds"
        lines = [
            f"{self.name} on {self.target}: {mib(self.chosen.hbm_bytes)} of {mib(self.limit)} by {self.chosen.policy.kind}",
            f"  {_STOPPED[self.stop_reason]} after {self.seconds:.1f} s ({work})",
        ]
        rows = []
        for number, candidate in enumerate(self.candidates):
            sent = f"{mib(candidate.host_bytes)}, {1e3 * candidate.host_seconds:.3f} ms" if candidate.host_bytes else ""
            rows.append(
                (
                    "*" if number == self.best else "",
                    candidate.policy.kind,
                    mib(candidate.saved_bytes),
                    f"{1e3 * candidate.recomputed_seconds:.3f} ms",
                    mib(candidate.predicted_bytes),
                    mib(candidate.hbm_bytes) if candidate.hbm_bytes else "-",
                    f"{candidate.cycles:,}" if candidate.cycles else "-",
                    brief(candidate.error, 100) if candidate.error else sent,
                )
            )
        head = ("", "policy", "saves:r", "recomputes:r", "predicted:r", "peak:r", "cycles:r", "to the host, or error")
        lines += text_table(head, rows)
        lines.extend(f"  note       {note}" for note in self.notes)
        return "\n".join(lines)


def mib(size: int) -> str:
    """Returns a number of bytes as text in MiB."""
    return f"{size / _MIB:,.0f} MiB"
