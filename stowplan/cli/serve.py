"""The command ``stowplan serve``."""

from __future__ import annotations

from typing import Annotated

import typer

from stowplan.arguments import whole
from stowplan.cli import INTERRUPTED, event_on_interrupt
from stowplan.cli.options import CacheFolder, option, setting, with_options
from stowplan.cli.output import say_json
from stowplan.frontends.options import ReadOptions
from stowplan.kernel.context import Options

#: Help texts that replace the general ones.
_TEXTS = {"workers": "Maximum number of processes that search at the same time for the plan of one request."}


@with_options(inputs=(), search=("workers", "memory_limit"), texts=_TEXTS)
def serve_command(
    jobs: Annotated[
        int,
        option(
            "--jobs",
            "N",
            "Number of requests that run at the same time, each in as many processes as --workers says. 0 stands for the "
            "number of processor cores divided by --workers.",
            min=0,
        ),
    ] = 1,
    cache: CacheFolder = None,
    queue: Annotated[
        int,
        setting("N", "Maximum number of requests that wait for their turn. Further requests are refused. The default is 64."),
    ] = 64,
    max_line: Annotated[int, setting("SIZE", "Maximum length of the line of a request. The default is 64MiB.")] = 64 << 20,
    schema: Annotated[bool, option("--schema", "", "Print the JSON Schema of requests and answers, and exit.")] = False,
    *,
    options: ReadOptions,
    search: Options,
) -> None:
    """Solve problems that another program sends as JSON.

    The command reads requests from standard input, one JSON object on each line, and writes its answers to standard output in
    the same form (docs/reference/serve.md describes both). Several requests may run at the same time. A request may have a
    deadline, and may be cancelled. The command ends once its input has ended and all requests are answered. After a request to
    shut down, or after Ctrl-C, it answers the requests that are running with their best plans so far, and ends.
    """
    from stowplan.backends.serve.messages import schema as json_schema
    from stowplan.backends.serve.server import Server, open_pipes

    if schema:
        say_json(json_schema())
        return
    whole("a queue of {} requests", queue, 1)
    whole("a line of {} bytes", max_line, 1)
    if jobs == 0:
        # Imported here because most servers are started with a number.
        import joblib

        jobs = max(1, int(joblib.cpu_count()) // search.workers)
    incoming, outgoing = open_pipes()
    with event_on_interrupt() as interrupted:
        server = Server(
            incoming,
            outgoing,
            defaults=search,
            jobs=jobs,
            most_waiting=queue,
            most_bytes=max_line,
            cache=cache,
        )
        server.run(interrupted)
    if interrupted.is_set():
        raise typer.Exit(INTERRUPTED)
