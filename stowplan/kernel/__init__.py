"""The path of every call of :func:`stowplan.solve`, from the check of its arguments to its result: see README.md in this
folder.

A *candidate* is one method that looks for plans or bounds. A *run* is the search of all candidates of one call. A *worker* is a
thread or a process that runs one candidate, and a *turn* is one execution of a candidate in a worker. A deterministic run has
*stages*: parts with more and more work. Each stage starts from the best plan of the stages before it. The *source* of a plan or
a bound is the name under which the result lists it: usually the candidate that found it, or the name under which the caller
gave it. *Starts* are the plans that a run begins with: the kind's initial plans, which cost nothing to make, and the plans that
the caller gave.
"""
