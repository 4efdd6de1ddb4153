"""EGRL: a population of graph networks and Boltzmann chromosomes beside a soft actor-critic. Khadka et al., ICLR 2021."""
