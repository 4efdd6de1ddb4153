"""The version of this package, and the versions of the packages that plans depend on.

The version of this package is a constant here, because a checkout that is not installed has no metadata.
"""

from __future__ import annotations

from functools import cache

VERSION = "0.2.0"

_VERSIONED = ("ortools", "highspy", "numpy")
_VERSIONED_WITH_POLICY = (*_VERSIONED, "torch")


def versions(*, with_policy: bool) -> dict[str, str]:
    """Versions of the packages that plans depend on, by name. With ``with_policy``, which says that a policy is used, torch is
    one of these packages. Packages that are not installed are left out."""
    return dict(_versions(_VERSIONED_WITH_POLICY if with_policy else _VERSIONED))


@cache
def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    """The versions of installed packages, which are looked up once."""
    # Imported here because most callers need only the version of this package, and these imports take longer than the rest.
    import platform
    from importlib import metadata

    found = {"python": platform.python_version(), "stowplan": VERSION}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
