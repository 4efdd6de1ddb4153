"""EGRL: a population of graph networks and Boltzmann chromosomes beside a soft actor-critic. Khadka et al., ICLR 2021.

Each file knows only those before it:

- ``config``: everything that decides how EGRL is trained
- ``network``: graph U-Nets (Gao and Ji, 2019) as EGRL's actor and critic
- ``learner``: the soft actor-critic for one-step episodes of many discrete actions
- ``population``: the population and its evolution
- ``checkpoint``: files of EGRL: their formats, and members and maps as they are kept in them
- ``policy``: a trained graph network on networks it may not have seen
- ``workload``: a network that EGRL is trained on
- ``trainer``: training of EGRL on one or more networks
"""
