"""The library of instances (``instances/``).

``families`` has the functions that generate instances, ``make`` writes those that are missing, ``recipes`` converts files of
others, ``fill`` solves them for the table, and ``tables`` prints it in Markdown.
"""
