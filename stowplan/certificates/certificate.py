"""A certificate: a claim about a problem, and a proof of it that :mod:`stowplan.certificates.checker` can check."""

from __future__ import annotations

from typing import Any

from stowplan import files
from stowplan.certificates import checker
from stowplan.document import Document


class Certificate(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A claim about a bound, and its proof; see docs/reference/certificates.md."""

    kind: str
    """Name of the kind of problem."""
    problem: str
    """Digest of the problem in the checker's canonical form."""
    bound: int | None
    """No plan has a smaller objective, in the kind's unit. None claims that no plan exists."""
    proof: dict[str, Any]
    """The proof: its ``form``, and the numbers that the checker needs for this form."""
    format: str = checker.FORMAT
    version: int = checker.VERSION

    @property
    def form(self) -> str:
        """Form of the proof, such as ``load``, ``cut`` or ``prices``; ``trusted`` means that there is no proof and a solver
        must be trusted."""
        return str(self.proof.get("form", ""))

    @property
    def is_proof(self) -> bool:
        """Whether there is a proof."""
        return self.form != "trusted"

    def check(self, problem: Document) -> checker.Verdict:
        """Checks this certificate for a problem.

        Raises
        ------
        MalformedError
            The problem is of no kind that the checker knows, or the proof does not have the structure that its form requires.
        UnprovenError
            The certificate is for another problem, or its proof does not show the claim.
        """
        return checker.check(files.encode(problem), files.encode(self))
