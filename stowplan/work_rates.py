"""How much work a deterministic run may do for each second of its limit, in one table for all candidates.

A deterministic run must not depend on the clock. Its candidates, the methods that look for plans and bounds, count their work
instead, in rounds, nodes or comparisons. Each :class:`Rate` says how much work replaces one second; it is chosen so that an
idle machine needs less than a second for it. ``python -m benchmarks.house.work_rates`` measures each of them.
"""

from __future__ import annotations

from typing import NamedTuple


class Rate(NamedTuple):
    """An amount of work for each second of the limit."""

    per_second: float
    """The amount, in ``unit``."""
    unit: str
    """What is counted. *X, times Y* means the product of both: a problem with twice as many Y is allowed half as much X."""


# ------------------------------------------------------------------------------------------------------------- memory mapping

# A *step* is an instruction of a program, and a *segment* a range of consecutive steps. A *use* is one access of a tensor by a
# step. The *relaxation* is the problem as a MILP without integrality. *Fewer for large programs*: the number of iterations is
# divided by ``1 + uses / iteration_uses``, where ``iteration_uses`` is a parameter of
# :mod:`stowplan.portfolio.memory_mapping.guided`, because each iteration takes longer if there are many uses. A *deterministic
# second* is CP-SAT's own unit of work, which it counts and does not measure.

MAPPING_ROUNDS = Rate(300_000, "rounds of ruin and recreate, times accesses of tensors by steps")
MAPPING_SIMPLEX = Rate(6_000, "simplex iterations of the relaxation, fewer for large programs")
MAPPING_SEGMENT_SIMPLEX = Rate(2_000, "simplex iterations of the relaxations of segments")
MAPPING_SEGMENT_NODES = Rate(5, "nodes of branch and bound of a segment")
MAPPING_MILP_NODES = Rate(100, "nodes of branch and bound of the MILP by another solver")
MAPPING_CPSAT = Rate(1 / 12, "deterministic seconds of CP-SAT on the complete model")
MAPPING_NEIGHBOURHOODS = Rate(0.3, "estimated seconds of large-neighbourhood search")

#: Estimated seconds that :data:`MAPPING_NEIGHBOURHOODS` counts for a neighbourhood: for building its model, for each literal of
#: the model, and for each deterministic second that CP-SAT works on it.
BUILD_SECONDS, LITERAL_SECONDS, CPSAT_SECONDS = 0.05, 1e-4, 10.0

# ------------------------------------------------------------------------------------------------------------------- packing

PACKING_PAIRS = Rate(60_000_000, "pairs of buffers compared by the greedy search")
PACKING_NODES = Rate(80_000_000, "nodes of the exact search, times buffers")
PACKING_PLACED = Rate(130_000, "buffers placed from the bottom up")
PACKING_REUSE = Rate(2_000_000, "steps of annealing of reuse penalties, times buffers")
PACKING_CPSAT = Rate(1 / 16, "deterministic seconds of CP-SAT for packing")
BANKED_PAIRS = Rate(300_000, "pairs of buffers compared by the greedy search of banks")
BANKED_NODES = Rate(200, "nodes of branch and bound of the choice of banks")
BANKED_CHOICE_CPSAT = Rate(1 / 10, "deterministic seconds of CP-SAT on a choice of banks")
BANKED_CPSAT = Rate(1 / 4, "deterministic seconds of CP-SAT on the whole model")
BANKED_ATTEMPTS = Rate(1, "choices of banks that are packed")

# ------------------------------------------------------------------------------------------ operator order, rematerialization

# A *run* is one execution of an operator; with rematerialization, an operator can run several times. A *minimum cut* is taken
# in the graph of operators. A *staged MILP* decides which operators run in each stage, the part of a plan between the first
# runs of two chosen operators. *Times operators plus 300* means the product with the number of operators plus 300.

ORDER_SETS = Rate(4_000_000, "sets of operators that the exact search looks at, times operators")
ORDER_ROUNDS = Rate(1_000, "rounds of local search, times operators")
ORDER_CUTS = Rate(20, "operators for which a minimum cut is computed")
REMAT_STEPS = Rate(3_000_000, "steps of local search, times runs")
REMAT_SIMULATIONS = Rate(3_000, "simulations, times operators")
REMAT_CUTS = Rate(20_000, "operators for which minimum cuts are computed, times operators")
REMAT_PROGRAMS = Rate(400, "staged MILPs that are solved, times operators")
REMAT_DRAFTS = Rate(2_000, "plans with copies to the host that are tried, times operators")
REMAT_PEAKS = Rate(12_000_000, "checks of whether a search for the least peak is over, times operators plus 300")
REMAT_CPSAT = Rate(1, "deterministic seconds of CP-SAT for rematerialization")

# ------------------------------------------------------------------------------------- tiers, banks, instructions on an array
# A *move* of annealing puts a tensor into another tier, and may put others out of it. A *neighbourhood* is a part of a plan
# that an exact solver rebuilds. The MILP of bank mapping is solved in *stages*, in which more and more variables must be whole
# numbers. A *placement* puts one instruction on a tile, in a slot.

TIER_MOVES = Rate(100_000, "moves of simulated annealing")
TIER_ROUNDS = Rate(0.2, "neighbourhoods of large-neighbourhood search")
TIER_SOLVERS = Rate(1, "units of TIER_NODES or TIER_PARTS nodes of branch and bound")
TIER_CPSAT = Rate(1 / 4, "deterministic seconds of CP-SAT for tiers")
BANK_NODES = Rate(100, "nodes of branch and bound of a stage of bank mapping")
LLM_CPSAT = Rate(1 / 2, "deterministic seconds of CP-SAT for LLM placement")
BANK_CPSAT = Rate(1 / 4, "deterministic seconds of CP-SAT for bank mapping")
MODULO_PLACEMENTS = Rate(2_500, "placements of the search")
MODULO_POLICY_PLACEMENTS = Rate(1_000, "instructions placed by the learned policy")
MODULO_NODES = Rate(50, "nodes of branch and bound of an initiation interval")
MODULO_CPSAT = Rate(1 / 4, "deterministic seconds of CP-SAT for an initiation interval")

#: Nodes of branch and bound that are one unit of :data:`TIER_SOLVERS`. TIER_NODES is for the MILP. TIER_PARTS is for the search
#: that branches on how many of the weights of one size are in the fast tiers (:mod:`stowplan.models.tier_placement.counts`).
TIER_NODES, TIER_PARTS = 150, 10
