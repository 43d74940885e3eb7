"""Beyond the Rainbow's row: what it is on images, and ε beside its noise until half of the run. Its mathematics are its parts'."""

from __future__ import annotations

from typing import Any

import pytest

from rl_training.experiment.config import TrainConfig, load_config
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.settings import ValueSettings
from rl_training.models.image_torsos import ImpalaTorso
from rl_training.models.spectral import SpectralConv2d
from rl_training.runtime import schedules
from rl_training.runtime.trainer_setup import build_network, with_torso

ATARI = {"obs_shape": [4, 84, 84], "obs_dtype": "uint8", "num_actions": 6, "action": {"kind": "discrete", "n": 6, "start": 0}}
IMAGE = {"image": {"shape": [84, 84, 4], "dtype": "uint8", "axes": [2, 0, 1], "high": 255}}


def config_of(**algo_kwargs: Any) -> TrainConfig:
    return TrainConfig(algo="btr", env_id="ALE/Pong-v5", seed=1, total_timesteps=1_000, output_dir="unused", algo_kwargs=algo_kwargs)


def test_images_are_read_by_the_paper_s_torso() -> None:
    """IMPALA twice as wide, spectral norm on its twelve residual convolutions, and 64 channels of 6 × 6 after max-pooling."""
    config, said = with_torso(config_of(), {**ATARI, **IMAGE})
    assert said == "impala (what btr has)"
    network: Any = build_network(config, {**ATARI, **IMAGE}, seed=0)
    torso = network.torso
    assert isinstance(torso, ImpalaTorso) and torso.out_dim == 64 * 6 * 6
    assert sum(isinstance(part, SpectralConv2d) for part in torso.modules()) == 12
    head = network.head
    assert head.value is not None and head.noise_dim and head.embedding.in_features == 64
    assert head.counts == {"online": 8, "target": 8, "acting": 8} and head.advantage.layers[0].out_features == 512


def test_another_torso_can_be_named() -> None:
    config, said = with_torso(config_of(torso="nature"), {**ATARI, **IMAGE})
    assert said == "nature (as configured)" and config.settings.to_dict()["torso"] == "nature"


def test_epsilon_stands_beside_the_noise_until_half_of_the_run() -> None:
    # 200M frames are 50M steps: of the way from 1 to .01, 1/e is left after 4% of them, and ε is 0 from half of them on. A short run keeps
    # that. The public code takes 1/2,000,000 of what is left away at each step, which is written out here.
    config = load_config("btr/atari_pong")
    settings = config.settings
    assert isinstance(settings, ValueSettings) and config.total_timesteps == 5_000_000
    epsilon = schedules.epsilon(settings, config.horizon)
    left = (1 - 1 / 2_000_000) ** 1_000_000
    found = [epsilon(step) for step in (0, 1_000_000, 2_000_000, 24_999_999, 25_000_000)]
    assert found == pytest.approx([1.0, 0.01 + 0.99 * left, 0.01 + 0.99 * left**2, 0.01 + 0.99 * left**25, 0.0], rel=1e-5)
    at_once = settings.model_copy(update={"exploration_fraction": 0.0})
    assert schedules.epsilon(at_once, config.horizon)(0) == 0.01
    beta = schedules.priority_beta(settings, config.horizon)
    assert beta(5_000_000) == pytest.approx(0.46)  # .4 + .6·5M/50M
    alone = get_algorithm_spec("btr").parse({"noisy_epsilon": False})
    assert isinstance(alone, ValueSettings) and schedules.epsilon(alone, 1_000)(0) == 0.0
