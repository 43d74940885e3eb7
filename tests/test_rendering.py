"""`eval --record` and `--render`: what is written, and what cannot be."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from command_line import Cli
from rl_training import DQN
from rl_training.errors import UserError
from rl_training.runtime.workflows import evaluate_checkpoint

needs_video = pytest.mark.skipif(
    any(importlib.util.find_spec(module) is None for module in ("moviepy", "pygame")), reason="the extra `video` is not installed"
)
LENGTH = 6


@pytest.fixture
def short(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> str:
    """A checkpoint whose episodes end after 6 steps: drawing and encoding take most of the time."""
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")  # pygame without a screen
    done = cli("train", "--config", "small.yaml", "--quiet", "--set", f"env_kwargs.max_episode_steps={LENGTH}", "--total-timesteps", "30")
    assert done.code == 0, done.err
    return done.out.strip()


def frames(file: Path) -> int:
    import imageio_ffmpeg

    number, _ = imageio_ffmpeg.count_frames_and_secs(str(file))
    return int(number)


@needs_video
def test_episodes_are_recorded_one_after_another(cli: Cli, short: str) -> None:
    before = set(Path().iterdir())
    done = cli("eval", "--checkpoint", short, "--episodes", "2", "--record", "play.mp4")
    assert done.code == 0, done.err
    assert "\nepisodes  2, greedy\n" in done.out and "\nlength    6.0\n" in done.out and done.out.endswith("recorded  play.mp4\n")
    # a picture after each reset and each of the 6 steps, and nothing of a third episode
    assert frames(Path("play.mp4")) == 2 * (LENGTH + 1)
    assert set(Path().iterdir()) - before == {Path("play.mp4")}
    # one episode where none are asked for; an older recording is written over
    again = cli("eval", "--checkpoint", short, "--record", "play.mp4")
    assert "\nepisodes  1, greedy\n" in again.out and frames(Path("play.mp4")) == LENGTH + 1


@needs_video
@pytest.mark.parametrize("driver", [None, "x11"])
def test_recording_looks_for_no_screen(cli: Cli, short: str, driver: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is none, SDL would write of it to stderr. A window that is shown later finds the driver that was there."""
    monkeypatch.delenv("SDL_VIDEODRIVER") if driver is None else monkeypatch.setenv("SDL_VIDEODRIVER", driver)
    drivers: list[str | None] = []
    make = gym.make
    monkeypatch.setattr(gym, "make", lambda *args, **kwargs: drivers.append(os.environ.get("SDL_VIDEODRIVER")) or make(*args, **kwargs))
    assert cli("eval", "--checkpoint", short, "--record", "play.mp4").code == 0
    assert drivers == ["dummy"] and os.environ.get("SDL_VIDEODRIVER") == driver


@needs_video
def test_episodes_are_shown_in_a_window(cli: Cli, short: str, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[Any] = []
    make = gym.make
    monkeypatch.setattr(gym, "make", lambda *args, **kwargs: modes.append(kwargs.get("render_mode")) or make(*args, **kwargs))
    done = cli("eval", "--checkpoint", short, "--render")
    assert done.code == 0, done.err
    assert "\nepisodes  1, greedy\n" in done.out and modes == ["human"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--record", "play.avi"], "play.avi: a recording is an .mp4 file"),
        (["--record", "gone/play.mp4"], "gone/play.mp4: its folder does not exist"),
        (["--record", "folder.mp4"], "folder.mp4: is a folder"),
        (["--record", "play.mp4", "--render"], "render and record: choose one"),
        (["--record", "play.mp4", "--episodes", "0"], "Invalid value for '--episodes'"),
    ],
)
def test_bad_recordings(cli: Cli, short: str, arguments: list[str], message: str) -> None:
    Path("folder.mp4").mkdir()
    assert message in cli.refused("eval", "--checkpoint", short, *arguments)


def test_without_the_extra_it_says_what_to_install(cli: Cli, short: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "moviepy" else real(name, *rest))
    assert "pip install 'rl-training[video]'" in cli.refused("eval", "--checkpoint", short, "--record", "play.mp4")


class Blind(gym.Env[Any, Any]):
    """Has no pictures."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 1.0, True, False, {}

    def render(self) -> Any:
        raise NotImplementedError("nothing to see")


class Headless(Blind):
    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = None


class Plain(gym.Env[Any, Any]):
    """Knows nothing of rendering."""

    observation_space, action_space = Blind.observation_space, Blind.action_space
    reset, step = Blind.reset, Blind.step

    def __init__(self) -> None:
        pass


@needs_video
def test_an_environment_that_takes_no_render_mode_is_one_line(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gym.registry, "Plain-v0", gym.envs.registration.EnvSpec("Plain-v0", entry_point=Plain))
    settings: dict[str, Any] = {"hidden_sizes": [4], "batch_size": 4, "learning_starts": 5, "eval_episodes": 1}
    checkpoint = DQN("Plain-v0", output_dir=tmp_path / "runs", **settings).learn(10).checkpoint_path
    said = cli.refused("eval", "--checkpoint", str(checkpoint), "--record", "play.mp4")
    assert said == "error: environment Plain-v0 cannot be rendered: it takes no render_mode (rgb_array)"


@needs_video
def test_an_environment_without_pictures_is_refused(tmp_path: Path) -> None:
    small: dict[str, Any] = {"hidden_sizes": [4], "batch_size": 4, "learning_starts": 5, "eval_episodes": 1}
    checkpoint = DQN(Blind, output_dir=tmp_path, **small).learn(10).checkpoint_path
    with pytest.raises(UserError, match="Blind cannot be rendered: NotImplementedError: nothing to see"):
        evaluate_checkpoint(checkpoint, num_episodes=1, env=Blind, record=tmp_path / "play.mp4")
    with pytest.raises(UserError, match="Headless cannot be shown in a window"):
        evaluate_checkpoint(checkpoint, num_episodes=1, env=Headless, render=True)
    assert not list(tmp_path.glob("*.mp4")) and not list(tmp_path.glob(".recording*"))


class Interrupted(Blind):
    """Has pictures, and is interrupted in its third step."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.left = 3
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self.left -= 1
        if not self.left and self.render_mode == "rgb_array":
            raise KeyboardInterrupt
        return np.zeros(2, np.float32), 1.0, not self.left, False, {}

    def render(self) -> Any:
        return np.zeros((16, 16, 3), np.uint8)


@needs_video
def test_a_recording_that_is_interrupted_is_not_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an episode of thousands of steps that would take a minute, for a file that is thrown away."""
    small: dict[str, Any] = {"hidden_sizes": [4], "batch_size": 4, "learning_starts": 5, "eval_episodes": 1}
    checkpoint = DQN(Interrupted, output_dir=tmp_path, **small).learn(10).checkpoint_path
    monkeypatch.setattr(gym.wrappers.RecordVideo, "stop_recording", lambda self: pytest.fail("is encoded"))
    with pytest.raises(KeyboardInterrupt):
        evaluate_checkpoint(checkpoint, num_episodes=1, env=Interrupted, record=tmp_path / "play.mp4")
    assert not list(tmp_path.glob("*.mp4")) and not list(tmp_path.glob(".recording*"))


def test_gymnasiums_warnings_come_without_their_colours(cli: Cli, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = gym.make

    def warned(*args: Any, **kwargs: Any) -> Any:
        gym.logger.warn("this one is old")
        return make(*args, **kwargs)

    monkeypatch.setattr(gym, "make", warned)
    assert "warning: this one is old" in cli("eval", "--checkpoint", str(trained), "--episodes", "1").err.splitlines()
