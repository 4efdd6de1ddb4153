"""Suites of inputs, solved into a folder: one after the other, side by side, or on other machines.

Each input gives two files, ``NAME.plan.json`` and, written after it, ``NAME.result.json``, a :class:`Record`; then a line in
the journal. An input counts as finished when its record is there, is of the same problem and the same settings, and its plan is
there too: what is finished need not be solved again. Files and journal are written by one process alone, which holds the
folder's lock; all others only compute. So that process and any other may be killed at any moment: the next run goes on from
what is written.
"""

from __future__ import annotations

from stowplan.portfolio.batch.records import (
    CANCELLED,
    Record,
    Settings,
    check_settings,
    describe_failure,
    read_records,
    worst_code,
)
from stowplan.portfolio.batch.run import run_batch
from stowplan.portfolio.batch.task import Item, find_inputs, read_problem

__all__ = [
    "CANCELLED",
    "Item",
    "Record",
    "Settings",
    "check_settings",
    "describe_failure",
    "find_inputs",
    "read_problem",
    "read_records",
    "run_batch",
    "worst_code",
]
