"""A process that solves problems for a compiler, with requests and answers as lines of JSON (docs/reference/serve.md).

Each file knows only those before it:

- ``messages``: requests and answers
- ``jobs``: reads, solves and verifies what one request asks for
- ``server``: takes requests, runs them, and writes answers
"""
