"""The version of the package, and those of the packages that plans depend on.

A checkout that is run without being installed has no metadata that would say the first.
"""

from __future__ import annotations

from functools import cache

VERSION = "0.2.0"

_VERSIONED = ("ortools", "highspy", "numpy")
_VERSIONED_WITH_POLICY = (*_VERSIONED, "torch")


def versions(*, with_policy: bool) -> dict[str, str]:
    """Versions that plans depend on, by package; with a policy, torch's too. What is not installed is left out."""
    return dict(_versions(_VERSIONED_WITH_POLICY if with_policy else _VERSIONED))


@cache
def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    # Imported here: they take longer than all that needs the version alone.
    import platform
    from importlib import metadata

    known = {"python": platform.python_version(), "stowplan": VERSION}
    for name in packages:
        try:
            known[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return known
