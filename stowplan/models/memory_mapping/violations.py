"""What can be wrong with a memory-mapping plan: reason codes and violations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from stowplan.models import outcome

#: Violations of one code beyond this many are counted, not listed.
MAX_LISTED = 100


class Reason(StrEnum):
    """Why a plan is not valid; ``docs/reference/memory-mapping.md`` states each rule."""

    WRONG_PROBLEM = "wrong_problem"
    BAD_INDEX = "bad_index"
    BAD_INTERVAL = "bad_interval"
    BAD_OFFSET = "bad_offset"
    OVERLAP = "overlap"
    DOUBLE_RESIDENCY = "double_residency"
    NO_SOURCE = "no_source"
    BAD_PRELOAD = "bad_preload"
    COPY_ORDER = "copy_order"
    BAD_PART = "bad_part"
    COPY_WITHOUT_RESIDENCY = "copy_without_residency"
    COPY_IN_LATE = "copy_in_late"
    COPY_OUT_EARLY = "copy_out_early"
    FAST_USE_NOT_RESIDENT = "fast_use_not_resident"
    COPY_DURING_WRITE = "copy_during_write"
    STALE_SLOW = "stale_slow"
    STALE_FAST = "stale_fast"
    SPLIT_IN_PLACE = "split_in_place"
    OUTPUT_NOT_SLOW = "output_not_slow"
    LOOP_PARTIAL = "loop_partial"
    LOOP_MIXED = "loop_mixed"
    ALIAS_NOT_UNIFORM = "alias_not_uniform"
    STALLED_COPY = "stalled_copy"
    WRONG_OBJECTIVE = "wrong_objective"


@dataclass(frozen=True)
class Violation(outcome.Violation[Reason]):
    """One broken rule, in one line for people and by number for programs."""

    tensor: int | None = None
    step: int | None = None
    residencies: tuple[int, ...] = ()
    """Places in ``plan.residencies``."""
    copies: tuple[int, ...] = ()
    """Places in ``plan.copies``."""
    uses: tuple[int, ...] = ()
    """Numbers of uses, counted through the whole program."""


class ViolationLog:
    """Violations by code, capped."""

    def __init__(self) -> None:
        self._listed: dict[Reason, list[Violation]] = {reason: [] for reason in Reason}
        self._more: Counter[Reason] = Counter()

    def has_room(self, code: Reason) -> bool:
        """Whether another violation of this code would be listed."""
        return len(self._listed[code]) < MAX_LISTED

    def add(
        self,
        code: Reason,
        message: str,
        *,
        tensor: int | None = None,
        step: int | None = None,
        residencies: Iterable[int] = (),
        copies: Iterable[int] = (),
        uses: Iterable[int] = (),
    ) -> None:
        """List a violation, or count it where the list of its code is full."""
        if self.has_room(code):
            self._listed[code].append(Violation(code, message, tensor, step, tuple(residencies), tuple(copies), tuple(uses)))
        else:
            self._more[code] += 1

    def add_unlisted(self, code: Reason, count: int) -> None:
        """Count violations without listing them."""
        self._more[code] += count

    def violations(self) -> Iterator[Violation]:
        """Those listed, by code; after the last of a code that overflowed, how many more there are."""
        for code, listed in self._listed.items():
            yield from listed
            if self._more[code]:
                yield Violation(code, f"and {self._more[code]} more")
