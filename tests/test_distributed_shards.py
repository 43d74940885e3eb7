"""Replay in shards: drawn from as one replay, saved by each shard, and what is lost with one is said."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distributed_runs import Killer, Steps, config, fake
from fake_ray import FakeCluster
from rl_training.data import PrioritizedReplayBuffer
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.distributed.shards import ShardedReplay
from rl_training.runtime.run import Run
from rl_training.runtime.workflows import resume_training, train

__all__ = ["fake"]  # the fixture


def shards_of(fake: FakeCluster, first_place: int) -> list[Any]:
    places = sorted({place for place, _ in fake.started if place >= first_place})
    return [fake.process(place).object()._buffer for place in places]


@pytest.mark.parametrize("algo", ["dqn", "prioritized_dqn", "r2d2"])
def test_a_run_learns_from_shards_and_is_resumed_with_them(algo: str, tmp_path: Path, fake: FakeCluster) -> None:
    part = train(config(tmp_path, algo, steps=600, num_envs=2, actors=2, replay_shards=3))
    saved = shards_of(fake, 2)
    assert len(saved) == 3 and all(len(shard) for shard in saved)
    names = sorted(file.name for file in part.checkpoint_path.iterdir())
    assert names == [
        "manifest.json",
        "model.safetensors",
        *(f"replay-{index}.safetensors" for index in range(3)),
        "replay.safetensors",
        "training.safetensors",
    ]
    states = [shard.state_dict()["storage"]["rows"].clone() for shard in saved]
    fake.started.clear()
    seen = Restored(fake)
    resumed = resume_training(part.run_dir, total_timesteps=1_200, callbacks=[seen])
    assert resumed.metrics["global_step"] >= 1_200
    for before, after in zip(states, seen.rows, strict=True):
        assert torch.equal(before, after)
    older = [folder for folder in part.checkpoint_path.parent.iterdir() if folder != resumed.checkpoint_path and not folder.is_symlink()]
    assert not [file for folder in older for file in folder.glob("replay*")]


class Restored(Callback):
    """What the shards hold when a resumed run starts."""

    def __init__(self, fake: FakeCluster) -> None:
        self.fake = fake

    def on_start(self, run: Run) -> None:
        self.rows = [shard.state_dict()["storage"]["rows"].clone() for shard in shards_of(self.fake, 2)]


def test_shards_are_drawn_from_as_one_replay(fake: FakeCluster) -> None:
    """Items with leaves 1 … 40 over three shards: each is drawn in proportion to its leaf, with weights (min / leaf)^β."""
    make = partial(PrioritizedReplayBuffer, obs_shape=(1,), alpha=1.0, priority_eps=0.0)
    replay = ShardedReplay(make, shards=3, capacity=300, time_axis=False, device=torch.device("cpu"), seed=0)
    replay.attach(fake, first_place=0)
    leaves = np.arange(1.0, 41.0)
    for some in np.split(leaves, [5, 30]):  # of unequal mass
        flat = np.zeros(len(some), np.float32)
        obs = some[:, None].astype(np.float32)
        fields = {"obs": obs, "next_obs": obs, "rewards": flat, "dones": flat, "actions": flat.astype(np.int64), "priorities": some}
        replay.add_items(fields)
    assert replay.num_transitions == len(replay) == 40
    counts = np.zeros(41)
    for _ in range(400):
        batch = replay.sample(50, beta=0.5)
        drawn = batch["obs"][:, 0].numpy()
        np.testing.assert_allclose(batch["weights"].numpy(), (drawn.min() / drawn) ** 0.5, rtol=1e-6)
        counts += np.bincount(drawn.astype(int), minlength=41)
    expected = 20_000 * leaves / leaves.sum()
    # draws inside a shard are stratified, between shards multinomial: no item's count varies more than independent draws would
    assert (np.abs(counts[1:] - expected) < 5 * np.sqrt(expected)).all()
    replay.update_priorities(batch["indices"], torch.full((50,), 1e-9))
    for _ in range(5):  # those asked for before the update, and by masses from before it
        replay.sample(50)
    last = set(batch["obs"][:, 0].tolist())
    assert not last & set(replay.sample(50)["obs"][:, 0].tolist())


def test_a_shard_that_dies_loses_its_items_and_says_so(tmp_path: Path, fake: FakeCluster) -> None:
    seen = Steps()
    with pytest.warns(RuntimeWarning, match=r"replay shard 1 died and is started again: its \d+ items are lost"):
        run = config(tmp_path, "prioritized_dqn", steps=2_000, num_envs=2, actors=2, replay_shards=2)
        result = train(run, callbacks=[Killer(fake, 3, after=8), seen])
    assert result.metrics["global_step"] >= 2_000
    assert [place for place, _ in fake.started] == [2, 3, 0, 1, 3]
    assert seen.records[-1]["distributed/lost_items"] > 0
    assert len(shards_of(fake, 3)[0]) > 0
