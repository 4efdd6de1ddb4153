"""The network: shapes, ranges, what it starts from, that it sees all of its input and learns; and the model over it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from stowplan.errors import InputError, UsageError  # noqa: E402
from stowplan.learned_guidance.mcts.search import SearchConfig, search  # noqa: E402
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame  # noqa: E402
from stowplan.learned_guidance.memory_mapping.game.game import Action  # noqa: E402
from stowplan.learned_guidance.memory_mapping.muzero.config import NetworkConfig, TrainingConfig  # noqa: E402
from stowplan.learned_guidance.memory_mapping.muzero.network import (  # noqa: E402
    MMapNetwork,
    TorchModel,
    to_tensors,
)
from stowplan.learned_guidance.memory_mapping.observation.layout import BufferFeature, ObservationConfig  # noqa: E402
from stowplan.learned_guidance.memory_mapping.observation.observer import (  # noqa: E402
    Observations,
    Observer,
    empty_observations,
)
from tests.learned_guidance.memory_mapping.programs import program  # noqa: E402

SMALL = NetworkConfig(
    observation=ObservationConfig(
        future_buffers=1,
        same_tensor_buffers=2,
        id_buckets=5,
        map_rows=16,
        map_columns=32,
        profile_bins=32,
        supply_slots=8,
    ),
    hidden=24,
    map_patch=4,
    map_stages=((16, 1), (6, 2)),
    map_bottleneck=3,
    encoder_layers=(20, 18),
    dynamics_blocks=2,
    dynamics_width=16,
    head_layers=(12,),
    value_bins=11,
    reward_bins=9,
)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def some_observations(config: ObservationConfig, batch: int, seed: int = 0) -> Observations:
    rng = np.random.default_rng(seed)
    found = empty_observations(config, batch)
    for array in found:
        drawn = rng.integers(0, 256, array.shape) if array.dtype == np.uint8 else rng.normal(size=array.shape)
        array[:] = drawn
    ids = found.buffers[..., BufferFeature.TENSOR_ID :]
    ids[:] = rng.integers(0, config.id_buckets, ids.shape)
    return found


@pytest.mark.parametrize("config", [SMALL, NetworkConfig()], ids=["small", "cpu"])
def test_shapes_and_ranges(config: NetworkConfig) -> None:
    network = MMapNetwork(config)
    hidden, policy, value = network.initial(to_tensors(some_observations(config.observation, 3)))
    assert (hidden.shape, policy.shape, value.shape) == ((3, config.hidden), (3, 3), (3, config.value_bins))
    for _ in range(3):
        assert hidden.min() >= 0
        assert hidden.max() <= 1
        # A state that is the same everywhere would say nothing.
        assert (hidden.amax(1) - hidden.amin(1) > 0.9).all()
        hidden, reward, policy, value = network.recurrent(hidden, torch.tensor([0, 1, 2]))
        assert reward.shape == (3, config.reward_bins)
        assert (policy.shape, value.shape) == ((3, 3), (3, config.value_bins))


def test_sizes_of_the_presets() -> None:
    def parameters(config: NetworkConfig) -> int:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in MMapNetwork(config).parameters())

    assert 200_000 < parameters(NetworkConfig()) < 300_000
    assert 5_000_000 < parameters(TrainingConfig.paper().network) < 20_000_000


@pytest.mark.parametrize(
    "sizes", [{"map_stages": ((16, 1), (24, 1 << 63))}, {"dynamics_blocks": 1 << 63}], ids=["encoder", "dynamics"]
)
def test_blocks_that_nobody_makes_are_refused(sizes: dict[str, Any]) -> None:
    with pytest.raises((InputError, UsageError), match=r"expected (at most|1 to) 1000"):
        NetworkConfig(**sizes)


def test_the_paper_preset_runs() -> None:
    config = TrainingConfig.paper().network
    seen = config.observation
    assert (seen.future_buffers, seen.map_rows, seen.map_columns, seen.profile_bins) == (5, 128, 128, 32768)
    model = TorchModel(MMapNetwork(config))
    hidden, logits, _ = model.initial(some_observations(seen, 1))
    assert hidden.shape == (1, config.hidden)
    assert np.isfinite(logits).all()


def test_an_untrained_network_prefers_nothing() -> None:
    model = TorchModel(MMapNetwork(NetworkConfig()))
    hidden, logits, value = model.initial(some_observations(model.network.config.observation, 8))
    assert np.abs(logits).max() < 0.05
    assert np.abs(value).max() < 0.05
    _, reward, logits, value = model.recurrent(hidden, np.zeros(8, np.int64))
    assert max(np.abs(logits).max(), np.abs(value).max(), np.abs(reward).max()) < 0.05


def test_states_of_a_batch_do_not_meet() -> None:
    network = MMapNetwork(SMALL)
    observations = some_observations(SMALL.observation, 5)
    together = network.initial(to_tensors(observations)).hidden
    for row in range(5):
        alone = network.initial(to_tensors(Observations(*(array[row : row + 1] for array in observations)))).hidden
        torch.testing.assert_close(alone[0], together[row])


@pytest.mark.parametrize("field", Observations._fields)
def test_all_parts_are_seen(field: str) -> None:
    """Every number of every part changes the hidden state."""
    network = MMapNetwork(SMALL)
    observations = some_observations(SMALL.observation, 1)
    before = network.initial(to_tensors(observations)).hidden
    array = getattr(observations, field)[0]
    rng = np.random.default_rng(1)
    for place in rng.permutation(array.size)[:100].tolist():
        index = np.unravel_index(place, array.shape)
        kept = array[index]
        is_id = field == "buffers" and index[-1] >= BufferFeature.TENSOR_ID
        array[index] = (
            (kept + 1) % SMALL.observation.id_buckets if is_id else 255 - kept if kept.dtype == np.uint8 else kept + 3
        )
        after = network.initial(to_tensors(observations)).hidden
        array[index] = kept
        assert not torch.equal(before, after), index


def test_actions_lead_apart() -> None:
    network = MMapNetwork(SMALL)
    hidden = network.initial(to_tensors(some_observations(SMALL.observation, 1))).hidden.repeat(3, 1)
    after = network.recurrent(hidden, torch.arange(3)).hidden
    assert min((after[one] - after[other]).abs().max() for one, other in ((0, 1), (0, 2), (1, 2))) > 0.01


def test_learns_what_it_is_shown() -> None:
    """Policy, value and reward of a few states by heart, through the dynamics; every weight takes part."""
    network = MMapNetwork(SMALL)
    observations = to_tensors(some_observations(SMALL.observation, 6))
    generator = torch.Generator().manual_seed(0)
    actions = torch.arange(6) % 3
    best = torch.randint(0, 3, (2, 6), generator=generator)
    values = torch.rand(2, 6, generator=generator) * 4 - 2
    rewards = torch.rand(6, generator=generator) - 0.5
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    for _ in range(150):
        first = network.initial(observations)
        second = network.recurrent(first.hidden, actions)
        loss = functional.cross_entropy(second.reward_logits, network.reward_support.two_hot(rewards))
        for step, found in enumerate((first, second)):
            loss = loss + functional.cross_entropy(found.policy_logits, best[step])
            loss = loss + functional.cross_entropy(found.value_logits, network.value_support.two_hot(values[step]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for parameter, old in zip(network.parameters(), before, strict=True):
        assert not torch.equal(parameter, old)
    first = network.initial(observations)
    second = network.recurrent(first.hidden, actions)
    for step, found in enumerate((first, second)):
        assert torch.equal(found.policy_logits.argmax(1), best[step])
        torch.testing.assert_close(network.value_support.mean(found.value_logits), values[step], rtol=0, atol=0.2)
    torch.testing.assert_close(network.reward_support.mean(second.reward_logits), rewards, rtol=0, atol=0.2)


def test_the_same_seed_makes_the_same_network() -> None:
    torch.manual_seed(7)
    one = MMapNetwork(SMALL)
    torch.manual_seed(7)
    other = MMapNetwork(SMALL)
    for first, second in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(first, second)


def test_weights_are_kept() -> None:
    one, other = MMapNetwork(SMALL), MMapNetwork(SMALL)
    other.load_state_dict(one.state_dict())
    observations = to_tensors(some_observations(SMALL.observation, 2))
    assert torch.equal(one.initial(observations).hidden, other.initial(observations).hidden)


def test_the_model_says_what_the_network_says() -> None:
    network = MMapNetwork(SMALL)
    # Far from even, so that means differ.
    for head in (network.policy, network.value, network.reward):
        torch.nn.init.normal_(head.last.weight)
    model = TorchModel(network)
    observations = some_observations(SMALL.observation, 4)
    hidden, logits, value = model.initial(observations)
    expected = network.initial(to_tensors(observations))
    torch.testing.assert_close(hidden, expected.hidden)
    np.testing.assert_allclose(logits, expected.policy_logits.detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(value, network.value_support.mean(expected.value_logits).detach(), rtol=1e-4, atol=1e-5)
    actions = np.array([2, 0, 1, 1])
    hidden, reward, logits, value = model.recurrent(hidden, actions)
    then = network.recurrent(expected.hidden, torch.from_numpy(actions))
    torch.testing.assert_close(hidden, then.hidden)
    np.testing.assert_allclose(logits, then.policy_logits.detach(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(value, network.value_support.mean(then.value_logits).detach(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(reward, network.reward_support.mean(then.reward_logits).detach(), rtol=1e-4, atol=1e-5)


def test_what_is_learned_counts_at_once() -> None:
    network = MMapNetwork(SMALL)
    model, observations = TorchModel(network), some_observations(SMALL.observation, 1)
    with torch.no_grad():
        network.policy.last.bias[Action.DROP] = 5.0
    assert model.initial(observations)[1][0].argmax() == Action.DROP


@pytest.mark.parametrize("method", ["puct", "gumbel"])
def test_a_game_is_searched(method: str) -> None:
    """From the game through observation, network and search to the end of it."""
    problem = program(["a >b", "b >c", "a c >d", "d >e"], dict.fromkeys("abcde", 20), inputs="a", outputs="e", capacity=60)
    game = CompiledGame(problem)
    observer, out = Observer(game, SMALL.observation), empty_observations(SMALL.observation, 2)
    model = TorchModel(MMapNetwork(SMALL))
    states = [game.reset(), game.reset()]
    rng = np.random.default_rng(0)
    while not states[0].is_over:
        for row, state in enumerate(states):
            observer.observe(state, out, row)
        legal = np.array([state.legal for state in states])
        found = search(model, out, legal, SearchConfig(method=method, simulations=6), rng, explore=False)
        assert found.action[0] == found.action[1]
        for state, action in zip(states, found.action.tolist(), strict=True):
            state.step(action)
    assert states[0].plan() == states[1].plan()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": 0}, "hidden is 0, expected 1 or more"),
        ({"value_limit": -1.0}, "value_limit is -1.0, expected 1e-06 or more"),
        ({"map_stages": ()}, "map_stages: found none"),
        ({"map_stages": ((4, 0),)}, "map_stages: found"),
        ({"head_layers": (0,)}, "head_layers: found"),
        ({"map_patch": 3}, "observation.map_rows: found 16, expected a multiple of 6"),
        ({"profile_patch": 24}, "observation.profile_bins: found 32, expected a multiple of 24"),
        ({"supply_patch": 16}, "observation.supply_slots: found 8, expected a multiple of 16"),
    ],
)
def test_bad_sizes_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises((InputError, UsageError), match=message):
        SMALL.changed(**changes)
