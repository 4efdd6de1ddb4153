"""Processes in which parameters of the package have other values."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stowplan.parameters import VARIABLE


@contextmanager
def environment(parameters: str) -> Iterator[dict[str, str]]:
    """The environment of processes whose parameters have the values of this TOML text; without text, that of this process.

    The file with the text is there until the context ends.
    """
    if not parameters:
        yield dict(os.environ)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "parameters.toml")
        path.write_text(parameters, encoding="utf-8")
        yield {**os.environ, VARIABLE: str(path)}
