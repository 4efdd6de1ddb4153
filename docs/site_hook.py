"""What mkdocs does beside its own: the README is the first page, and links to files outside ``docs`` become plain text.

A site has no source files to link to. That the links are right in the repository is what ``tests/test_docs.py`` checks.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

_IMAGE = re.compile(r"(!\[[^\]]*\]\()docs/")
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?://)([^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the README as ``index.md``."""
    from mkdocs.structure.files import File

    readme = (Path(config["docs_dir"]).parent / "README.md").read_text(encoding="utf-8")
    inside = _LINK.sub(
        lambda link: f"[{link[1]}]({link[2].removeprefix('docs/')})" if link[2].startswith("docs/") else link[1], readme
    )
    files.append(File.generated(config, "index.md", content=_IMAGE.sub(r"\1", inside)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Drop links that leave ``docs``; pages of a shelf link to other shelves by ``../``."""
    shelf = posixpath.dirname(page.file.src_uri)

    def leaves(target: str) -> bool:
        return posixpath.normpath(posixpath.join(shelf, target)).startswith("..")

    return _LINK.sub(lambda link: link[1] if leaves(link[2]) else link[0], markdown)
