"""Target descriptions, cost models, simulators and the front ends that make problems of compiled programs."""
