"""The server of ``stowplan serve``: solves problems for a compiler, with requests and answers as lines of JSON.

A request asks for a plan (``solve``), checks a plan (``verify``), asks for the limits of the server (``hello``), or ends
another request or the server (``cancel``, ``shutdown``). The page docs/reference/serve.md describes all fields. A file imports
only files that come before it in this list:

- ``messages``: requests and answers
- ``jobs``: carries out one request: reads a problem, and solves it or verifies a plan
- ``server``: takes requests, runs several at the same time, and writes answers
"""
