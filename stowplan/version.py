"""The version of the package. A checkout that is run without being installed has no metadata that would say it."""

from __future__ import annotations

VERSION = "0.2.0"
