"""`replay_device`: replay where it is learned from, or in host memory with a copy a batch; what fits nowhere is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from command_line import Cli
from rl_training import resources
from rl_training.data import PrioritizedRecurrentReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer
from rl_training.data.transferred import TransferredReplay
from rl_training.errors import ConfigError, UserError
from rl_training.runtime import replay_place
from rl_training.runtime.off_policy import SampledUpdates
from rl_training.runtime.replay_place import place_replay
from rl_training.runtime.workflows import train
from rl_training.speed.graphs import HostFedUpdates
from value_rows import ADAM, LEARNED, config_of, parts_of

CPU, META = torch.device("cpu"), torch.device("meta")


class Setup:
    """What `place_replay` asks of one."""

    def __init__(self, device: str, replay_device: str = "auto") -> None:
        self.device, self.notes = torch.device(device), {}
        self.config = type("Config", (), {"replay_device": replay_device, "replay_shards": 0})


def on(device: torch.device) -> Any:
    """A buffer that says where it is, checked as if it were there, and lies on the CPU."""
    resources.require_memory(1_000, device=str(device), what="a replay buffer of 10 items")
    return ReplayBuffer(10, (2,), device="cpu")


@pytest.mark.parametrize(
    ("requested", "gpu", "host", "place", "why"),
    [
        ("auto", 10_000, 10_000, "cuda", "where it is learned from"),
        ("auto", 1_010, 10_000, "cpu", "needs 1000 B on cuda, but only 947 B is available"),  # a sixteenth of the GPU is not replay's
        ("auto", 100, 10_000, "cpu", "needs 1000 B on cuda, but only 94 B is available"),
        ("cuda", 10_000, 10_000, "cuda", "as configured"),
        ("cpu", 10_000, 10_000, "cpu", "as configured"),
    ],
)
def test_where_it_lives(requested: str, gpu: int, host: int, place: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "available_memory", lambda device: gpu if device.startswith("cuda") else host)
    monkeypatch.setattr(replay_place, "TransferredReplay", lambda held, device: ("copied to", device.type))
    setup: Any = Setup("cuda", requested)
    held, reached = place_replay(setup, on, sample=1)
    assert setup.notes["replay_device"] == f"{place} ({why})"
    assert reached is held if place == "cuda" else reached == ("copied to", "cuda")


def test_what_fits_nowhere_is_refused_with_both_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "available_memory", lambda device: 160 if device.startswith("cuda") else 500)
    both: Any = Setup("cuda")
    with pytest.raises(UserError, match=r"needs 1000 B on cuda, but only 150 B is available and 500 B on the host: lower algo_kwargs"):
        place_replay(both, on, sample=1)
    one: Any = Setup("cuda", "cuda")
    with pytest.raises(UserError, match=r"needs 1000 B on cuda, but only 150 B is available: lower"):
        place_replay(one, on, sample=1)
    cpu: Any = Setup("cpu")
    with pytest.raises(UserError, match=r"needs 1000 B on cpu, but only 500 B is available: lower"):
        place_replay(cpu, on, sample=1)


def test_a_gpus_replay_needs_a_gpus_learner() -> None:
    setup: Any = Setup("cpu", "cuda")
    with pytest.raises(ConfigError, match="replay_device: cuda is for a run that learns there"):
        place_replay(setup, on, sample=1)


def test_too_much_is_refused_on_the_command_line(cli: Cli, here: Path) -> None:
    line = cli.refused("train", "--config", "dqn/cartpole", "--device", "cpu", "--set", "algo_kwargs.buffer_capacity=9000000000")
    assert "a replay buffer of 9,000,000,000 items needs" in line and "is available: lower" in line


def test_it_is_saved_and_noted(tmp_path: Path) -> None:
    result = train(config_of("dqn", output_dir=str(tmp_path), total_timesteps=60))
    assert "replay_device: cpu" in (result.run_dir / "config.yaml").read_text()
    notes = json.loads((result.run_dir / "metadata.json").read_text())
    assert "cpu (where it is learned from)" in json.dumps(notes)


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer, PrioritizedRecurrentReplayBuffer])
def test_a_batch_goes_over_as_it_is(kind: type[Any]) -> None:
    """Every field the same; memory that is shared on the host is shared there too, and nothing is shared between the two."""

    def filled() -> Any:
        rng = np.random.default_rng(0)
        if kind is PrioritizedRecurrentReplayBuffer:
            buffer = kind(60, 1, (3,), 5, 2)
            for t in range(23):
                h = np.full((1, 2), t, np.float32)
                buffer.add(
                    env_index=0, obs=rng.random(3), actions=t, rewards=t, next_obs=rng.random(3), dones=t % 9 == 8,
                    episode_start=t % 9 == 0, initial_state=(h, h),
                )  # fmt: skip
            return buffer
        buffer = kind(60, (3,))
        for t in range(20):
            buffer.add(obs=rng.random(3), actions=t, rewards=t, next_obs=rng.random(3), dones=0.0, discounts=0.9)
        return buffer

    plain, moved = filled(), TransferredReplay(filled(), CPU)
    mine, theirs = moved.sample(8), plain.sample(8)
    assert list(mine) == list(theirs) and len(moved) == len(plain)
    for name, value in theirs.items():
        assert torch.equal(mine[name], value) and mine[name].dtype == value.dtype
    if kind is PrioritizedRecurrentReplayBuffer:
        assert mine["obs"].untyped_storage().data_ptr() == mine["next_obs"].untyped_storage().data_ptr()
    again = moved.sample(8)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine) and not torch.equal(again["actions"], mine["actions"])


@pytest.mark.parametrize("algo", ["dqn", "rainbow_dqn", "r2d2"])
def test_updates_fed_from_the_host_are_the_eager_ones(algo: str) -> None:
    """As on a GPU, without capture: the batch in static tensors, priorities back to the host's tree."""
    beta = None if algo == "dqn" else lambda step: 0.5
    one, other = (parts_of(algo, algo_kwargs=ADAM) for _ in range(2))
    eager = SampledUpdates(one.learner, one.replay, 16, beta)
    fed = HostFedUpdates(other.learner, TransferredReplay(other.replay, CPU), 16, beta, CPU)  # type: ignore[arg-type]
    for step in range(1, 61):
        theirs, mine = eager(step).metrics, fed(step).metrics
    assert fed.overlaps == (beta is None)
    torch.testing.assert_close(mine["loss"], theirs["loss"].detach(), rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(other.learner.state_dict()["q_network"], one.learner.state_dict()["q_network"], **LEARNED)
    if beta is not None:
        sampled: list[Tensor] = [torch.as_tensor(each.replay.state_dict()["sampler"]["priorities"]) for each in (other, one)]
        torch.testing.assert_close(*sampled, rtol=1e-3, atol=1e-5)
