"""A certificate: what is claimed of a problem, and a proof of it that :mod:`stowplan.certificates.checker` can check."""

from __future__ import annotations

from typing import Any

from stowplan import files
from stowplan.certificates import checker
from stowplan.document import Document


class Certificate(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A claim and its proof; see docs/reference/certificates.md."""

    kind: str
    problem: str
    """Digest of the problem in the checker's canonical form."""
    bound: int | None
    """No plan has a smaller objective (in the kind's unit); None: there is no plan."""
    proof: dict[str, Any]
    format: str = checker.FORMAT
    version: int = checker.VERSION

    @property
    def form(self) -> str:
        """Of the proof: ``load``, ``cut``, ``recurrence``, ``resource``, ``prices``, or ``trusted``, which proves nothing."""
        return str(self.proof.get("form", ""))

    @property
    def is_proof(self) -> bool:
        """Whether it shows anything."""
        return self.form != "trusted"

    def check(self, problem: Document) -> checker.Verdict:
        """Check it for a problem.

        Raises
        ------
        MalformedError
            It is no certificate for such a problem.
        UnprovenError
            It is for another problem, or does not show what it claims.
        """
        return checker.check(files.encode(problem), files.encode(self))
