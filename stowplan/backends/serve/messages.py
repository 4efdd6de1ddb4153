"""The lines of ``stowplan serve``: requests of a client, and answers of the server.

Each line is one JSON object, and its field ``type`` says which of the classes of this module it is. A client asks for a plan of
a problem, or whether a plan is valid.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from stowplan import files
from stowplan.errors import (
    InputError,
    MissingDependencyError,
    StowplanError,
    TimeLimitError,
    UsageError,
    VerificationError,
    brief,
)
from stowplan.json_schema import components, whole_schema

#: Version of requests and answers. It is increased for each change that an existing client could notice.
VERSION = 1

Id = Annotated[int, msgspec.Meta(ge=-(1 << 53), le=1 << 53)] | Annotated[str, msgspec.Meta(max_length=200)]
"""The client's name for a request, a number or a text. Requests that are not answered yet must have different names."""

#: Codes of errors, for programs; docs/reference/serve.md explains each.
Code = Literal[
    "json", "line_too_long", "version", "request", "duplicate_id", "unknown_request", "busy", "input", "usage",
    "missing_package", "deadline", "cancelled", "ending", "internal",
]  # fmt: skip


class Request(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag=lambda name: name.lower()
):
    """The fields that all requests have."""

    id: Id
    """The client's name for the request, which its answer repeats."""
    version: int = VERSION
    """Version of the lines that the client expects."""


class Hello(Request, frozen=True, kw_only=True):
    """Asks for the versions and limits of the server."""


class Solve(Request, frozen=True, kw_only=True):
    """Asks for the best plan of a problem within a time limit."""

    problem: msgspec.Raw
    """A problem, as in a problem file, or as text the path of a file that ``stowplan solve`` reads."""
    deadline_ms: Annotated[float, msgspec.Meta(gt=0, le=1e10)] = 30_000.0
    """The answer is due this many milliseconds after the line has arrived."""
    options: dict[str, Any] = {}
    """Options by their names in Python: keyword arguments of :func:`stowplan.read`, which decide how the problem is read, and
    of :func:`stowplan.solve` except for the time limit."""
    plans: dict[str, msgspec.Raw] = {}
    """Existing plans by name, from which the search starts. Each is a plan, as in a plan file, or the path of a file."""
    fallback: bool = False
    """Whether the run is deterministic, and a *fallback* is computed first: the plan of a fixed, small amount of heuristic
    work. It is the answer if the deadline comes before the end of the run. Neither plan depends on the load of the machine."""
    progress: bool = False
    """Whether to report better plans and bounds while the search runs."""


class Verify(Request, frozen=True, kw_only=True):
    """Asks whether a plan is valid."""

    problem: msgspec.Raw
    """A problem, or the path of a file, as in :class:`Solve`."""
    plan: msgspec.Raw
    """A plan, as in a plan file, or the path of a file."""
    options: dict[str, Any] = {}
    """Keyword arguments of :func:`stowplan.read`, which decide how the problem is read."""


class Cancel(Request, frozen=True, kw_only=True):
    """Ends another request early: a running request answers with its best plan so far, and a waiting one with an error."""

    request: Id
    """The ``id`` of the request to end."""


class Shutdown(Request, frozen=True, kw_only=True):
    """Ends all requests early, and then the server."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=lambda name: name.lower()):
    """The fields that all lines to the client have.

    Each request has exactly one answer. Lines about the progress of the request may come before it.
    """

    id: Id | None
    """The ``id`` of the request; null in an error about a line without one."""


class Versions(Answer, frozen=True, kw_only=True, tag="hello"):
    """The answer to ``hello``."""

    version: int
    """Version of the lines."""
    stowplan: str
    """Version of the package."""
    kinds: list[str]
    """Names of the kinds of problem."""
    jobs: int
    """Maximum number of requests that run at the same time."""
    workers: int
    """Maximum number of worker processes of each request."""
    queue: int
    """Maximum number of requests that wait."""
    max_line_bytes: int
    """Maximum length of a line in bytes."""


class Progress(Answer, frozen=True, kw_only=True):
    """A better plan or bound of a running request."""

    seconds: float
    """Seconds since the search began."""
    objective: int | None
    """Objective of the best plan so far; null if there is none."""
    bound: int | None
    """The best proven lower bound on the objective so far; null if there is none."""
    source: str
    """Name of the *candidate* that found the plan or the bound, that is, of one of the methods that the search runs."""


class Result(Answer, frozen=True, kw_only=True):
    """The answer to ``solve``."""

    fallback: bool
    """Whether the plan is the fallback, because the deadline came before the end of the run."""
    waited_ms: float
    """Milliseconds from the arrival of the line until the request began to run."""
    total_ms: float
    """Milliseconds from the arrival of the line until this answer."""
    result: dict[str, Any]
    """The output of ``stowplan solve --json``, and the plan."""
    certificate: Any = None
    """The proof of the bound, if the option ``certify`` is set; otherwise, or if there is no proof, null."""


class Verification(Answer, frozen=True, kw_only=True):
    """The answer to ``verify``."""

    ok: bool
    """Whether the plan is valid."""
    objective: int | None
    """The objective that the verifier computed; null if it could not compute one."""
    violations: list[dict[str, str]]
    """The broken rules, each with a ``code`` and a ``message``."""


class Done(Answer, frozen=True, kw_only=True):
    """The answer to ``cancel`` and ``shutdown``."""


class Error(Answer, frozen=True, kw_only=True):
    """The answer to a request that failed, or to a line that is no request."""

    code: Code
    """The cause, for programs."""
    message: str
    """One line for people, with the place, the value that was found there, and the expected one."""


#: All classes of lines from the client.
REQUESTS: tuple[type[Request], ...] = (Hello, Solve, Verify, Cancel, Shutdown)
#: All classes of lines to the client.
ANSWERS: tuple[type[Answer], ...] = (Versions, Progress, Result, Verification, Done, Error)

#: From the value of ``type`` to the class of the request.
_BY_TYPE = {kind.__struct_config__.tag: kind for kind in REQUESTS}


class RequestError(Exception):
    """A line is no request, or the request is refused; ``answer`` is the line for the client that says why.

    Parameters
    ----------
    code, message
        The fields of the answer; the message is shortened to one line.
    name
        The ``id`` of the request; None if the line has none that can be read.
    """

    def __init__(self, code: Code, message: str, name: Any = None):
        super().__init__(message)
        self.answer = Error(id=name, code=code, message=brief(message))


class _Head(msgspec.Struct):
    """The fields by which a line is recognized. They may have any type, so that an error can repeat the ``id``."""

    id: Any = None
    type: Any = None
    version: Any = VERSION


def decode(line: bytes) -> Request:
    """Returns the request in a line.

    Raises
    ------
    RequestError
        The line is not JSON, or not a request of this version.
    """
    try:
        # Fields of the type ``msgspec.Raw`` are decoded later. A fault of the encoding would then get another code than "json".
        line.decode("utf-8")
        head = msgspec.json.decode(line, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError("json", f"found a line that is no JSON object ({error}), expected a request") from error
    try:
        name = msgspec.convert(head.id, Id)
    except msgspec.ValidationError as error:
        raise RequestError("request", f"id: {error}, expected text of at most 200 characters or a whole number") from error
    if head.version != VERSION or isinstance(head.version, bool):
        raise RequestError("version", f"found version {head.version!r}, expected {VERSION}", name)
    kind = _BY_TYPE.get(head.type) if isinstance(head.type, str) else None
    if kind is None:
        raise RequestError("request", f"found type {head.type!r}, expected one of {', '.join(map(str, _BY_TYPE))}", name)
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.ValidationError as error:
        raise RequestError("request", str(files.type_mismatch(error, kind, None)), name) from error


def failure(name: Id | None, error: BaseException) -> Error:
    """Returns the answer to a request that ended in an error; ``name`` is the ``id`` of the request."""
    codes: dict[type[StowplanError], Code] = {
        InputError: "input",
        UsageError: "usage",
        TimeLimitError: "deadline",
        VerificationError: "input",
        MissingDependencyError: "missing_package",
    }
    for kind, code in codes.items():
        if isinstance(error, kind):
            return Error(id=name, code=code, message=brief(str(error)))
    return Error(id=name, code="internal", message=brief(f"internal error: {type(error).__name__}: {error}"))


def schema() -> dict[str, Any]:
    """Returns a JSON Schema of requests and answers."""
    (requests, answers), definitions = components([_union(REQUESTS), _union(ANSWERS)])
    either = {"anyOf": [requests | {"title": "request"}, answers | {"title": "answer"}]}
    return whole_schema(f"stowplan serve, version {VERSION}", either, definitions)


def _union(kinds: tuple[type[Any], ...]) -> Any:
    """Returns the union of some classes, as a type for msgspec."""
    union: Any = kinds[0]
    for kind in kinds[1:]:
        union |= kind
    return union
