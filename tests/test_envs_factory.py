"""Making environments: names, callables, backends, and what is refused with a remedy."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rl_training.envs import make_envs, require_spaces
from rl_training.errors import SpaceError, UserError

VECTOR = spaces.Box(-1, 1, (4,), np.float32)
CAMERA = spaces.Dict({"speed": VECTOR, "camera": spaces.Box(0, 255, (84, 84, 3), np.uint8)})
ACTIONS = spaces.Discrete(2)


def cartpole(**kwargs: Any) -> Any:
    return make_envs("CartPole-v1", num_envs=1, seed=0, **kwargs)


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("CartPol-v1", "did you mean CartPole-v1"),
        ("CartPole-v9", "did you mean CartPole-v1"),
        ("Atari/Pong-v5", "did you mean ALE/Pong-v5"),
        ("ALE/Pongg-v5", "did you mean ALE/Pong-v5"),
        ("ALE/Joust-v5", r"'ALE/Joust-v5' \(`module:Id`"),  # no game of ale-py's, and none is like it
        ("rl_training/TMase-v0", "did you mean rl_training/TMaze-v0"),
        ("nowhere/Nothing-v0", "no environment is registered as 'nowhere/Nothing-v0'"),
        ("not an id!", "no environment is registered"),
        ("gymnasium:CartPol-v1", r"did you mean CartPole-v1\?"),  # not phys2d/CartPole-v1, which is Gymnasium's as well
        ("ale_py:PongNoFrameskip-v9", r"did you mean ALE/Pong-v5\?"),
        ("ale_py:Xylophone-v9", r"registers .* and \d+ more \("),
        ("ale_py:ALE/Xylophone-v9", r"ale_py registers (ALE/\w+-v5, ){4}ALE/\w+-v5 and \d+ more \("),  # of the family that was named
        ("no_such_module_xyz:CartPole-v1", "module no_such_module_xyz cannot be imported"),
    ],
)
def test_an_unknown_environment_is_refused_with_the_nearest(env_id: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as refusal:
        make_envs(env_id, num_envs=1, seed=0)
    assert "\n" not in str(refusal.value)


def test_a_module_before_the_id_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_mazes_for_test.py").write_text(
        "import gymnasium\ngymnasium.register('MyMaze-v0', entry_point='rl_training.envs.memory:TMaze', kwargs={'length': 2})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert make_envs("my_mazes_for_test:MyMaze-v0", num_envs=1, seed=0).reset().shape == (1, 3)


def test_an_unknown_id_of_a_module_is_held_against_what_it_registers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gymnasium knows a CliffWalking; whoever names a module means one of that module's."""
    (tmp_path / "my_cliffs_for_test.py").write_text(
        "import gymnasium\nclass Env(gymnasium.Env): ...\n"
        "gymnasium.register('mine/CliffWalker-v3', entry_point='gymnasium.envs.toy_text.cliffwalking:CliffWalkingEnv')\n"
        "gymnasium.register('Zz-v0', entry_point=Env)\n"
        "gymnasium.register('builtin/Method-v0', entry_point=[].append)\n"  # whose __module__ is None
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(gym.envs.registration, "registry", dict(gym.registry))
    monkeypatch.setattr(gym, "registry", gym.envs.registration.registry)
    # Once while the module is imported, once when it has been: then only classes of its own say what it registered.
    for name, hint in (("CliffWalkin-v3", "did you mean mine/CliffWalker-v3?"), ("Bicycle-v0", "registers Zz-v0 (")):
        with pytest.raises(UserError) as refusal:
            make_envs(f"my_cliffs_for_test:{name}", num_envs=1, seed=0)
        assert hint in str(refusal.value), name
    with pytest.raises(UserError, match="did you mean CliffWalking-v1"):
        make_envs("CliffWalkin-v3", num_envs=1, seed=0)


def test_env_kwargs_reach_the_environment() -> None:
    envs = cartpole(env_kwargs={"max_episode_steps": 3, "sutton_barto_reward": True})
    envs.reset()
    steps = [envs.step(np.zeros(1, np.int64)) for _ in range(3)]
    assert [step.rewards[0] for step in steps] == [0, 0, 0] and steps[-1].truncated[0]


@pytest.mark.parametrize("vectorization", ["auto", "native"])
def test_a_keyword_the_environment_does_not_take_is_refused(vectorization: Any) -> None:
    with pytest.raises(UserError, match="lenght") as refusal:
        cartpole(env_kwargs={"lenght": 3}, vectorization=vectorization)
    assert "\n" not in str(refusal.value)


def test_a_callable_makes_the_environment() -> None:
    def make(gravity: float = 9.8) -> Any:
        env = gym.make("CartPole-v1")
        env.unwrapped.gravity = gravity  # type: ignore[attr-defined]
        return env

    usual, none = (make_envs(make, num_envs=1, seed=0, env_kwargs=kwargs) for kwargs in ({}, {"gravity": 0.0}))
    assert np.array_equal(usual.reset(), cartpole().reset()) and np.array_equal(usual.obs, none.reset())
    assert not np.array_equal(usual.step(np.zeros(1, np.int64)).obs, none.step(np.zeros(1, np.int64)).obs)
    with pytest.raises(UserError, match=r"must return a gymnasium\.Env, not int"):
        make_envs(lambda: 3, num_envs=1, seed=0)  # type: ignore[arg-type, return-value]
    with pytest.raises(UserError, match="registered id"):
        make_envs(make, num_envs=1, seed=0, vectorization="native")


def test_every_replaying_backend_gives_the_same_episodes() -> None:
    actions = np.random.default_rng(0).integers(2, size=(60, 2))
    traces = []
    for vectorization in ("auto", "sync", "async"):
        envs = make_envs("CartPole-v1", num_envs=2, seed=5, vectorization=vectorization)  # type: ignore[arg-type]
        traces.append([envs.reset(), *(envs.step(action).obs for action in actions)])
        envs.close()
    assert all(np.array_equal(a, b) for trace in traces[1:] for a, b in zip(traces[0], trace, strict=True))


def test_workers_outlive_an_interrupt_so_that_a_checkpoint_can_be_saved() -> None:
    envs = make_envs("CartPole-v1", num_envs=2, seed=0, vectorization="async")
    envs.reset()
    workers = multiprocessing.active_children()
    assert len(workers) == 2
    for worker in workers:
        os.kill(worker.pid or 0, signal.SIGINT)
        os.kill(worker.pid or 0, signal.SIGTERM)
    envs.step(np.zeros(2, np.int64))
    assert envs.state_dict()["action_counts"].tolist() == [1, 1]
    envs.close()
    assert not any(worker.is_alive() for worker in workers)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"vectorization": "threads"}, "auto, sync, async, native"),
        ({"num_envs": 0}, "at least 1"),
        ({"vectorization": "native", "env": "Acrobot-v1"}, "no native vector form"),
        ({"vectorization": "native", "env_kwargs": {"wrappers": ["flatten"]}}, "cannot wrap single environments"),
    ],
)
def test_what_cannot_be_made_is_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_envs(**{"env": "CartPole-v1", "num_envs": 1, "seed": 0, **kwargs})


def test_environments_with_different_spaces_are_refused() -> None:
    names = iter(["CartPole-v1", "Acrobot-v1"])
    with pytest.raises(SpaceError, match="environment 1 has other spaces"):
        make_envs(lambda: gym.make(next(names)), num_envs=2, seed=0)


@pytest.mark.parametrize(
    ("obs_space", "action_space", "message"),
    [
        (spaces.Discrete(4), ACTIONS, r"dqn cannot learn from the observation space Discrete\(4\).*`flatten`"),
        (spaces.MultiDiscrete([2, 3]), ACTIONS, r"MultiDiscrete\(\[2 3\]\).*`flatten`"),
        (spaces.Tuple((ACTIONS, VECTOR)), ACTIONS, "Tuple.*`flatten`"),
        (spaces.Dict(a=VECTOR), ACTIONS, "Dict.*`flatten`"),
        (spaces.Sequence(VECTOR), ACTIONS, "Sequence.*wrap the environment so that it gives one$"),  # flattened, it is still a Sequence
        (VECTOR, VECTOR, r"dqn cannot act in the action space Box\(shape=\(4,\), float32\): it takes Discrete"),
        (VECTOR, spaces.MultiDiscrete([2, 2]), "MultiDiscrete.*it takes Discrete"),
    ],
)
def test_a_space_the_row_does_not_take_is_refused_with_a_remedy(obs_space: Any, action_space: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message) as refusal:
        require_spaces("dqn", obs_space, action_space)
    assert "\n" not in str(refusal.value)


def test_kinds_of_boxes_are_told_apart() -> None:
    image = spaces.Box(0, 255, (84, 84, 4), np.uint8)
    require_spaces("dqn", image, ACTIONS)
    require_spaces("dqn", VECTOR, ACTIONS, observations=("vector",))
    require_spaces("ppo", VECTOR, VECTOR, actions=("discrete", "box"))
    require_spaces("dqn", image, ACTIONS, observations=("vector", "image"))
    with pytest.raises(SpaceError, match="one dimension; use a row that learns from images"):
        require_spaces("own", image, ACTIONS, observations=("vector",))
    with pytest.raises(SpaceError, match=r"takes images \(uint8, of two or three dimensions\); wrap"):
        require_spaces("cnn", VECTOR, ACTIONS, observations=("image",))


@pytest.mark.parametrize(
    ("space", "observations", "torso", "remedy"),
    [
        (spaces.Box(0, 1, (84, 84, 3), np.float32), ("vector", "image"), "auto", "gives its images as uint8"),
        (spaces.Box(0, 255, (84, 84, 3), np.uint8), ("vector",), "mlp", "leave torso out, and the right one for images is chosen"),
        (spaces.Box(0, 1, (5, 5, 3), np.bool_), ("vector",), "mlp", "leave torso out, and the right one for images is chosen"),
        (VECTOR, ("image",), "nature", "leave torso out, and the right one for vectors is chosen"),
        (spaces.Box(0, 1, (84, 84, 3), np.float32), ("image",), "nature", "gives its images as uint8"),
        (spaces.Box(0, 1, (4, 3), np.float32), ("vector", "image"), "auto", "`flatten`"),
        (CAMERA, ("vector", "image"), "auto", r"learn from the image alone \(env_kwargs: {wrappers: \[{select: {key: camera}}\]}\)"),
    ],
)
def test_what_would_work_is_said_and_never_flatten_for_images(space: Any, observations: Any, torso: str, remedy: str) -> None:
    with pytest.raises(SpaceError, match=remedy) as refusal:
        require_spaces("dqn", space, ACTIONS, observations=observations, torso=torso)
    assert ("flatten" in str(refusal.value)) is ("flatten" in remedy) and "\n" not in str(refusal.value)


def test_a_tuple_observation_is_refused_by_its_space_and_not_by_a_crash() -> None:
    class Pair(gym.Env[Any, Any]):
        observation_space = spaces.Tuple((ACTIONS, VECTOR))
        action_space = ACTIONS

    envs = make_envs(Pair, num_envs=2, seed=0)
    with pytest.raises(SpaceError, match="flatten"):
        require_spaces("dqn", envs.single_observation_space, envs.single_action_space)
    flat = make_envs(Pair, num_envs=2, seed=0, env_kwargs={"wrappers": ["flatten"]})
    require_spaces("dqn", flat.single_observation_space, flat.single_action_space)


def test_environments_need_no_torch() -> None:
    code = "import sys, rl_training.envs as e; e.make_envs('CartPole-v1', num_envs=1, seed=0).reset(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_needs_box2d_says_which_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(**_: object) -> None:
        raise gym.error.DependencyNotInstalled("Box2D is not installed, you can install it by run `pip install swig` ...")

    monkeypatch.setitem(gym.registry, "Boxes-v0", gym.envs.registration.EnvSpec("Boxes-v0", entry_point=make))
    with pytest.raises(UserError, match=r"^environment Boxes-v0 needs the package Box2D: pip install 'rl-training\[box2d\]'$"):
        make_envs("Boxes-v0", num_envs=1, seed=0)
