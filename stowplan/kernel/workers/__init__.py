"""Workers run candidates in threads and processes; a pool starts them, sends them updates and collects their reports.

A *candidate* is one method that looks for plans or bounds. A *run* is the search of all candidates of one call, and its *run
state* holds the best plan and bound. A *turn* is one execution of a candidate, and a *job* is everything that a worker needs
for a turn. A candidate's *share* is the part of the time limit after which it makes way for candidates that have not run yet.
The *incumbent* is the best verified plan so far.
"""
