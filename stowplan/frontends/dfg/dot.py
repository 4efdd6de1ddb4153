"""Reads data-flow graphs in Graphviz DOT, as other CGRA tools write them.

Nodes and edges (also chains, ``a -> b -> c``) are read with their attributes; subgraphs are flattened. The operation of a node
is its attribute ``opcode``, ``op``, ``operation`` or ``type``, otherwise a known word in its ``label``, otherwise its name
without digits. The value of a constant is its attribute ``value``, ``const_value`` or ``constVal``. The *distance* of an edge,
the number of iterations between production and use of the value, is its attribute ``distance``, ``dist`` or ``iteration``. The
position of an edge among the operands of its target is the attribute ``operand``, if that is a number. Text after the graph is
ignored.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from stowplan import files
from stowplan.errors import InputError
from stowplan.frontends.dfg.graph import Arrow, Dfg, Node, Reading, join
from stowplan.frontends.dfg.op_table import OpTable, read_number

#: A token of DOT; blanks and comments are skipped.
_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|\#[^\n]*|/\*.*?\*/)
    |(?P<arrow>->|--)
    |(?P<mark>[\[\]{};,=:])
    |"(?P<quoted>(?:[^"\\]|\\.)*)"
    |(?P<html><[^<>]*>)
    |(?P<word>[^\s\[\]{};,=:"<>]+?(?=->|--|[\s\[\]{};,=:"<>]|$))""",
    re.VERBOSE | re.DOTALL,
)

_NUMBER = re.compile(r"[0-9]{1,9}")

#: Separators of the words in a label, including those of fields in record labels.
_BETWEEN = re.compile(r"[\s{}|()\[\],;]+")

#: Letters of DOT's escapes for the end of a line, which also set its alignment.
_LINE_ENDS = "nlr"


class _Tokens:
    """The tokens of a text with their line numbers, which are taken one by one; quoted text is distinguished from words."""

    def __init__(self, text: str, source: str | Path | None):
        self._source = source
        self._tokens: list[tuple[str, str, int]] = []
        at, line = 0, 1
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise InputError(f"found {text[at : at + 10]!r}, expected DOT", source=source, place=f"line {line}")
            kind = match.lastgroup or ""
            if kind == "word" and match[0].startswith("/*"):
                raise InputError("found a comment that never ends, expected */", source=source, place=f"line {line}")
            if kind != "skip":
                self._tokens.append((kind, _unescaped(match[kind]) if kind == "quoted" else match[kind], line))
            line += match[0].count("\n")
            at = match.end()
        self._at = 0

    @property
    def line(self) -> str:
        """The line of the next token, for error messages; at the end, that of the last token."""
        last = self._tokens[min(self._at, len(self._tokens) - 1)] if self._tokens else ("", "", 1)
        return f"line {last[2]}"

    def peek(self) -> str | None:
        """The next punctuation mark or word, without taking it; None at the end, and a null character for quoted text, which
        is never equal to a mark or keyword."""
        if self._at >= len(self._tokens):
            return None
        kind, text, _ = self._tokens[self._at]
        return text if kind in ("mark", "arrow", "word") else "\0"

    def take(self, expected: str | None = None) -> str:
        """Takes the next token; raises InputError if there is none, or if it is not the expected one."""
        if self._at >= len(self._tokens) or (expected is not None and self.peek() != expected):
            token = "the end" if self._at >= len(self._tokens) else repr(self._tokens[self._at][1])
            raise InputError(f"found {token}, expected {expected or 'a name'}", source=self._source, place=self.line)
        self._at += 1
        return self._tokens[self._at - 1][1]

    def name(self) -> str:
        """Takes a name: a word or quoted text; raises InputError if the next token is neither."""
        if self._at < len(self._tokens) and self._tokens[self._at][0] in ("mark", "arrow"):
            raise InputError(f"found {self.peek()!r}, expected a name", source=self._source, place=self.line)
        return self.take()


def _unescaped(text: str) -> str:
    """Quoted text with its escapes replaced; those for the end of a line become a newline."""
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] in _LINE_ENDS else match[1], text)


def read_dot(path: str | Path, reading: Reading | None = None) -> Dfg:
    """Reads the graph of a DOT file.

    ``reading`` says how operations are interpreted; by default with the op tables of this package, and not strictly. Raises
    InputError, which names the file and usually the line, if the file cannot be read or as :func:`parse_dot` does.
    """
    return parse_dot(files.read_text(path), source=path, reading=reading)


def parse_dot(text: str, source: str | Path | None = None, reading: Reading | None = None) -> Dfg:
    """Parses the graph of DOT text.

    Parameters
    ----------
    text
        The text.
    source
        Path of the file for error messages and for the name of a graph without a name; None if there is no file.
    reading
        How operations are interpreted; by default with the op tables of this package, and not strictly.

    Raises
    ------
    InputError
        The text is no digraph, a distance is not a number, or the graph is not valid
        (:func:`~stowplan.frontends.dfg.graph.join`); the message names the source and the line.
    """
    interpretation = reading or Reading()
    tokens = _Tokens(text, source)
    if tokens.peek() == "strict":
        tokens.take()
    if tokens.peek() not in ("digraph", "Digraph"):
        raise InputError("expected a digraph", source=source, place=tokens.line)
    tokens.take()
    name = tokens.name() if tokens.peek() != "{" else ""
    tokens.take("{")
    nodes: dict[str, tuple[dict[str, str], str]] = {}
    arrows: list[Arrow] = []
    depth = 1
    while depth:
        word = tokens.peek()
        if word is None:
            raise InputError("found the end, expected }", source=source, place=tokens.line)
        if word in (";", ","):
            tokens.take()
        elif word == "{":
            tokens.take()
            depth += 1
        elif word == "}":
            tokens.take()
            depth -= 1
        elif word == "subgraph":
            tokens.take()
            if tokens.peek() != "{":
                tokens.name()
        elif word in ("graph", "node", "edge"):
            tokens.take()
            _attributes(tokens)
        else:
            _statement(tokens, nodes, arrows, source)
    graph_nodes = [
        Node(key, _op(key, values, interpretation.table), (), place, _value(values)) for key, (values, place) in nodes.items()
    ]
    return join(
        name or (Path(source).name.split(".")[0] if source is not None else ""), graph_nodes, arrows, source, interpretation
    )


def _statement(
    tokens: _Tokens, nodes: dict[str, tuple[dict[str, str], str]], arrows: list[Arrow], source: str | Path | None
) -> None:
    """Parses a node, a chain of edges, or an attribute of the graph; adds nodes and edges to ``nodes`` and ``arrows``."""
    place = tokens.line
    chain = [_node_name(tokens)]
    if tokens.peek() == "=":
        tokens.take()
        tokens.name()
        return
    while tokens.peek() == "->":
        tokens.take()
        chain.append(_node_name(tokens))
    if tokens.peek() == "--":
        raise InputError("found --, expected -> between nodes", source=source, place=tokens.line)
    values = _attributes(tokens)
    for name in chain:
        nodes.setdefault(name, ({}, place))
    if len(chain) == 1:
        nodes[chain[0]][0].update(values)
        return
    distance = next((values[key] for key in ("distance", "dist", "iteration") if key in values), None)
    operand = values.get("operand", "")
    if distance is not None and _NUMBER.fullmatch(distance) is None:
        raise InputError(f"found distance {distance!r}, expected a number, 0 or more", source=source, place=place)
    for one, two in pairwise(chain):
        steps = None if distance is None else int(distance)
        arrows.append(Arrow(one, two, steps, int(operand) if _NUMBER.fullmatch(operand) else None, place))


def _node_name(tokens: _Tokens) -> str:
    """Takes the name of a node, and a port after it."""
    name = tokens.name()
    while tokens.peek() == ":":
        # A port only says where an edge is drawn, so it is ignored.
        tokens.take()
        tokens.name()
    return name


def _attributes(tokens: _Tokens) -> dict[str, str]:
    """Takes lists of attributes in brackets; returns values by names, ``true`` for an attribute without a value."""
    values: dict[str, str] = {}
    while tokens.peek() == "[":
        tokens.take()
        while tokens.peek() != "]":
            if tokens.peek() in (",", ";"):
                tokens.take()
                continue
            key = tokens.name()
            values[key] = "true"
            if tokens.peek() == "=":
                tokens.take()
                values[key] = tokens.name()
        tokens.take("]")
    return values


def _op(name: str, values: dict[str, str], table: OpTable) -> str:
    """The operation of the node ``name``, whose attributes are ``values``.

    It is the value of one of the attributes that name an operation. Without such an attribute, it is the first part of the
    label or the name that is in the table. If no part is in the table, it is the first word of letters.
    """
    for key in ("opcode", "op", "operation", "type"):
        if key in values:
            return values[key]
    label = values.get("label", "").strip()
    # LLVM prints instructions such as %5 = add i32 %3, %4, so the part after the equals sign is used.
    words = [word for word in _BETWEEN.split(label.partition(" = ")[2] or label) if word]
    letters = re.findall(r"[^\W\d_]+", label)
    stem = re.sub(r"[^A-Za-z]", "", name)
    candidates = [label, *words, *(re.sub(r"[_.]?[0-9]+$", "", word) for word in words), *letters]
    if not label and not name.isdecimal():
        candidates.append(name)
    candidates = [word for word in (*candidates, stem) if word]
    unknown = next((word for word in (*letters, stem) if word), name)
    return next((candidate for candidate in candidates if table.find(candidate) is not None), unknown)


def _value(values: dict[str, str]) -> float | None:
    """The value of a constant, from the attributes of its node; None if they have no number."""
    text = next((values[key] for key in ("value", "const_value", "constVal") if key in values), None)
    return None if text is None else read_number(text)
