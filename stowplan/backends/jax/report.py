"""What came of fitting: every policy that was tried, what the compiler said of it, and the one that was taken."""

from __future__ import annotations

from typing import Literal

import msgspec

from stowplan.backends.jax.policy import Policy
from stowplan.document import Document
from stowplan.errors import InputError, brief
from stowplan.tables import text_table

FORMAT = "stowplan.jax.fit"
VERSION = 1

_MIB = 1 << 20

#: Why a search ended, and what is said of it.
StopReason = Literal["finished", "no_gain", "memory", "time_limit", "cancelled"]
_STOPPED: dict[StopReason, str] = {
    "finished": "finished",
    "no_gain": "stopped, as a further preview or compile would take longer than its gain is worth,",
    "memory": "stopped, as this machine has not the free memory that a preview takes,",
    "time_limit": "stopped at the time limit",
    "cancelled": "stopped by the user",
}


class Candidate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A policy, and what is known of it."""

    policy: Policy
    saved_bytes: int
    """What its parts save, as the plan counts it; what is offloaded is not among it."""
    recomputed_seconds: float
    """Of what its parts make again, by the roofline of the target."""
    predicted_bytes: int = 0
    """Peak expected of it, from that of making everything again; 0 where nothing was expected."""
    hbm_bytes: int = 0
    """Peak as the compiler says, arguments and results among it; 0 where it was not asked."""
    cycles: int = 0
    """Cycles of a full compile, scored with care, and of the host's link; 0 where there was none."""
    recomputed_flops: int = 0
    """Floating-point operations of the matrix products that are made again."""
    host_bytes: int = 0
    """What it offloads to the host, one way."""
    host_seconds: float = 0.0
    """Of that, to the host and back over its link, beside nothing else. Cycles have it in them."""
    error: str = ""
    """The compiler's message where it refused."""


class FitReport(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What came of it."""

    name: str
    target: str
    limit: int
    """Bytes."""
    candidates: tuple[Candidate, ...]
    best: int
    """Position of the one that was taken."""
    lines: tuple[str, ...] = ()
    """Where each value that it saves is made: name, shape, operator, file and line."""
    own_names: tuple[str, ...] = ()
    """Names that the program has by itself."""
    frontier: tuple[tuple[int, float, int], ...] = ()
    """Of greedy plans: peak that is expected; seconds and floating-point operations that are made again."""
    previews: int = 0
    """Those that were made, not found."""
    compiles: int = 0
    seconds: float = 0.0
    processor_seconds: float = 0.0
    """Of previews and compiles."""
    preview_seconds: float = 0.0
    """What the longest preview took."""
    stop_reason: StopReason = "finished"
    """``no_gain``: previews or compiles were left out, as they would have taken longer than their gain is worth; ``memory``:
    this machine had too little free memory for another; ``time_limit``; ``cancelled``; else ``finished``."""
    notes: tuple[str, ...] = ()
    format: str = FORMAT
    version: int = VERSION

    def __post_init__(self) -> None:
        if not 0 <= self.best < len(self.candidates):
            raise InputError(f"found best candidate {self.best} of {len(self.candidates)}, expected one of them")

    @property
    def chosen(self) -> Candidate:
        """The candidate that was taken."""
        return self.candidates[self.best]

    @property
    def policy_text(self) -> str:
        """Lines to paste: where what is saved is made, and the policy for ``jax.checkpoint``; a plan with its names."""
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
        """A few lines for people, and one for each candidate."""
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
        head = ("", "policy", "saves:r", "makes again:r", "predicted:r", "peak:r", "cycles:r", "to the host, or error")
        lines += text_table(head, rows)
        lines.extend(f"  note       {note}" for note in self.notes)
        return "\n".join(lines)


def mib(size: int) -> str:
    """Bytes for people."""
    return f"{size / _MIB:,.0f} MiB"
