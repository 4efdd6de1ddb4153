"""Bounds that anybody can check: certificates, what makes them, and a checker that shares no code with what finds bounds.

See docs/reference/certificates.md. ``checker`` reads problems and certificates by the standard library alone; ``maker`` makes
certificates with the help of models, and by the checker's own searches where a certificate is that a search comes to its end.
Models and heuristics use neither.

Each file knows only those before it:

- ``checker``: checks certificates with the standard library alone
- ``certificate``: what a certificate says
- ``maker``: makes certificates with models
"""
