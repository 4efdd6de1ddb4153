"""The configuration of training of EGRL: the paper's values (table 2), values for CPUs, and the ablations.

Values that table 2 omits follow public code of the same field. ``docs/reference/egrl.md`` compares both presets.
"""

from __future__ import annotations

from typing import Annotated, Literal

from stowplan.errors import UsageError
from stowplan.learned_guidance.tier_placement.graph import FeatureSet
from stowplan.learned_guidance.training.settings import Fraction, Hyperparameters, Range


class EgrlConfig(Hyperparameters, frozen=True, kw_only=True):
    """Configuration of training. Raises UsageError if a value has a wrong type, is out of range, or does not fit another
    value."""

    evaluations: Annotated[int, Range(1)] = 4_000
    """Number of evaluations on the chip after which training ends, over the population and the learner's rollouts."""
    features: FeatureSet = "chip"
    """Node features of a layer."""
    noise: Annotated[float, Range(0.0, 0.99)] = 0.0
    """Standard deviation of the chip's measurements, relative to the latency."""

    # Networks
    hidden: Annotated[int, Range(1)] = 32
    """Width of the hidden layers, a multiple of ``heads``."""
    heads: Annotated[int, Range(1)] = 4
    """Number of attention heads."""
    depth: Annotated[int, Range(1)] = 3
    """Levels of the Graph U-Net."""
    critic_pooling: Literal["max", "mean"] = "mean"
    """How the critic combines the embeddings of all layers."""

    # Population
    population: Annotated[int, Range(0)] = 20
    """Number of members; 0 for the ablation that learns by policy gradient only."""
    boltzmann_fraction: Fraction = 0.2
    """Fraction of Boltzmann chromosomes in the first population."""
    elite_fraction: Fraction = 0.1
    """Fraction of the members, the fittest, that stay unchanged; they are at least two."""
    tournament: Annotated[int, Range(1)] = 3
    """Number of members that are drawn for a place in the next generation; the fittest of them gets it."""
    crossover_fraction: Fraction = 0.3
    """Fraction of the selected members that are crossed with an *elite*, one of the fittest members. A chromosome and a graph
    network are not crossed: the chromosome is *seeded*, that is, made from the graph network's posterior."""
    seeding: bool = True
    """Whether a chromosome crossed with a graph network gets its posterior; otherwise this crossing has no effect."""
    mutation_fraction: Fraction = 0.85
    """Fraction of the selected members that mutate."""
    weight_fraction: Fraction = 0.1
    """Fraction of a graph network's weights that a mutation changes."""
    mutation_strength: Annotated[float, Range(0.0)] = 0.3
    """Standard deviation of such a change, relative to the weight."""
    super_mutation: Fraction = 0.05
    """Fraction of the changed weights that change ten times as much."""
    reset_mutation: Fraction = 0.02
    """Fraction of the changed weights that are drawn again."""
    chromosome_moves: Annotated[float, Range(0.0)] = 1.3
    """Mean number of tensors that a mutation of a chromosome moves to another tier. If it is 0, all priors are multiplied by
    random factors from a normal distribution of mean 1 and standard deviation 0.1."""
    temperatures: tuple[float, float] = (0.02, 0.1)
    """Range of the temperatures of the first chromosomes, which are drawn uniformly."""
    seeded_temperature: Annotated[float, Range(1e-06)] = 0.1
    """Temperature of a chromosome seeded with a graph network's posterior."""
    least_temperature: Annotated[float, Range(1e-06)] = 0.02
    """Least temperature of chromosomes."""
    repair: bool = True
    """Whether a chromosome proposes its draw as rectified by the compiler, and adopts it; otherwise it proposes the draw
    itself."""
    repair_networks: bool = True
    """Whether graph networks and the learner's rollouts also propose rectified maps (with ``repair``)."""
    least_networks: Fraction = 0.5
    """Least fraction of graph networks in the population, whatever their fitness."""
    least_chromosomes: Fraction = 0.2
    """Least fraction of chromosomes in the population."""
    seed_actions: bool = True
    """Whether a seeded chromosome's prior is the graph network's likeliest map; otherwise it is its posterior."""
    reevaluate: bool = False
    """Whether elites are evaluated again in each generation; otherwise they keep their fitness."""
    frozen: bool = False
    """Whether the graph networks of the population keep their random initial weights, to see what evolving them contributes."""

    # Learner
    learner: bool = True
    """Whether there is a learner, a soft actor-critic; False for the ablation with evolution only."""
    rollouts: Annotated[int, Range(0)] = 3
    """Number of noisy proposals of the learner's policy in each generation."""
    migrate_rollouts: bool = True
    """Whether these proposals take part in selection, as chromosomes; otherwise only their rewards are kept."""
    exploration: Fraction = 0.01
    """Fraction of the tensors that such a proposal places in a uniformly drawn tier."""
    updates_per_evaluation: Annotated[float, Range(0.0)] = 0.25
    """Steps of the learner for each evaluation."""
    batch_size: Annotated[int, Range(1)] = 8
    """Number of maps in a batch."""
    replay_size: Annotated[int, Range(1)] = 100_000
    """Number of maps of all networks in the replay buffer."""
    actor_rate: Annotated[float, Range(0.0)] = 1e-3
    """Learning rate of the actor."""
    critic_rate: Annotated[float, Range(0.0)] = 1e-3
    """Learning rate of the critic."""
    entropy: Annotated[float, Range(0.0)] = 0.05
    """Weight of the policy's entropy."""
    discount: Fraction = 0.99
    """Factor of the value of the next state (with ``bootstrap``)."""
    bootstrap: bool = False
    """Whether targets include the value of the next state, as if an episode did not end after its only step."""
    target_rate: Fraction = 1e-3
    """Rate of the soft updates of target networks (with ``bootstrap``)."""
    action_noise: Annotated[float, Range(0.0)] = 0.2
    """Standard deviation of the noise on the critic's one-hot actions, which are clipped to [0, 1]."""
    actor_actions: Literal["likeliest", "soft"] = "soft"
    """Input of the critic in the actor's loss: probabilities times the one-hot of the likeliest tier, or all probabilities."""
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
