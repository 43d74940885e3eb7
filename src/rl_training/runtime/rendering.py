"""Rendering a policy that plays: in a window, or in a video file through Gymnasium's RecordVideo (extra `video`)."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, SupportsFloat

import gymnasium as gym
import numpy as np

from rl_training.errors import RunError, UserError, one_line


class Rendering(NamedTuple):
    """How an evaluation is rendered: the render mode its environment is made with, and what wraps it."""

    render_mode: str
    wrap: Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]


class WholeEpisodes(gym.wrappers.RecordVideo[Any, Any]):
    """An episode that is left before its end is not written: nobody keeps its file, and encoding takes longer than playing."""

    _is_over = False

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        self._is_over = terminated or truncated
        return obs, reward, terminated, truncated, info

    def close(self) -> None:
        if self.recording and not self._is_over:
            self.recording, self.recorded_frames = False, []
        super().close()  # type: ignore[no-untyped-call]  # Gymnasium says nothing of it


@contextlib.contextmanager
def rendering(*, render: bool, record: str | Path | None, num_episodes: int) -> Iterator[Rendering | None]:
    """Nothing, a window, or a video file that is there, whole, when the block has ended well."""
    if record is None:
        yield Rendering("human", _shown) if render else None
        return
    if render:
        raise UserError("render and record: choose one, an environment has one render mode")
    file = Path(record)
    if file.suffix != ".mp4":
        raise UserError(f"{file}: a recording is an .mp4 file")
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise UserError(f"{file}: {'is a folder' if file.is_dir() else 'its folder does not exist'}")
    if importlib.util.find_spec("moviepy") is None:
        raise UserError("recording needs the package moviepy: pip install 'rl-training[video]'")
    # Beside the file, so that it is renamed into place.
    with _no_window(), tempfile.TemporaryDirectory(dir=file.absolute().parent, prefix=".recording-") as folder:
        episodes = Path(folder) / "episodes"

        def recorded(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
            if not isinstance(_first_frame(env), np.ndarray):
                raise UserError(f"{_name(env)} gives no images to record (render mode rgb_array)")
            # One file per episode: RecordVideo keeps a recording's frames in memory until it is written.
            return WholeEpisodes(env, str(episodes), episode_trigger=lambda episode: episode < num_episodes, name_prefix="of")

        yield Rendering("rgb_array", recorded)
        parts = [episodes / f"of-episode-{episode}.mp4" for episode in range(num_episodes)]
        os.replace(_joined(parts, Path(folder)), file)


@contextlib.contextmanager
def _no_window() -> Iterator[None]:
    """pygame draws without a screen: it would look for one, and complain on stderr where there is none."""
    had = os.environ.get("SDL_VIDEODRIVER")
    os.environ["SDL_VIDEODRIVER"] = "dummy"
    try:
        yield
    finally:
        if had is None:
            del os.environ["SDL_VIDEODRIVER"]
        else:
            os.environ["SDL_VIDEODRIVER"] = had


def _shown(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    if env.render_mode != "human":
        raise UserError(f"{_name(env)} cannot be shown in a window (it has no render mode human)")
    _first_frame(env)
    return env


def _first_frame(env: gym.Env[Any, Any]) -> Any:
    """What the environment renders after a reset; a missing package or screen is found here, before an episode is played."""
    try:
        env.reset(seed=0)
        return env.render()
    except Exception as error:  # whatever draws (pygame, OpenGL, ...) may raise anything: it is chained, and the reason said
        raise UserError(f"{_name(env)} cannot be rendered: {one_line(error)}") from error


def _name(env: gym.Env[Any, Any]) -> str:
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def _joined(parts: list[Path], folder: Path) -> Path:
    """All episodes in one file, their pictures copied as they are."""
    if len(parts) == 1:
        return parts[0]
    import imageio_ffmpeg  # type: ignore[import-untyped]  # no stubs; moviepy brings it

    names, joined = folder / "parts.txt", folder / "joined.mp4"
    names.write_text("".join(f"file '{part.relative_to(folder)}'\n" for part in parts), encoding="utf-8")
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-f", "concat", "-i", str(names), "-c", "copy", str(joined)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(f"the episodes' videos could not be joined: {' '.join(done.stderr.split())}")
    return joined
