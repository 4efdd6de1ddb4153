"""Bounds that anybody can check: certificates, what makes them, and a checker that shares no code with what made them.

See docs/reference/certificates.md. ``checker`` reads problems and certificates by the standard library alone; ``maker`` makes
certificates with the help of models.
"""
