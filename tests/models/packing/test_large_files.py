"""A file that is too large is refused before memory is spent on it."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from stowplan import files
from stowplan.errors import InputError
from stowplan.models.packing import csv_files

HEAD = b"id,lower,upper,size\n"

#: Reads a file with less memory to spare than the file needs; a refusal is what is hoped for.
REFUSE = """
import resource, sys
from stowplan.errors import InputError
from stowplan.models.packing import csv_files

pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (24 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    csv_files.read_problem(sys.argv[1])
except InputError as error:
    print(error)
"""


def refusal(path: Path) -> str:
    done = subprocess.run([sys.executable, "-c", REFUSE, str(path)], text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_an_endless_line_takes_no_memory(tmp_path: Path) -> None:
    """40 MB of zeros, which packed are 40 kB."""
    path = tmp_path / "buffers.csv.gz"
    path.write_bytes(gzip.compress(HEAD + bytes(40_000_000), compresslevel=1))
    assert refusal(path) == f"{path}: line 2: longer than the limit of {files.MAX_LINE_BYTES} bytes"


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_endless_rows_take_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "buffers.csv.gz"
    rows = b"a,0,1,1                         \n" * 1024
    path.write_bytes(gzip.compress(HEAD + rows * (csv_files.MAX_BYTES // len(rows) + 1), compresslevel=1))
    assert refusal(path) == f"{path}: larger than the limit of {csv_files.MAX_BYTES} bytes"


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_limits_are_met_exactly(tmp_path: Path, pack: type[bytes]) -> None:
    path = tmp_path / "lines"
    path.write_bytes(pack(b"12345\n123\n\n12"))
    lines = ["12345\n", "123\n", "\n", "12"]
    assert list(files.read_lines(path, limit=13, line_limit=6)) == lines
    with pytest.raises(InputError, match="lines: larger than the limit of 12 bytes"):
        next(files.read_lines(path, limit=12, line_limit=6))
    with pytest.raises(InputError, match="lines: line 1: longer than the limit of 5 bytes"):
        next(files.read_lines(path, limit=13, line_limit=5))


def test_lines_are_those_of_the_text(tmp_path: Path) -> None:
    r"""Only ``\n`` ends one; what is no UTF-8 is named by its line."""
    path = tmp_path / "lines"
    path.write_bytes("\ufeffa\u2028b\x0bc\r\nd\re\n".encode())
    assert list(files.read_lines(path)) == ["\ufeffa\u2028b\x0bc\r\n", "d\re\n"]
    path.write_bytes(b"one\ntwo\nGr\xf6\xdfe\n")
    with pytest.raises(InputError, match="lines: line 3: found byte 0xf6, expected UTF-8 text"):
        list(files.read_lines(path))
    path.write_bytes(gzip.compress(b"one\n" * 100)[:-4])
    with pytest.raises(InputError, match="truncated gzip file"):
        list(files.read_lines(path))


def test_a_mark_at_the_beginning_and_quoted_line_breaks(tmp_path: Path) -> None:
    path = tmp_path / "buffers.csv"
    path.write_bytes(b"\xef\xbb\xbf" + HEAD + b'"a\nb",0,1,8\r\nc,0,x,8\n')
    with pytest.raises(InputError, match=r"buffers\.csv: line 4: found upper 'x'"):
        csv_files.read_problem(path)
    path.write_bytes(b"\xef\xbb\xbf" + HEAD + b'"a\nb",0,1,8\n')
    assert csv_files.read_problem(path).buffers[0].id == "a\nb"
