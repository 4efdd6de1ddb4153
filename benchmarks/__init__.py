"""Benchmarks, a folder for each kind: ``python -m benchmarks.KIND.NAME`` in the folder of the project.

``lib`` has what several of them share and the package does not need; tests import it too.
"""
