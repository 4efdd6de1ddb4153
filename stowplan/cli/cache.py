"""``stowplan cache``, and the options of commands that use a plan cache."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stowplan.cli.output import say, say_json
from stowplan.errors import InputError, UsageError

if TYPE_CHECKING:
    from stowplan.portfolio.plan_cache import PlanCache

#: As in :mod:`stowplan.portfolio.plan_cache`, which a command line without a cache does without.
MOST_BYTES = 1 << 28

CacheFolder = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        metavar="DIR",
        envvar="STOWPLAN_CACHE",
        # A cache that cannot be read costs a warning, not the result.
        readable=False,
        help="Keep results here, and take those that are here for the same problem, options and versions.",
    ),
]
CacheBytes = Annotated[
    int,
    typer.Option("--cache-bytes", metavar="BYTES", min=1, help="Keep results of so many bytes at most, those used last."),
]


def _cache(folder: Path | None) -> PlanCache:
    from stowplan.portfolio.plan_cache import PlanCache

    if folder is None:
        raise UsageError("found no cache, expected --cache DIR, or a folder in STOWPLAN_CACHE")
    try:
        is_no_folder = folder.exists() and not folder.is_dir()
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", source=folder) from error
    if is_no_folder:
        raise InputError("found a file, expected the folder of a plan cache", source=folder)
    return PlanCache(folder)


def info_command(
    folder: CacheFolder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Say how many results a plan cache holds, and of how many bytes."""
    found = _cache(folder).info()
    if as_json:
        say_json(found._asdict())
    else:
        say(f"{found.folder}: {found.entries} results, {found.bytes:,} bytes ({found.file_bytes:,} on disk)")


def clear_command(folder: CacheFolder = None) -> None:
    """Throw away all results of a plan cache."""
    say(f"{folder}: threw away {_cache(folder).clear()} results")
