"""Processes that keep to one core."""

from __future__ import annotations

#: Variables of a process whose libraries must not use more than the core that it has.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
