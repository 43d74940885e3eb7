"""Images of every form come out of the adapter channels first, and go into `predict` as their environment gives them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.envs.episodes import episode_seed
from rl_training.envs.factory import make_envs
from rl_training.envs.images import ImageForm, image_form, is_image
from rl_training.errors import CheckpointError, ConfigError, SpaceError, UserError
from rl_training.experiment.checkpointing import open_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.saved_spaces import require_saved_spaces
from rl_training.runtime.workflows import evaluate_checkpoint, load_policy, train


class Pixels(gym.Env[Any, int]):
    """Random images of one shape; an episode is three steps."""

    def __init__(self, shape: tuple[int, ...] = (12, 10, 3), dtype: Any = np.uint8, high: int = 255) -> None:
        self.observation_space = gym.spaces.Box(0, high, tuple(shape), dtype)
        self.action_space = gym.spaces.Discrete(3)  # type: ignore[assignment]

    def _look(self) -> Any:
        space = self.observation_space
        self.last = self.np_random.integers(0, int(np.max(space.high)) + 1, space.shape or ()).astype(space.dtype)
        return self.last

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._time = 0
        return self._look(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._time += 1
        return self._look(), 1.0, self._time == 3, False, {}


FORMS = [
    ((12, 10), np.uint8, "auto", (1, 12, 10), (0, 1)),
    ((12, 10, 3), np.uint8, "auto", (3, 12, 10), (2, 0, 1)),
    ((3, 12, 10), np.uint8, "auto", (3, 12, 10), (0, 1, 2)),
    ((5, 5, 5), np.uint8, "auto", (5, 5, 5), (2, 0, 1)),  # ties: the last one
    ((5, 5, 5), np.uint8, "first", (5, 5, 5), (0, 1, 2)),
    ((4, 9, 4), np.uint8, "auto", (4, 4, 9), (2, 0, 1)),
    ((2, 12, 10), np.uint8, "last", (10, 2, 12), (2, 0, 1)),
    ((10, 8, 7), np.bool_, "auto", (7, 10, 8), (2, 0, 1)),
]


@pytest.mark.parametrize(("shape", "dtype", "channels", "read", "axes"), FORMS)
def test_every_form_is_read_channels_first(shape: Any, dtype: Any, channels: Any, read: Any, axes: Any) -> None:
    """By a naive loop: out[c, y, x] is the value at that row, column and channel of the environment's own image."""
    high = 1 if dtype == np.bool_ else 255
    image = np.random.default_rng(0).integers(0, high + 1, (2, *shape)).astype(dtype)
    form = image_form(gym.spaces.Box(0, high, shape, dtype), channels)
    assert form is not None and form.read_shape == read and form.axes == axes and form.high == high
    out = form.read(image)
    assert out.shape == (2, *read) and out.dtype == np.uint8 and out.flags.c_contiguous and not np.shares_memory(out, image)
    for c, y, x in np.ndindex(*read):
        index = (y, x) if len(shape) == 2 else (c, y, x) if axes == (0, 1, 2) else (y, x, c)
        assert out[1][c, y, x] == image[1][index]
    assert ImageForm.from_described(form.describe()) == form
    np.testing.assert_array_equal(form.read(image[0]), out[0])


def test_what_an_image_is() -> None:
    assert not is_image(gym.spaces.Box(0, 255, (12,), np.uint8)) and not is_image(gym.spaces.Box(0, 1, (8, 8, 3), np.float32))
    assert image_form(gym.spaces.Box(0, 255, (2, 8, 8, 3), np.uint8)) is None and image_form(gym.spaces.Discrete(3)) is None
    narrow = image_form(gym.spaces.Box(0, 15, (8, 8), np.uint8))
    assert narrow is not None and narrow.high == 15


@pytest.mark.parametrize(
    ("env_kwargs", "message"),
    [
        ({"image_channels": "frist"}, "env_kwargs.image_channels must be first or last, not 'frist'"),
        ({"shape": [9, 4, 9]}, r"images \(9, 4, 9\) may be the first or the last axis, not the middle one: say env_kwargs.image_channels"),
        ({"shape": [9, 9], "image_channels": "last"}, r"images of shape \(9, 9\) have no axis of channels"),
        ({"wrappers": ["flatten"], "image_channels": "last"}, "is for images, and these observations are none"),
        ({"wrappers": ["normalize_observation"]}, "normalize_observation is for vectors"),
    ],
)
def test_what_cannot_be_read_is_refused(env_kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_envs(Pixels, num_envs=1, seed=0, env_kwargs=env_kwargs)


@pytest.mark.parametrize("vectorization", ["auto", "sync", "async"])
@pytest.mark.parametrize(("shape", "dtype"), [((6, 5, 3), np.uint8), ((4, 4, 4), np.bool_), ((6, 5), np.uint8)])
def test_the_adapter_gives_final_and_first_images_in_one_form(vectorization: Any, shape: Any, dtype: Any) -> None:
    kwargs = {"shape": shape, "dtype": dtype, "high": 1 if dtype == np.bool_ else 255}
    envs = make_envs(Pixels, num_envs=2, seed=3, env_kwargs=kwargs, vectorization=vectorization)
    form = envs.image
    assert form is not None and envs.single_observation_space.shape == form.read_shape
    # The same episodes by hand: the environment's own images, converted.
    seen = [envs.reset()]
    finals = []
    for _ in range(4):
        step = envs.step(np.zeros(2, np.int64))
        seen.append(step.obs)
        finals.append(step.final_obs)
    saved = envs.state_dict()
    again = make_envs(Pixels, num_envs=2, seed=3, env_kwargs=kwargs, vectorization=vectorization)
    restored = again.load_state_dict(saved)
    assert restored.restored.all()
    np.testing.assert_array_equal(restored.obs, seen[-1])
    np.testing.assert_array_equal(envs.step(np.zeros(2, np.int64)).obs, again.step(np.zeros(2, np.int64)).obs)
    for env in (envs, again):
        env.close()

    for index in range(2):
        own = Pixels(**kwargs)
        first, _ = own.reset(seed=episode_seed(3, "train", index, 0))
        images = [first, *(own.step(0)[0] for _ in range(3))]
        second, _ = own.reset(seed=episode_seed(3, "train", index, 1))
        for t, image in enumerate(images[:3]):
            np.testing.assert_array_equal(seen[t][index], form.read(image))
        np.testing.assert_array_equal(finals[2][index], form.read(images[3]))  # what the last action led to
        np.testing.assert_array_equal(seen[3][index], form.read(second))


def config(tmp_path: Path, algo: str = "dqn", env_kwargs: dict[str, Any] | None = None, **algo_kwargs: Any) -> TrainConfig:
    return TrainConfig(
        algo=algo,
        env_id="callable:Pixels",
        seed=1,
        total_timesteps=60,
        output_dir=tmp_path,
        device="cpu",
        eval_episodes=1,
        eval_interval=0,
        log_interval=0,
        checkpoint_interval=0,
        env_kwargs=env_kwargs or {},
        algo_kwargs=algo_kwargs,
    )


VALUE: dict[str, Any] = {"learning_starts": 20, "batch_size": 4, "buffer_capacity": 100, "train_frequency": 10}
SEQUENCES: dict[str, Any] = {**VALUE, "sequence_length": 3}
ROLLOUT: dict[str, Any] = {"num_steps": 20, "minibatch_size": 10, "update_epochs": 1}


@pytest.mark.parametrize(
    ("algo", "settings", "follow"),
    [
        ("dqn", VALUE, {"hidden_sizes": [128]}),
        ("iqn", {**VALUE, "num_quantiles": 4, "num_target_quantiles": 4}, {"hidden_sizes": [128]}),
        ("rainbow_dqn", VALUE, {"hidden_sizes": [128]}),
        ("qr_dqn", {**VALUE, "hidden_sizes": [16, 8]}, {"hidden_sizes": [16, 8]}),
        ("drqn", SEQUENCES, {"hidden_sizes": [], "features_dim": 128, "recurrent_hidden_size": 128}),
        ("r2d2", {**SEQUENCES, "features_dim": 9, "core": "gru"}, {"hidden_sizes": [], "features_dim": 9, "recurrent_hidden_size": 128}),
        ("ppo", ROLLOUT, {"hidden_sizes": [128], "activation": "relu"}),
        ("recurrent_ppo", ROLLOUT, {"hidden_sizes": [], "features_dim": 128, "recurrent_hidden_size": 128}),
    ],
)
def test_every_row_learns_from_images_with_the_torso_that_fits(tmp_path: Path, algo: str, settings: Any, follow: Any) -> None:
    result = train(config(tmp_path, algo, **settings), env=Pixels)
    checkpoint = open_checkpoint(result.checkpoint_path)
    saved = checkpoint.config.settings.to_dict()
    assert saved["torso"] == "minatar" and {key: saved[key] for key in follow} == follow
    policy = load_policy(result.checkpoint_path)
    assert policy.network.facts.convolutional
    own = np.random.default_rng(0).integers(0, 256, (2, 12, 10, 3), dtype=np.uint8)
    # `predict` takes the environment's own form, one image or several; the network reads channels first.
    several, _ = policy.predict(own)
    one, _ = policy.predict(own[0])
    assert several.shape == (2,) and one == several[0]
    read = torch.from_numpy(np.ascontiguousarray(own.transpose(0, 3, 1, 2)))
    outputs, _ = policy.network.step(read, policy.network.initial_state(2), torch.zeros(2, dtype=torch.bool))
    np.testing.assert_allclose(policy.outputs(own)[0], outputs.detach().numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(UserError, match=r"must have shape \(12, 10, 3\)"):
        policy.predict(read[0].numpy())
    assert evaluate_checkpoint(result.checkpoint_path, num_episodes=2, env=Pixels)["eval_return_mean"] == 3.0


def test_what_was_chosen_is_said(tmp_path: Path) -> None:
    result = train(config(tmp_path, **VALUE), env=Pixels)
    notes = json.loads((result.run_dir / "metadata.json").read_text())
    assert notes["observations"] == "images of 12 × 10, 3 channels (the last axis of (12, 10, 3)), divided by 255 in the network"
    assert notes["torso"] == "minatar (the shorter side has up to 16 pixels)"


@pytest.mark.parametrize(
    ("env_kwargs", "settings", "error", "message"),
    [
        ({}, {"torso": "nature"}, ConfigError, "torso nature needs images of at least 36 × 36, and these are 12 × 10"),
        ({"shape": [2, 2]}, {}, ConfigError, "torso minatar needs images of at least 3 × 3, and these are 2 × 2"),
        ({}, {"torso": "mlp"}, SpaceError, "dqn with torso: mlp cannot learn from .*; leave torso out"),
        ({"dtype": np.float32, "high": 1}, {}, SpaceError, "gives its images as uint8"),
        ({}, {"torso_width": 2}, ConfigError, "torso_width needs torso: impala"),
        ({}, {"torso": "impala", "torso_padding": "same"}, ConfigError, "torso_padding needs torso: nature"),
        ({}, {"initialization": "he"}, ConfigError, "initialization must be"),
        ({}, {"torso": "minatar", "spectral_norm": True}, ConfigError, "spectral_norm needs torso: impala"),
        ({}, {"torso": "impala", "torso_width": 65}, ConfigError, "torso_width must be <= 64"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, env_kwargs: Any, settings: Any, error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        train(config(tmp_path, **VALUE, **settings), env=lambda: Pixels(**env_kwargs))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"axes": [1, 0, 2]}, "axes must bring the channels"),
        ({"axes": [0, 1]}, "axes must bring the channels"),
        ({"shape": [9, 9, 3]}, "but image.shape is"),
        ({"high": 0}, "image.high"),
        ({"dtype": "float32"}, "image.dtype"),
        ({"more": 1}, "image.more"),
    ],
)
def test_a_strangers_image_is_checked(changed: dict[str, Any], message: str) -> None:
    image = {"shape": [12, 10, 3], "dtype": "uint8", "axes": [2, 0, 1], "high": 255}
    spaces = {"obs_shape": [3, 12, 10], "obs_dtype": "uint8", "action": {"kind": "discrete", "n": 3, "start": 0}, "num_actions": 3}
    require_saved_spaces({**spaces, "image": image}, source="here")
    with pytest.raises(CheckpointError, match=message):
        require_saved_spaces({**spaces, "image": {**image, **changed}}, source="here")
