"""Everything that decides how EGRL is trained: the paper's values (table 2), values for processors, and the ablations.

What table 2 leaves out is as in code that is public of its authors' field; ``docs/reference/egrl.md`` sets both columns
side by side.
"""

from __future__ import annotations

from typing import Annotated, Literal

from stowplan.errors import UsageError
from stowplan.learned_guidance.tier_placement.graph import FeatureSet
from stowplan.learned_guidance.training.settings import Fraction, Hyperparameters, Range


class EgrlConfig(Hyperparameters, frozen=True, kw_only=True):
    """How to train."""

    evaluations: Annotated[int, Range(1)] = 4_000
    """Training ends after so many evaluations of the chip, cumulative over the population and the learner's rollouts."""
    features: FeatureSet = "chip"
    """What policies see of a layer."""
    noise: Annotated[float, Range(0.0, 0.99)] = 0.0
    """Standard deviation of the chip's measurements, relative to the latency."""

    # Networks
    hidden: Annotated[int, Range(1)] = 32
    heads: Annotated[int, Range(1)] = 4
    depth: Annotated[int, Range(1)] = 3
    """Levels of the Graph U-Net."""
    critic_pooling: Literal["max", "mean"] = "mean"

    # Population
    population: Annotated[int, Range(0)] = 20
    """Members; 0 for the ablation that learns by policy gradient alone."""
    boltzmann_fraction: Fraction = 0.2
    """Part of the first population that are Boltzmann chromosomes."""
    elite_fraction: Fraction = 0.1
    tournament: Annotated[int, Range(1)] = 3
    crossover_fraction: Fraction = 0.3
    """Part of the selected members that are crossed with an elite, or seeded by a graph network."""
    seeding: bool = True
    """Whether a chromosome that meets a graph network takes over its posterior; else nothing comes of it."""
    mutation_fraction: Fraction = 0.85
    """Part of the selected members that mutate."""
    weight_fraction: Fraction = 0.1
    """Part of a graph network's weights that a mutation changes."""
    mutation_strength: Annotated[float, Range(0.0)] = 0.3
    """Standard deviation of such a change, relative to the weight."""
    super_mutation: Fraction = 0.05
    """Part of the changed weights that change ten times as much."""
    reset_mutation: Fraction = 0.02
    """Part of the changed weights that are drawn anew."""
    chromosome_moves: Annotated[float, Range(0.0)] = 1.3
    """Tensors that a mutation of a chromosome sends to another tier, on average; 0: all priors are multiplied by N(1, 0.1)."""
    temperatures: tuple[float, float] = (0.02, 0.1)
    """Of the first chromosomes, drawn evenly."""
    seeded_temperature: Annotated[float, Range(1e-06)] = 0.1
    """Of a chromosome that took over a graph network's posterior."""
    least_temperature: Annotated[float, Range(1e-06)] = 0.02
    """Temperatures of chromosomes do not fall below this."""
    repair: bool = True
    """Whether a chromosome proposes what the compiler makes of its draw, and takes that over; else its draw."""
    repair_networks: bool = True
    """Whether graph networks and the learner's rollouts propose that as well (with ``repair``)."""
    least_networks: Fraction = 0.5
    """Part of the population that is kept for graph networks, whatever their fitness."""
    least_chromosomes: Fraction = 0.2
    """The same of chromosomes."""
    seed_actions: bool = True
    """Whether a seeded chromosome's prior is the graph network's likeliest map; else its posterior."""
    reevaluate: bool = False
    """Whether elites are evaluated again in each generation; else they keep their fitness."""
    frozen: bool = False
    """For attribution: graph networks of the population stay as they were drawn at random."""

    # Learner
    learner: bool = True
    """False for the ablation that evolves only."""
    rollouts: Annotated[int, Range(0)] = 3
    """Noisy proposals of the learner's policy in each generation."""
    migrate_rollouts: bool = True
    """Whether these proposals stand for selection beside the population, as chromosomes; else their rewards alone are kept."""
    exploration: Fraction = 0.01
    """Part of the tensors that such a proposal sends to a tier drawn evenly."""
    updates_per_evaluation: Annotated[float, Range(0.0)] = 0.25
    batch_size: Annotated[int, Range(1)] = 8
    replay_size: Annotated[int, Range(1)] = 100_000
    actor_rate: Annotated[float, Range(0.0)] = 1e-3
    critic_rate: Annotated[float, Range(0.0)] = 1e-3
    entropy: Annotated[float, Range(0.0)] = 0.05
    """Weight of the policy's entropy."""
    discount: Fraction = 0.99
    bootstrap: bool = False
    """Whether the value of the next state counts, as where an episode does not end. It does after its one step."""
    target_rate: Fraction = 1e-3
    """Of the soft updates of target networks (with ``bootstrap``)."""
    action_noise: Annotated[float, Range(0.0)] = 0.2
    """Standard deviation of the noise on one-hot actions that the critic learns from, which stay from 0 to 1."""
    actor_actions: Literal["likeliest", "soft"] = "soft"
    """What the critic judges of the policy: probabilities times the one-hot of the likeliest, or all probabilities."""
    imitation: Annotated[float, Range(0.0)] = 0.0
    """Weight of the cross entropy between the policy and the best maps: demonstrations, and the best found of each network."""

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.temperatures
        if not 0.0 < low <= high:
            raise UsageError(f"training: temperatures is {self.temperatures}, expected two above 0, the lower first")
        if self.hidden % self.heads:
            raise UsageError(f"training: hidden is {self.hidden}, expected a multiple of heads ({self.heads})")
        if not self.population and not self.learner:
            raise UsageError("training: found neither a population nor a learner, expected one of them or both")
        if self.learner and not self.rollouts and not self.population:
            raise UsageError("training: rollouts is 0, expected 1 or more where there is no population")

    def evolution_only(self) -> EgrlConfig:
        """The paper's ablation EA."""
        return self.changed(learner=False)

    def gradient_only(self) -> EgrlConfig:
        """The paper's ablation PG."""
        return self.changed(population=0)
