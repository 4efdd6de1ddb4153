"""EGRL: a population of graph networks and Boltzmann chromosomes, and a soft actor-critic. Khadka et al., ICLR 2021.

A *map* gives the weights and the output of each layer of a network a tier of the chip; the chip's compiler *rectifies* it, that
is, moves tensors that have no room to other tiers. The *members* of the population are policies of two encodings: weights of a
*graph network*, and *chromosomes*, which have a prior and a temperature for each tensor instead of weights. The *learner* is
the soft actor-critic. Members and learner make *proposals*, which are maps; an *evaluation* is the run of one proposal on the
simulated chip, and its reward is the *fitness* of the member. A *posterior* is the probabilities of tiers that a policy
computes. In shapes, N is the number of layers, T of tiers, and B the size of a batch.

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
