"""Certificates of bounds, code that makes them, and a checker that shares no code with the search for bounds.

See docs/reference/certificates.md. ``checker`` reads problems and certificates with the standard library alone. ``maker`` makes
certificates with the help of models; if the proof is that a search finds nothing, it runs the checker's own search. Models and
heuristics use neither of them.

Each file imports only those before it:

- ``checker``: checks certificates with the standard library alone
- ``certificate``: the file of a certificate, a claim and its proof
- ``maker``: makes certificates with models
"""
