"""The lines of ``stowplan serve``: one JSON object each, whose field ``type`` says which of these classes it is."""

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

#: Version of requests and answers. A change that an existing client could notice gets a new number.
VERSION = 1

Id = Annotated[int, msgspec.Meta(ge=-(1 << 53), le=1 << 53)] | Annotated[str, msgspec.Meta(max_length=200)]
"""The client's name for a request. No two requests that are not answered yet may have the same."""

Code = Literal[
    "json", "line_too_long", "version", "request", "duplicate_id", "unknown_request", "busy", "input", "usage",
    "missing_package", "deadline", "cancelled", "ending", "internal",
]  # fmt: skip


class Request(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag=lambda name: name.lower()
):
    """What all requests have."""

    id: Id
    version: int = VERSION
    """Version of the lines that the client expects."""


class Hello(Request, frozen=True, kw_only=True):
    """Asks which versions and limits the server has."""


class Solve(Request, frozen=True, kw_only=True):
    """Asks for the best plan of a problem within a time limit."""

    problem: msgspec.Raw
    """A problem, as in a problem file; or text: the path of a file that ``stowplan solve`` reads."""
    deadline_ms: Annotated[float, msgspec.Meta(gt=0, le=1e10)] = 30_000.0
    """Milliseconds from the arrival of the line until the answer."""
    options: dict[str, Any] = {}
    """Options by the names that they have in Python: those of :func:`stowplan.read`, which the command line has too, and of
    :func:`stowplan.solve` except for the time limit."""
    plans: dict[str, msgspec.Raw] = {}
    """Existing plans by name, each a plan or the path of a file."""
    fallback: bool = False
    """Makes the run deterministic; if the deadline is too near for its work, the answer is the plan of a fixed, small amount
    of heuristic work, which does not depend on the load of the machine either."""
    progress: bool = False
    """Whether to report better plans and bounds while the search runs."""


class Verify(Request, frozen=True, kw_only=True):
    """Asks whether a plan is valid."""

    problem: msgspec.Raw
    plan: msgspec.Raw
    """A plan, or the path of a file."""
    options: dict[str, Any] = {}
    """Options with which the problem is read."""


class Cancel(Request, frozen=True, kw_only=True):
    """Ends a request early: its answer has the best plan so far."""

    request: Id


class Shutdown(Request, frozen=True, kw_only=True):
    """Ends all requests early, and then the server."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=lambda name: name.lower()):
    """What all answers have. Each request has exactly one answer, which may follow lines about its progress."""

    id: Id | None
    """The ``id`` of the request; null in errors about lines without one."""


class Versions(Answer, frozen=True, kw_only=True, tag="hello"):
    """The answer to ``hello``."""

    version: int
    """Version of the lines."""
    stowplan: str
    kinds: list[str]
    """Names of the kinds of problem."""
    jobs: int
    """Maximum number of requests that run at the same time."""
    workers: int
    """Maximum number of worker processes of each."""
    queue: int
    """Maximum number of requests that wait."""
    max_line_bytes: int


class Progress(Answer, frozen=True, kw_only=True):
    """A better plan or bound of a running request."""

    seconds: float
    """Seconds since the search began."""
    objective: int | None
    bound: int | None
    source: str


class Result(Answer, frozen=True, kw_only=True):
    """The answer to ``solve``."""

    fallback: bool
    """Whether the plan is the fallback, because the deadline was too near."""
    waited_ms: float
    """Milliseconds from the arrival of the line until the request began to run."""
    total_ms: float
    """Milliseconds from the arrival of the line until this answer."""
    result: dict[str, Any]
    """What ``stowplan solve --json`` prints, with the plan in it."""
    certificate: Any = None
    """The proof of the bound, if the option ``certify`` is set."""


class Verification(Answer, frozen=True, kw_only=True):
    """The answer to ``verify``."""

    ok: bool
    objective: int | None
    violations: list[dict[str, str]]
    """The broken rules, each with a ``code`` and a ``message``."""


class Done(Answer, frozen=True, kw_only=True):
    """The answer to ``cancel`` and ``shutdown``."""


class Error(Answer, frozen=True, kw_only=True):
    """The answer to a request that failed, or to a line that is no request."""

    code: Code
    message: str
    """One line for people: where, what was found and what was expected."""


REQUESTS: tuple[type[Request], ...] = (Hello, Solve, Verify, Cancel, Shutdown)
ANSWERS: tuple[type[Answer], ...] = (Versions, Progress, Result, Verification, Done, Error)

_BY_TYPE = {kind.__struct_config__.tag: kind for kind in REQUESTS}


class RequestError(Exception):
    """A line that is no request; ``answer`` says so."""

    def __init__(self, code: Code, message: str, name: Any = None):
        super().__init__(message)
        self.answer = Error(id=name, code=code, message=brief(message))


class _Head(msgspec.Struct):
    """The fields by which a line is recognized; of any type, so that an error can name the request."""

    id: Any = None
    type: Any = None
    version: Any = VERSION


def decode(line: bytes) -> Request:
    """The request in a line.

    Raises
    ------
    RequestError
        The line is not JSON, or not a request of this version.
    """
    try:
        # Parts of the line are read later, in which an error about bytes would not be expected any more.
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
    """The answer to a request that ended in an error."""
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
    """A JSON Schema of requests and answers."""
    (requests, answers), definitions = msgspec.json.schema_components(
        [_union(REQUESTS), _union(ANSWERS)], ref_template="#/$defs/{name}"
    )
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"stowplan serve, version {VERSION}"}
    return head | {"anyOf": [requests | {"title": "request"}, answers | {"title": "answer"}], "$defs": definitions}


def _union(kinds: tuple[type[Any], ...]) -> Any:
    union: Any = kinds[0]
    for kind in kinds[1:]:
        union |= kind
    return union
