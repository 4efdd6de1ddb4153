"""Suites of inputs, solved into a folder: one after the other, side by side, or on other machines.

Each input gives two files, ``NAME.plan.json`` and, written after it, ``NAME.result.json``
(:class:`~stowplan.portfolio.batch.records.Record`); then a line in the journal. An input counts as finished when its record is
there, is of the same problem and the same settings, and its plan is there too: what is finished need not be solved again. Files
and journal are written by one process alone, which holds the folder's lock; all others only compute. So that process and any
other may be killed at any moment: the next run goes on from what is written.
"""
