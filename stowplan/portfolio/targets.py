"""Several targets for a suite of inputs of several kinds: each input gets the one that is made for its kind."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from stowplan import files
from stowplan.errors import InputError, UsageError
from stowplan.hardware.frontends.network import is_onnx
from stowplan.hardware.inferentia.target import is_bank_target
from stowplan.hardware.nnp_i.target import load_target as load_tier_target
from stowplan.hardware.targets import load_target as load_program_target
from stowplan.models.packing.csv_files import is_packing_csv
from stowplan.portfolio.loop_bodies import is_loop_body, is_machine
from stowplan.portfolio.networks import is_network


class Targets(msgspec.Struct, frozen=True, kw_only=True):
    """At most one target, by name or path, for each kind of input that needs one."""

    programs: str | None = None
    """For compiled programs."""
    tiers: str | None = None
    """With tiers of memory, for networks."""
    tiles: str | None = None
    """With tiles, for data-flow graphs."""
    banks: str | None = None
    """With memory banks, for operator graphs: unoptimised HLO and ONNX models."""

    def is_loop_body(self, path: Path, data: bytes | None) -> bool:
        """As :func:`~stowplan.portfolio.loop_bodies.is_loop_body`; a network stays one where there is a target with tiles."""
        return is_loop_body(path, data) or (not is_network(path, data) and is_loop_body(path, data, self.tiles))

    def for_input(self, path: Path) -> str | None:
        """Target of an input; None for problem files and CSV files, which stand without one, and where none is made for it.

        Raises
        ------
        InputError
            The file cannot be read.
        UsageError
            An ONNX model, and both a target with tiers and one with banks.
        """
        data = files.read_bytes(path) if files.is_json(path) else None
        if self.is_loop_body(path, data):
            return self.tiles
        if data is not None:
            return self.tiers if is_network(path, data) else None
        if is_packing_csv(path):
            return None
        if is_onnx(path):
            if self.tiers is not None and self.banks is not None:
                raise UsageError(
                    f"{path} is an ONNX model: both {self.tiers} and {self.banks} take it, expected only one of them"
                )
            return self.tiers or self.banks
        if self.programs is not None and self.banks is not None:
            from stowplan.hardware.frontends.hlo import read_module

            return self.programs if read_module(path).is_scheduled else self.banks
        return self.programs or self.banks


def sort_targets(targets: Iterable[str]) -> Targets:
    """Targets by what they are made for.

    Raises
    ------
    InputError
        A name that is unknown, or a file that is no target.
    UsageError
        Two targets for inputs of one kind.
    """
    found: dict[str, str] = {}
    for target in targets:
        use = _use(target)
        if use in found:
            raise UsageError(
                f"found targets {found[use]} and {target}, expected one for each kind of input: both are for {_INPUTS[use]}"
            )
        found[use] = target
    return Targets(**found)


_INPUTS = {
    "programs": "compiled programs",
    "tiers": "networks",
    "tiles": "data-flow graphs",
    "banks": "graphs to map to banks",
}


def _use(target: str) -> str:
    """Field of :class:`Targets` that a target belongs to."""
    if is_machine(target):
        return "tiles"
    if is_bank_target(target):
        return "banks"
    try:
        load_tier_target(target)
    except InputError:
        load_program_target(target)
        return "programs"
    return "tiers"
