"""Damaged copies of a file: what a cut download, a bad edit or an attacker makes of it.

One engine for every format: it works on bytes, and knows of text only what all formats share (lines, numbers, words, brackets,
fields ``name=value`` and ``"name": value``).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORD = re.compile(rb'"[^"\n]*"|[\w.\-]+')
_FIELD = re.compile(rb',?\s*"?[\w.\-]+"?\s*[=:]\s*(?:\{[^{}\n]*\}|\[[^\[\]\n]*\]|"[^"\n]*"|[^,\s{}\[\]]+)(?:x[\w\-]+)*,?')
_BRACKETS = ((b"{", b"}"), (b"[", b"]"), (b"(", b")"), (b'{"a":', b"}"), (b"[[", b"]]"))
_NUMBERS = (
    b"0", b"-1", b"1", b"2", b"3", b"7", b"-0", b"1.5", b"1e400", b"nan", b"inf", b"64", b"255", b"65536", b"1000000007",
    b"2147483648", b"4294967296", b"9223372036854775807", b"9223372036854775808", b"-9223372036854775809",
    b"18446744073709551616", b"123456789012345678901234567890", b"9" * 400, b"7" * 5000,
)  # fmt: skip
_WORDS = (
    b"", b"null", b"true", b"x", b'"x"', b'""', b"-", b"--", b",", b":", b"=", b"{}", b"[]", b"()", b"%", b"@", b"#", b"\x00",
    b"\xff\xfe", "\u00b2\u0663".encode(), b"\\", b'"', b"'", b"/*", b"\r", b"\t", b"a" * 3000, b"ROOT", b"tuple", b"parameter",
)  # fmt: skip
#: Nesting is made this deep, at one time or another.
_DEPTHS = (1, 2, 70, 1000, 100_000)


class Mutator:
    """Makes mutants, by seed: the same seed and inputs give the same ones."""

    def __init__(self, seed: int):
        self._chance = random.Random(seed)
        self._ways: tuple[Callable[[bytes], bytes], ...] = (
            self._flip,
            self._delete,
            self._truncate,
            self._swap_lines,
            self._repeat_lines,
            self._delete_line,
            self._replace_number,
            self._replace_number,
            self._replace_word,
            self._replace_word,
            self._exchange_words,
            self._drop_field,
            self._drop_field,
            self._nest,
            self._insert,
        )

    def mutant(self, original: bytes) -> bytes:
        """A copy with one to four kinds of damage."""
        found = original
        for _ in range(self._chance.choice((1, 1, 1, 2, 4))):
            found = self._chance.choice(self._ways)(found)
        return found

    def _at(self, data: bytes) -> int:
        return self._chance.randrange(len(data) + 1)

    def _flip(self, data: bytes) -> bytes:
        found = bytearray(data)
        for _ in range(self._chance.choice((1, 1, 3))):
            if found:
                found[self._chance.randrange(len(found))] ^= 1 << self._chance.randrange(8)
        return bytes(found)

    def _delete(self, data: bytes) -> bytes:
        at = self._at(data)
        return data[:at] + data[at + self._chance.choice((1, 1, 2, 5, 20, 200)) :]

    def _truncate(self, data: bytes) -> bytes:
        return data[: self._at(data)]

    def _lines(self, data: bytes) -> tuple[list[bytes], int]:
        lines = data.splitlines(keepends=True) or [b""]
        return lines, self._chance.randrange(len(lines))

    def _swap_lines(self, data: bytes) -> bytes:
        lines, one = self._lines(data)
        two = self._chance.randrange(len(lines))
        lines[one], lines[two] = lines[two], lines[one]
        return b"".join(lines)

    def _repeat_lines(self, data: bytes) -> bytes:
        lines, one = self._lines(data)
        count = self._chance.choice((1, 1, 3, 10))
        times = self._chance.choice((1, 1, 2, 50))
        return b"".join((*lines[: one + count], *lines[one : one + count] * times, *lines[one + count :]))

    def _delete_line(self, data: bytes) -> bytes:
        lines, one = self._lines(data)
        return b"".join((*lines[:one], *lines[one + 1 :]))

    def _pick(self, pattern: re.Pattern[bytes], data: bytes) -> re.Match[bytes] | None:
        """One of the matches; of large files, one of those after a random place."""
        matches = []
        for match in pattern.finditer(data, self._at(data) if len(data) > 1 << 14 else 0):
            matches.append(match)
            if len(matches) == 2000:
                break
        return self._chance.choice(matches) if matches else None

    def _replaced(self, data: bytes, match: re.Match[bytes] | None, new: bytes) -> bytes:
        return data if match is None else data[: match.start()] + new + data[match.end() :]

    def _replace_number(self, data: bytes) -> bytes:
        match = self._pick(_NUMBER, data)
        new = self._chance.choice(_NUMBERS)
        if match is not None and self._chance.random() < 0.3:
            new = match[0] + self._chance.choice((b"0", b"1", b"000000", b".5", b"x"))
        return self._replaced(data, match, new)

    def _replace_word(self, data: bytes) -> bytes:
        other = self._pick(_WORD, data)
        new = other[0] if other is not None and self._chance.random() < 0.6 else self._chance.choice(_WORDS)
        return self._replaced(data, self._pick(_WORD, data), new)

    def _exchange_words(self, data: bytes) -> bytes:
        one, two = self._pick(_WORD, data), self._pick(_WORD, data)
        if one is None or two is None or one.start() == two.start():
            return data
        first, second = sorted((one, two), key=lambda match: match.start())
        return b"".join((data[: first.start()], second[0], data[first.end() : second.start()], first[0], data[second.end() :]))

    def _drop_field(self, data: bytes) -> bytes:
        return self._replaced(data, self._pick(_FIELD, data), self._chance.choice((b"", b"", b",", b" ")))

    def _nest(self, data: bytes) -> bytes:
        opening, closing = self._chance.choice(_BRACKETS)
        depth = self._chance.choice(_DEPTHS)
        match = self._pick(_WORD, data)
        at = self._at(data) if match is None else match.start()
        end = at if match is None else match.end()
        return data[:at] + opening * depth + data[at:end] + closing * self._chance.choice((depth, depth, 0)) + data[end:]

    def _insert(self, data: bytes) -> bytes:
        at = self._at(data)
        new = self._chance.choice((*_WORDS, *_NUMBERS, self._chance.randbytes(8)))
        return data[:at] + new + data[at:]
