"""Targets by name or from a file: :func:`load_target`, :func:`target_names`. File format: ``docs/reference/targets.md``."""

from __future__ import annotations

from stowplan.hardware.targets.target import FORMAT, VERSION, CopyEngine, FastMemory, Roofline, Target
from stowplan.hardware.targets.toml_files import TargetFiles

__all__ = ["CopyEngine", "FastMemory", "Roofline", "Target", "decode_target", "load_target", "target_names"]

_FILES = TargetFiles(Target, __name__, FORMAT, VERSION)

target_names, load_target, decode_target = _FILES.names, _FILES.load, _FILES.decode
