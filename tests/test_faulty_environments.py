"""Environments whose code fails: one line that names it, exit code 2 before anything is written and 1 afterwards, with the checkpoint."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from command_line import Cli
from rl_training.envs.episodes import ReplayableEpisodes
from rl_training.errors import RunError, one_line
from rl_training.experiment.checkpointing import open_checkpoint

MODULE = """
import sys
import gymnasium as gym
import numpy as np

class Faulty(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (4,))
    action_space = gym.spaces.Discrete(2)
    made = 0

    def __init__(self, fault):
        Faulty.made += 1
        self.fault, self.steps, self.t, self.trains = fault, 0, 0, Faulty.made == 1
        if fault == "made: OSError" or fault == "evaluation made" and not self.trains:
            raise OSError("no device")
        if fault == "made: exit":
            sys.exit(3)
        if fault == "no action space":
            del Faulty.action_space
        if fault == "reset: no seed":
            self.reset = lambda: (np.zeros(4, np.float32), {})

    def reset(self, seed=None, options=None):
        self.t = 0
        if self.fault == "reset: exit" or self.fault == "later reset: exit" and self.steps > 70:
            sys.exit(0)
        if self.fault == "reset: RuntimeError":
            raise RuntimeError("no\\nlevel")
        if self.fault == "reset: shape":
            return np.zeros(1, np.float32), {}
        if self.fault == "reset: only an observation":
            return np.zeros(4, np.float32)
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self.steps += 1
        self.t += 1
        obs, reward, ends = np.zeros(4, np.float32), 0.0, self.t == 10
        if self.steps > 70 and self.trains:
            if self.fault == "step: exit":
                sys.exit(0)
            if self.fault == "step: shape":
                obs = np.ones(1, np.float32)
            if self.fault == "end: shape" and ends:
                obs = np.ones(1, np.float32)
            if self.fault == "step: 1e39":
                obs = np.full(4, 1e39)
            if self.fault == "step: text":
                obs = "left"
            if self.fault == "reward: 1e39":
                reward = 1e39
            if self.fault == "reward: None":
                reward = None
            if self.fault == "four values":
                return obs, reward, ends, {}
        return obs, reward, ends, False, {}

    def close(self):
        if self.fault == "close":
            raise RuntimeError("cannot close")

gym.register("Faulty-v0", Faulty, disable_env_checker=True)
"""


def place(line: str, after: str = "") -> str:
    """Where the module has this line: the first one behind `after`."""
    return f"(faulty_env.py, line {1 + MODULE.count(chr(10), 0, MODULE.index(line, MODULE.index(after)))})"


@pytest.fixture
def faulty(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    Path("faulty_env.py").write_text(MODULE)
    monkeypatch.syspath_prepend(".")
    monkeypatch.delitem(sys.modules, "faulty_env", raising=False)
    gym.registry.pop("Faulty-v0", None)
    return cli


def arguments(fault: str, *more: str) -> list[str]:
    base = ["train", "--config", "small.yaml", "--quiet", "--set", "env_id=faulty_env:Faulty-v0"]
    return [*base, "--set", f"env_kwargs.fault='{fault}'", *more]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "made: OSError",
            "environment Faulty-v0 cannot be made with env_kwargs {'fault': 'made: OSError'}: OSError: no device "
            + place('raise OSError("no device")'),
        ),
        ("made: exit", "SystemExit: 3"),
        ("no action space", "environment Faulty-v0 has no action_space"),
        (
            "reset: RuntimeError",
            f"environment 0 raised RuntimeError: no level {place('raise Runtime')} in the reset of its episode 0",
        ),
        ("reset: exit", f"environment 0 raised SystemExit: 0 {place('sys.exit(0)')} in the reset of its episode 0"),
        ("reset: shape", "environment 0 gave an observation of shape (1,), not (4,), in the reset of its episode 0"),
        ("reset: only an observation", "episode 0: reset must take seed= and options= and return (obs, info)"),
        ("reset: no seed", "'seed' in the reset of its episode 0: reset must take seed= and options= and return (obs, info)"),
    ],
)
@pytest.mark.parametrize("vectorization", ["auto", "async"])
def test_what_cannot_begin_is_refused(faulty: Cli, vectorization: str, fault: str, message: str) -> None:
    line = faulty.refused(*arguments(fault, "--set", f"vectorization={vectorization}"))
    assert message in line
    assert ("must return" in line) == ("must return" in message)  # what its own code raises is no broken promise


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("step: exit", f"environment 0 raised SystemExit: 0 {place('sys.exit(0)', after='def step')} in step 1 of its episode 7"),
        ("later reset: exit", f"environment 0 raised SystemExit: 0 {place('sys.exit(0)')} in the reset of its episode 8"),
        ("step: shape", "environment 0 gave an observation of shape (1,), not (4,), in step 1 of its episode 7"),
        ("end: shape", "environment 0 gave an observation of shape (1,), not (4,), in step 10 of its episode 7"),
        ("step: 1e39", "environment 0 gave an observation that is not finite at its step 71"),
        ("step: text", "environment 0 gave an observation that is no array of numbers (ValueError: could not convert string"),
        ("reward: 1e39", "environment 0 gave a reward that is not finite in float32 at its step 71 (step 1 of its episode 7): 1.e+39"),
        ("reward: None", "episode 7: step must return (obs, reward, terminated, truncated, info), the reward a number"),
        ("four values", "episode 7: step must return (obs, reward, terminated, truncated, info), the reward a number"),
        ("evaluation made", "environment Faulty-v0 cannot be made"),
    ],
)
@pytest.mark.parametrize("vectorization", ["auto", "sync"])
def test_what_fails_later_ends_the_run_with_its_checkpoint(faulty: Cli, vectorization: str, fault: str, message: str) -> None:
    line = faulty.refused(*arguments(fault, "--set", f"vectorization={vectorization}"), code=1)
    (run,) = Path("runs").iterdir()
    kept = open_checkpoint(run)
    assert message in line and line.endswith(f"(the last checkpoint is {kept.path})")
    assert kept.step == (120 if fault == "evaluation made" else 50)
    assert kept.load_replay() is not None


class Greys(gym.Env[np.ndarray, int]):
    """Its space is of bytes; it gives `image` from its third step on."""

    observation_space = gym.spaces.Box(0, 255, (2, 2), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, image: Any) -> None:
        self.image, self.steps = image, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.zeros((2, 2), np.uint8), {}

    def step(self, action: int) -> Any:
        self.steps += 1
        return self.image if self.steps == 3 else np.zeros((2, 2), np.uint8), 0.0, False, False, {}


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.full((2, 2), 0.9, np.float32), "float32, from 0.9 to 0.9, where its space has uint8"),  # all of it would be 0
        (np.full((2, 2), 256), "int64, from 256 to 256, where its space has uint8"),
        (np.array([[-1, 0], [0, 255]]), "int64, from -1 to 255, where its space has uint8"),
        (np.full((2, 2), np.nan), "float64, from nan to nan, where its space has uint8"),
    ],
)
def test_an_observation_that_its_space_cannot_hold_is_refused(image: Any, message: str) -> None:
    env = ReplayableEpisodes(Greys(image), seed=0, stream="train", env_index=1)
    env.reset()
    env.step(0)
    env.step(0)
    with pytest.raises(RunError, match=f"^environment 1 gave an observation of {message}, in step 3 of its episode 0$"):
        env.step(0)


@pytest.mark.parametrize("image", [[[0, 1], [2, 255]], np.array([[0.0, 1.0], [2.0, 255.0]]), np.array([[0, 1], [2, 255]], np.int32)])
def test_bytes_of_another_type_are_the_bytes_they_are(image: Any) -> None:
    env = ReplayableEpisodes(Greys(image), seed=0, stream="train", env_index=0)
    env.reset()
    for _ in range(3):
        obs = env.step(0)[0]
    assert obs.dtype == np.uint8 and obs.tolist() == [[0, 1], [2, 255]]


def test_an_error_without_a_message_is_its_type_alone() -> None:
    assert one_line(NotImplementedError()) == "NotImplementedError"
    assert one_line(ValueError("no\nlevel")) == "ValueError: no level"


def test_an_error_names_the_innermost_line_that_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not NumPy's line, nor Python's, which tell a user nothing of where to look."""

    def fails() -> None:
        np.stack([])  # the line that is named

    with pytest.raises(ValueError, match="at least one array") as numpys:
        fails()
    with pytest.raises(ValueError, match="Expecting value") as pythons:
        json.loads("")
    here, first = Path(__file__), fails.__code__.co_firstlineno
    monkeypatch.chdir(here.parent)
    assert one_line(numpys.value) == f"ValueError: need at least one array to stack ({here.name}, line {first + 1})"
    monkeypatch.chdir("/")
    assert f"({here.relative_to('/')}, line " in one_line(pythons.value)


@pytest.mark.filterwarnings("always:environment")
def test_an_environment_that_cannot_close_loses_nothing(faulty: Cli) -> None:
    outcome = faulty(*arguments("close"))
    assert outcome.code == 0, outcome.err
    error = f"RuntimeError: cannot close {place('raise RuntimeError(', after='def close')}"
    assert set(outcome.err.splitlines()) == {f"warning: environment {i} raised {error} in close()" for i in (0, 1)}
    assert open_checkpoint(Path(outcome.out.strip())).step == 120


@pytest.mark.parametrize("env_id", [".x:y", "..:y", ":", "a:", "x:y:z", "raises:Id-v0", "exits:Id-v0", "a b", "CartPole-v1:"])
def test_odd_names_are_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch, env_id: str) -> None:
    Path("raises.py").write_text("raise RuntimeError('not\\nhere')")
    Path("exits.py").write_text("raise SystemExit(0)")
    monkeypatch.syspath_prepend(".")
    assert cli.refused("train", "--config", "small.yaml", "--set", f"env_id={env_id!r}").startswith("error: ")
