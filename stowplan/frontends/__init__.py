"""Readers of foreign formats, and what makes problems of their files."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Any


@functools.cache
def known(table: str) -> dict[str, Any]:
    """What is known of a format, by the path of its table here: ``onnx`` for ``onnx.toml``."""
    return tomllib.loads((Path(__file__).parent / f"{table}.toml").read_text(encoding="utf-8"))
