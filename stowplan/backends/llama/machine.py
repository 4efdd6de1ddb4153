"""A machine that runs language models: its devices with free memory and measured speeds, as a TOML file.

    [host]
    free_mib = 60000
    weight_gbs = 40.0        # GB/s of weights that the CPU reads while it generates
    cache_gbs = 2.2          # GB/s of key-value cache
    tflops = 0.3             # TFLOP/s while it computes prompts

    [[device]]
    name = "CUDA0"           # as llama.cpp names it: llama-bench --list-devices
    free_mib = 23000
    weight_gbs = 750.0
    tflops = 60.0
    link_gbs = 12.0          # GB/s to and from the host
    link_us = 20.0           # microseconds of a transfer
    copies_weights = true    # computes prompts with the host's weights, as CUDA and Vulkan devices do

    [calibration]
    error = 0.08             # relative error of predicted request times

``stowplan llm calibrate`` writes such a file from measurements. If a file has no speeds, only the memory of the machine is
known. A *request* is a prompt that is computed and an answer that is generated. ``docs/reference/llm-placement.md`` lists all
keys and their defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stowplan import files
from stowplan.errors import InputError, naming
from stowplan.hardware.targets.toml_files import MAX_TARGET_BYTES, decode_toml

#: Bytes of a MiB.
MIB = 1 << 20

#: MiB that stay free on each device by default. llama.cpp's option ``--fit`` leaves as much free.
MARGIN_MIB = 1024

#: From each key of a device that is a speed or a time to its default, None if there is none, and to a factor. The factor
#: converts the value to the unit of a :class:`MachineDevice`: bytes or operations per second for a speed, and picoseconds for a
#: time.
_SPEEDS: dict[str, tuple[float | None, float]] = {
    "weight_gbs": (None, 1e9),
    "cache_gbs": (None, 1e9),
    "tflops": (None, 1e12),
    "link_gbs": (10.0, 1e9),
    "link_us": (20.0, 1e6),
    "layer_us": (0.0, 1e6),
}
#: All other keys of a device.
_OTHERS = ("name", "free_mib", "margin_mib", "compute_mib", "copies_weights")


@dataclass(frozen=True)
class MachineDevice:
    """A device, or the host. A rate that is not known is None."""

    name: str
    """Its name in llama.cpp; ``CPU`` for the host."""
    free: int
    """Free memory in bytes."""
    margin: int
    """Bytes of the free memory that must not be used."""
    compute: int | None
    """Bytes of the buffers of intermediate results, for the smallest size of micro-batches (tokens of a prompt that are
    computed at once). None if they are to be estimated."""
    weight_rate: int | None
    """Bytes of weights that it reads in a second while it generates tokens."""
    cache_rate: int | None
    """Bytes of the key-value cache that it reads in a second; the same as ``weight_rate`` unless the file says otherwise."""
    compute_rate: int | None
    """Floating-point operations in a second while it computes prompts."""
    link_rate: int
    """Bytes that the link between the device and the host transfers in a second."""
    link_ps: int
    """Fixed latency of a transfer to or from the host, in ps. The time that its bytes take at ``link_rate`` is added to it."""
    layer_ps: int
    """Fixed time of one layer, in ps, in each step of generation and in each micro-batch of the prompt."""
    copies_weights: bool
    """Whether it computes prompts with weights that are copied to it from the host."""

    @property
    def is_measured(self) -> bool:
        """Whether its speeds are known."""
        return self.weight_rate is not None and self.compute_rate is not None


@dataclass(frozen=True)
class Machine:
    """A machine that runs language models."""

    name: str
    """Name of the machine, for people."""
    host: MachineDevice
    """The CPU with its RAM."""
    devices: tuple[MachineDevice, ...]
    """The devices, without the host, in llama.cpp's order."""
    error: float | None
    """Relative error of predicted request times, 0.08 for 8 %; None for a machine that was not calibrated."""

    @property
    def unmeasured(self) -> list[str]:
        """Names of the devices, the host among them, whose speeds are not known."""
        return [device.name for device in (self.host, *self.devices) if not device.is_measured]


def read_machine(path: str | Path) -> Machine:
    """Reads a machine file.

    Raises
    ------
    InputError
        One of these:

        - the file cannot be read or is not TOML
        - a table or key is missing, unknown, or has a wrong value. Speeds must be positive; times, sizes of memory and the
          error may be 0.
        - two devices have the same name, or one is called CPU
    """
    with naming(path):
        document = decode_toml(files.read_bytes(Path(path), MAX_TARGET_BYTES))
    return machine_of(document, Path(path).stem, path)


def machine_of(document: Mapping[str, Any], name: str, source: str | Path | None = None) -> Machine:
    """Returns the machine that a decoded machine file describes.

    Parameters
    ----------
    document
        Content of the file.
    name
        Name of the machine, if the file does not have one.
    source
        The file, for messages.

    Raises
    ------
    InputError
        As for :func:`read_machine`.
    """
    unknown = {*document} - {"host", "device", "calibration", "name"}
    if unknown:
        raise InputError(f"found the table {sorted(unknown)[0]!r}, expected host, device and calibration", source=source)
    host = document.get("host")
    if not isinstance(host, Mapping):
        raise InputError("found no table [host], expected one with free_mib", source=source)
    rows = document.get("device", [])
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise InputError("found device that is no list, expected tables [[device]]", source=source)
    devices = tuple(_device(row, f"device {number}", source) for number, row in enumerate(rows))
    names = [device.name for device in devices]
    if len({*names, "CPU"}) <= len(names):
        raise InputError(f"found the names {', '.join(names)}, expected each once, and none of them CPU", source=source)
    calibration = document.get("calibration", {})
    if not isinstance(calibration, Mapping):
        raise InputError("found calibration that is no table, expected [calibration] with error", source=source)
    error = calibration.get("error")
    if error is not None:
        error = _number(calibration, "error", "calibration", source, zero=True)
    return Machine(str(document.get("name", name)), _device({"name": "CPU", **host}, "host", source), devices, error)


def _device(row: Mapping[str, Any], place: str, source: str | Path | None) -> MachineDevice:
    """Returns the device or host of one table of the file; raises InputError, which names the ``place``, for a fault."""
    unknown = {*row} - {*_SPEEDS, *_OTHERS}
    if unknown:
        expected = ", ".join((*_OTHERS, *_SPEEDS))
        raise InputError(f"found the key {sorted(unknown)[0]!r}, expected one of {expected}", source=source, place=place)
    name = row.get("name")
    if not isinstance(name, str) or not name:
        raise InputError(f"found name {name!r}, expected the name of a device", source=source, place=place)
    place = f"{place} ({name})"
    speeds: dict[str, float | None] = {}
    for key, (default, _) in _SPEEDS.items():
        speeds[key] = _number(row, key, place, source, zero=key.endswith("_us")) if key in row else default
    if "free_mib" not in row:
        raise InputError("found no free_mib, expected the free memory in MiB", source=source, place=place)
    margin = (
        _number(row, "margin_mib", place, source, zero=True) if "margin_mib" in row else (0 if name == "CPU" else MARGIN_MIB)
    )
    copies = row.get("copies_weights", not name.startswith(("RPC", "CPU")))
    if not isinstance(copies, bool):
        raise InputError(f"found copies_weights {copies!r}, expected true or false", source=source, place=place)

    def rate(key: str) -> int | None:
        """Returns a speed for each second as a whole number, at least 1; None if it is not known."""
        value = speeds[key]
        return None if value is None else max(1, round(value * _SPEEDS[key][1]))

    weights = rate("weight_gbs")
    return MachineDevice(
        name=name,
        free=round(_number(row, "free_mib", place, source, zero=True) * MIB),
        margin=round(margin * MIB),
        compute=round(_number(row, "compute_mib", place, source, zero=True) * MIB) if "compute_mib" in row else None,
        weight_rate=weights,
        cache_rate=rate("cache_gbs") or weights,
        compute_rate=rate("tflops"),
        link_rate=rate("link_gbs") or 1,
        link_ps=round((speeds["link_us"] or 0) * 1e6),
        layer_ps=round((speeds["layer_us"] or 0) * 1e6),
        copies_weights=copies,
    )


def _number(row: Mapping[str, Any], key: str, place: str, source: str | Path | None, *, zero: bool = False) -> float:
    """Reads a positive number below 10^12 from a table, or 0 if ``zero`` allows it; raises InputError for anything else."""
    value = row[key]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (0 <= value < 1e12) or (value == 0 and not zero):
        raise InputError(
            f"found {key} {value!r}, expected a {'number' if zero else 'positive number'}", source=source, place=place
        )
    return float(value)
