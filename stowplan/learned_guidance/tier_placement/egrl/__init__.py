"""EGRL: a population of graph networks and Boltzmann chromosomes, and a soft actor-critic. Khadka et al., ICLR 2021.

Each file imports only files above it in this list:

- ``config``: the configuration of training
- ``network``: graph U-Nets (Gao and Ji, 2019) as EGRL's actor and critic
- ``learner``: the soft actor-critic for one-step episodes of many discrete actions
- ``population``: the population and its evolution
- ``checkpoint``: the file formats of EGRL, and encoding of members and maps
- ``policy``: a trained graph network, which can place any network of layers
- ``workload``: a network that EGRL is trained on
- ``trainer``: training of EGRL on one or more networks
"""
