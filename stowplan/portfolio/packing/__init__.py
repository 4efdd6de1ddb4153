"""How packing problems are solved: greedy orders, search over canonical plans, CP-SAT."""
