"""The uniform ring: what goes in comes out, uniformly, and exactly again after a restart."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from rl_training.data import ReplayBuffer
from rl_training.data.storage import Field, RingStorage
from rl_training.errors import UserError


def transitions(start: int, count: int, obs_shape: tuple[int, ...] = (4,)) -> dict[str, np.ndarray]:
    """Transition i is recognisable in every field: obs = i, next_obs = i + .5, reward = -i, action = i % 7, done = i % 2."""
    i = np.arange(start, start + count)
    obs = np.broadcast_to(i.reshape(-1, *(1,) * len(obs_shape)), (count, *obs_shape)).astype(np.float32)
    return {"obs": obs, "actions": i % 7, "rewards": -i.astype(np.float64), "next_obs": obs + 0.5, "dones": i % 2 == 1}


def assert_consistent(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    i = -batch["rewards"]
    shape = (-1, *(1,) * (batch["obs"].ndim - 1))
    assert torch.equal(batch["obs"].float(), i.reshape(shape).expand_as(batch["obs"]))
    assert torch.equal(batch["next_obs"].float(), batch["obs"].float() + 0.5)
    assert torch.equal(batch["actions"], i.long() % 7)
    assert torch.equal(batch["dones"], (i.long() % 2).float())
    return i.long()


@pytest.mark.parametrize("obs_shape", [(), (4,), (2, 3, 5)])
def test_round_trip_of_every_field(obs_shape: tuple[int, ...]) -> None:
    buffer = ReplayBuffer(50, obs_shape, seed=1)
    buffer.add_batch(**transitions(0, 30, obs_shape))
    batch = buffer.sample(200)
    assert set(assert_consistent(batch).tolist()) <= set(range(30))
    assert batch["obs"].shape == (200, *obs_shape) and batch["obs"].dtype == torch.float32
    assert batch["actions"].dtype == torch.int64
    assert all(batch[key].dtype == torch.float32 and batch[key].shape == (200,) for key in ("rewards", "dones"))
    assert "discounts" not in batch


def test_add_takes_array_likes_and_equals_add_batch() -> None:
    many, single = ReplayBuffer(9, (4,)), ReplayBuffer(9, (4,))
    data = transitions(0, 13)
    many.add_batch(**data)
    for i in range(13):
        row = {key: value[i] for key, value in data.items()}
        row["obs"] = row["obs"].tolist() if i % 2 else torch.tensor(row["obs"], requires_grad=True)
        single.add(**row)
    assert len(many) == len(single) == many.num_transitions == 9
    first, second = many.state_dict(), single.state_dict()
    # 13 at once into 9 slots keep the last nine, where one by one they would lie too
    assert first["storage"]["position"] == second["storage"]["position"] == 13 % 9
    assert torch.equal(first["storage"]["rows"], second["storage"]["rows"])


def test_ring_keeps_the_newest_items_across_many_wraps() -> None:
    buffer, added, rng = ReplayBuffer(16, (2,)), 0, np.random.default_rng(0)
    for _ in range(200):
        count = int(rng.integers(0, 20))
        buffer.add_batch(**transitions(added, count, (2,)))
        added += count
        if added:
            seen = assert_consistent(buffer.sample(300))
            assert len(buffer) == min(added, 16)
            assert set(seen.tolist()) == set(range(max(0, added - 16), added))


def test_sampling_is_uniform() -> None:
    buffer = ReplayBuffer(64, (1,), seed=3)
    buffer.add_batch(**transitions(0, 37, (1,)))
    drawn = torch.cat([buffer.sample(100)["rewards"] for _ in range(370)])
    counts = np.bincount(-drawn.long().numpy(), minlength=37)
    assert stats.chisquare(counts).pvalue > 1e-3


def test_integer_observations_keep_their_dtype() -> None:
    buffer = ReplayBuffer(4, (2, 2), obs_dtype=np.uint8)
    buffer.add(obs=np.full((2, 2), 255, np.uint8), actions=0, rewards=0.0, next_obs=np.zeros((2, 2), np.uint8), dones=False)
    batch = buffer.sample(2)
    assert batch["obs"].dtype == torch.uint8 and int(batch["obs"].min()) == 255


def test_continuous_actions() -> None:
    buffer = ReplayBuffer(4, (1,), action_shape=(3,), action_dtype=torch.float32)
    buffer.add(obs=[0.0], actions=[0.1, 0.2, 0.3], rewards=0.0, next_obs=[0.0], dones=0)
    assert torch.equal(buffer.sample(1)["actions"], torch.tensor([[0.1, 0.2, 0.3]]))


def test_discounts_come_with_every_transition_or_with_none() -> None:
    buffer = ReplayBuffer(4, (4,))
    buffer.add_batch(**transitions(0, 2), discounts=np.array([0.5, 0.25]))
    assert set(buffer.sample(50)["discounts"].tolist()) == {0.5, 0.25}
    with pytest.raises(ValueError, match="discounts"):
        buffer.add_batch(**transitions(2, 2))


def test_declared_fields_are_stored_and_sampled_and_others_passed_over() -> None:
    buffer = ReplayBuffer(10, (1,), extra={"next_action_masks": Field((2,), torch.bool)})
    fields = {"obs": [[1.0], [2.0]], "actions": [1, 2], "rewards": [1.0, 2.0], "next_obs": [[2.0], [3.0]], "dones": [0, 1]}
    masks = np.array([[True, False], [False, True]])
    buffer.add_batch(**fields, next_action_masks=masks)
    items = {name: np.array(value) for name, value in fields.items()}
    buffer.add_items({**items, "next_action_masks": masks, "weights_version": np.array([3, 3])})
    batch = buffer.sample(20)
    assert batch["next_action_masks"].dtype == torch.bool and "weights_version" not in batch
    assert torch.equal(batch["next_action_masks"][:, 0], batch["actions"] == 1)
    with pytest.raises(ValueError, match="have no next_action_masks"):
        buffer.add_batch(**fields)
    with pytest.raises(TypeError, match="holds no weights_version"):
        buffer.add_batch(**fields, next_action_masks=masks, weights_version=[1, 1])
    with pytest.raises(ValueError, match="saved items have the fields"):
        ReplayBuffer(10, (1,)).load_state_dict(buffer.state_dict())


def test_a_batch_is_a_copy() -> None:
    buffer = ReplayBuffer(4, (4,))
    buffer.add_batch(**transitions(3, 1))
    buffer.sample(1)["obs"].fill_(99.0)
    assert_consistent(buffer.sample(1))


@pytest.mark.parametrize(("key", "value"), [("obs", np.zeros((1, 4))), ("actions", np.zeros(1)), ("dones", np.zeros((2, 1)))])
def test_wrong_shapes_are_refused_not_broadcast(key: str, value: np.ndarray) -> None:
    buffer = ReplayBuffer(8, (4,))
    with pytest.raises(ValueError, match=key):
        buffer.add_batch(**(transitions(0, 2) | {key: value}))
    assert len(buffer) == 0


def test_empty_buffer_and_empty_capacity_are_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        ReplayBuffer(4, (4,)).sample(1)
    with pytest.raises(ValueError, match="capacity"):
        ReplayBuffer(0, (4,))


@pytest.mark.parametrize("added", [5, 23])
def test_restored_buffer_goes_on_identically(added: int) -> None:
    buffer = ReplayBuffer(10, (4,), seed=5)
    buffer.add_batch(**transitions(0, added), discounts=np.full(added, 0.9))
    buffer.sample(7)
    state = buffer.state_dict()
    # only rows in use: 4+4 observations, reward, done, discount as float32 and the action as int64, in whole words of 8 bytes
    assert state["storage"]["rows"].nbytes == min(added, 10) * (11 * 4 + 8 + 4)
    other = ReplayBuffer(10, (4,), seed=99)
    other.load_state_dict(state)
    for one in (buffer, other):
        one.add_batch(**transitions(added, 3), discounts=np.full(3, 0.9))
    for _ in range(3):
        first, second = buffer.sample(16), other.sample(16)
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) for key in first)


def test_a_copied_state_does_not_change_with_the_buffer() -> None:
    buffer = ReplayBuffer(3, (4,))
    buffer.add_batch(**transitions(0, 3))
    copied, shared = buffer.state_dict(), buffer.state_dict(copy=False)
    buffer.add_batch(**transitions(3, 3))
    assert copied["storage"]["rows"][0, 0] == 0  # the action comes first
    assert shared["storage"]["rows"][0, 0] == 3


def test_a_state_that_does_not_fit_is_refused() -> None:
    big, small, wide = ReplayBuffer(8, (4,)), ReplayBuffer(4, (4,)), ReplayBuffer(8, (5,))
    big.add_batch(**transitions(0, 6))
    with pytest.raises(ValueError, match="capacity"):
        small.load_state_dict(big.state_dict())
    with pytest.raises(ValueError, match=r"obs float32\[4\].* expected .*obs float32\[5\]"):
        wide.load_state_dict(big.state_dict())


def test_capacity_beyond_memory_is_refused_with_both_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.resources.available_memory", lambda device: 2**30)
    # 100 million transitions of (4 + 4 + 3) float32 and one int64, 56 bytes in whole words: 5.6e9 bytes = 5.215 GiB
    with pytest.raises(UserError, match=r"needs 5\.215 GiB on cpu, but only 1 GiB is available"):
        ReplayBuffer(100_000_000, (4,))
    with pytest.raises(UserError, match="TiB"):
        ReplayBuffer(10**12, (84, 84, 4), obs_dtype=torch.uint8)


def test_available_memory_of_this_machine_is_a_sensible_figure() -> None:
    from rl_training.resources import available_memory

    figure = available_memory()
    assert figure is None or 2**20 < figure < 2**50


def test_an_item_is_one_aligned_row() -> None:
    fields = {"a": Field((3,), torch.uint8), "b": Field((2, 1), torch.float32), "c": Field((), torch.int64), "d": Field((), torch.float64)}
    storage = RingStorage(5, fields)
    assert storage.row_bytes == 2 * 8 + 2 * 4 + 3 + 5  # the last five are padding
    values = {"a": np.array([[1, 2, 255]]), "b": np.array([[[3.0], [4.0]]]), "c": np.array([-5]), "d": np.array([0.1])}
    for _ in range(2):
        storage.add(values, 1)
    batch: dict[str, torch.Tensor] = {}
    storage.gather(np.array([0, 1, 1]), batch)
    for name, value in values.items():
        assert batch[name].dtype == fields[name].dtype and batch[name].shape == (3, *fields[name].shape)
        assert batch[name].tolist() == value.tolist() * 3
        assert storage.values(name).tolist() == value.tolist() * 2
    rows: dict[str, torch.Tensor] = {"weights": torch.ones(3)}
    storage.gather_rows(np.array([0, 1, 1]), rows)
    assert set(rows) == {"weights", "rows as uint8", "rows as float32", "rows as int64", "rows as float64"}
    unpacked = storage.unpack(rows)
    torch.testing.assert_close(unpacked, {**batch, "weights": torch.ones(3)}, rtol=0, atol=0)
    assert {name: value.dtype for name, value in unpacked.items() if name in fields} == {name: fields[name].dtype for name in fields}
    assert storage.unpack(batch) == batch, "what has no rows stays as it is"
    storage.read_only({"c", "d"})
    rows.clear()
    storage.gather_rows(np.array([1]), rows)
    assert set(storage.unpack(rows)) == {"c", "d"}
    assert storage.nbytes == 5 * 32 and storage.state_dict()["rows"].nbytes == 2 * 32


def test_a_saved_state_without_the_discounts_that_are_expected_is_refused() -> None:
    kept = ReplayBuffer(4, (2,))
    kept.add(obs=[0, 0], actions=0, rewards=0, next_obs=[0, 0], dones=0)
    waiting = ReplayBuffer(4, (2,))
    waiting.expect_discounts()
    with pytest.raises(ValueError, match="has_discounts is False"):
        waiting.load_state_dict(kept.state_dict())
