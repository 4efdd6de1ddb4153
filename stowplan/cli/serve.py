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


@with_options(inputs=(), search=("workers", "memory_limit"))
def serve_command(
    jobs: Annotated[
        int,
        option(
            "--jobs",
            "N",
            "Number of requests that run at the same time, each with its own --workers; 0 chooses by the number of cores.",
            min=0,
        ),
    ] = 1,
    cache: CacheFolder = None,
    queue: Annotated[int, setting("N", "Number of requests that may wait; further ones are refused.")] = 64,
    max_line: Annotated[int, setting("SIZE", "Maximum length of a line, 64MiB by default.")] = 64 << 20,
    schema: Annotated[bool, option("--schema", "", "Print the JSON Schema of requests and answers, and end.")] = False,
    *,
    options: ReadOptions,
    search: Options,
) -> None:
    """Solve problems that another program sends as JSON.

    Requests are lines of JSON on standard input, and answers lines on standard output (docs/reference/serve.md).
    Requests may run at the same time, be cancelled, and have deadlines. The command ends at the end of its input, once all
    requests are answered; at a request to shut down or Ctrl-C, running requests are answered with their best plans so far.
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
