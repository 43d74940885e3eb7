"""Atari games by protocol: against ALE's own vector environment and Gymnasium's wrapper, frame by frame, and saved and restored."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from command_line import Cli
from rl_training.data import NStepAccumulator
from rl_training.envs.atari.game import RECENT, AtariGame
from rl_training.envs.atari.native import NativeAtari
from rl_training.envs.atari.pooling import pool_in_colour
from rl_training.envs.atari.presets import PRESETS, parse_protocol
from rl_training.envs.atari.resize import AreaResize
from rl_training.envs.factory import make_envs
from rl_training.errors import UserError
from rl_training.experiment.runs import versions
from rl_training.runtime.actor import Actor
from rl_training.types import Step

pytest.importorskip("ale_py")

CALM = replace(PRESETS["dopamine"], sticky_probability=0.0)  # nothing random after a reset


def actions_of(space: Any, count: int, seed: int = 0) -> list[int]:
    return [int(a) for a in np.random.default_rng(seed).integers(0, space.n, count)]


# Protocols


def test_presets_are_the_protocols_they_are_named_after() -> None:
    def parts(name: str) -> tuple[Any, ...]:
        p = PRESETS[name]
        return p.sticky_probability, p.noop_max, p.fire_reset, p.terminal_on_life_loss, p.clip_rewards, p.full_action_set, p.max_steps

    assert parts("dopamine") == (0.25, 0, False, False, True, False, 27_000)
    assert parts("sb3") == (0.0, 30, True, True, True, False, 27_000)
    assert parts("r2d2") == (0.0, 30, False, False, False, True, 27_000)
    assert parts("btr") == (0.25, 30, False, False, True, False, 27_000)


def test_parts_override_a_preset_and_the_metadata_says_so() -> None:
    assert parse_protocol({}) == ("dopamine", PRESETS["dopamine"])
    assert parse_protocol({"preset": "sb3", "noop_max": 0})[1] == replace(PRESETS["sb3"], noop_max=0)
    envs = make_envs("ALE/Pong-v5", num_envs=1, seed=0, env_kwargs={"preset": "sb3", "frame_skip": 2, "frame_stack": 3})
    said = envs.notes["atari"]
    envs.close()
    assert said.startswith("preset sb3: sticky_probability 0.0, noop_max 30, fire_reset on, ")
    assert "frame_skip 2 (changed)" in said and said.endswith("frame_stack 3 (changed)") and said.count("(changed)") == 2
    native = make_envs("ALE/Pong-v5", num_envs=1, seed=0, env_kwargs={"preset": "sb3"}, vectorization="native")
    native.close()
    assert "frame_stack 4; native: no-ops are 0 … 29, not 1 … 30; FIRE is pressed for one frame" in native.notes["atari"]


@pytest.mark.parametrize(
    ("env_id", "kwargs", "says"),
    [
        ("ALE/Pnog-v5", {}, "did you mean ALE/Pong-v5?"),
        ("PongNoFrameskip-v9", {}, "did you mean ALE/Pong-v5?"),
        ("SpaceInvaders-v3", {}, "did you mean ALE/SpaceInvaders-v5?"),
        ("ALE/Pong-v5", {"mode": 7}, "env_kwargs.mode: pong has 0, 1, not 7"),
        ("ALE/Pong-v5", {"difficulty": 9}, "env_kwargs.difficulty: pong has 0, 1, 2, 3, not 9"),
        ("ALE/Pong-v5", {"preset": "dopamin"}, "did you mean 'dopamine'?"),
        ("ALE/Pong-v5", {"preset": ["sb3"]}, "no protocol is named"),
        ("ALE/Pong-v5", {"sticky_probabilty": 0.1}, "did you mean 'sticky_probability'?"),
        ("ALE/Pong-v5", {"sticky_probability": 1.5}, "must be a number from 0.0 to 1.0, not 1.5"),
        ("ALE/Pong-v5", {"noop_max": True}, "must be a whole number from 0 to 10,000"),
        ("ALE/Pong-v5", {"grayscale": 1}, "must be true or false"),
        ("ALE/Pong-v5", {"screen_size": 500}, "from 16 to 160"),
    ],
)
def test_what_is_unknown_or_wrong_is_said_with_the_nearest(env_id: str, kwargs: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as error:
        make_envs(env_id, num_envs=1, seed=0, env_kwargs=kwargs)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_without_the_extra_the_way_to_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(UserError, match=r"pip install 'rl-training\[atari\]'"):
        make_envs("ALE/Pong-v5", num_envs=1, seed=0)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"did you mean ALE/Pong-v5\?"):
        make_envs("PongNoFrameskip-v9", num_envs=1, seed=0)


# Pixels


@pytest.mark.parametrize("shape", [(210, 160), (250, 160, 3)])
def test_resizing_is_opencvs_area_mean(shape: tuple[int, ...]) -> None:
    """210 rows to 84: s = 2.5, so new row 0 is (r0 + r1 + r2/2) / 2.5 and row 1 is (r2/2 + r3 + r4) / 2.5."""
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    small = AreaResize(shape, 84)(image)
    assert small.shape == (84, 84, *shape[2:]) and small.dtype == np.uint8
    rows, columns = ((np.arange(n * 84) // 84).reshape(84, n) for n in shape[:2])  # each new pixel's area in units of 1/84
    exact = image[rows].astype(float).mean(1)[:, columns].mean(2)
    assert np.abs(small - exact).max() <= 0.5 + 1e-4  # rounded; the sums are float32
    if importlib.util.find_spec("cv2") is not None:
        import cv2

        np.testing.assert_array_equal(small, cv2.resize(image, (84, 84), interpolation=cv2.INTER_AREA))


@pytest.mark.parametrize(("game", "steps"), [("breakout", 200), ("asterix", 60), ("freeway", 60)])
def test_native_and_single_games_are_equal_frame_by_frame(game: str, steps: int) -> None:
    single, native = AtariGame(game, CALM), NativeAtari(game, CALM, 2)
    assert single.observation_space == native.single_observation_space and single.action_space == native.single_action_space
    obs, info = single.reset(seed=3)
    together, infos = native.reset(seed=3)
    np.testing.assert_array_equal(obs, together[0])
    ends = 0
    for action in actions_of(single.action_space, steps):
        obs, reward, terminated, truncated, info = single.step(action)
        together, rewards, over, cut, infos = native.step(np.array([action, action]))
        assert (reward, terminated, truncated) == (rewards[0], over[0], cut[0])
        if terminated:
            ends += 1
            np.testing.assert_array_equal(obs, infos["final_obs"][0])
            obs, info = single.reset()
        np.testing.assert_array_equal(obs, together[0])
        assert info["lives"] == infos["lives"][0]
    assert ends >= (game == "breakout")
    single.close()
    native.close()


def test_native_and_single_games_end_truncated_episodes_with_the_same_observation() -> None:
    """One that only serves loses its last life at step 122; one that does nothing is cut at 130: each is counted by itself."""
    protocol = replace(CALM, max_steps=130)
    singles, native = [AtariGame("breakout", protocol) for _ in range(2)], NativeAtari("breakout", protocol, 2)
    native.reset(seed=3)
    for single in singles:
        single.reset(seed=3)
    ends = []
    for step in range(260):
        actions = np.array([1, 0])
        obs, _, terminated, truncated, infos = native.step(actions)
        for i, single in enumerate(singles):
            mine, _, over, cut, info = single.step(int(actions[i]))
            assert (terminated[i], truncated[i]) == (over, cut)
            if over or cut:
                ends.append((i, step, cut))
                np.testing.assert_array_equal(infos["final_obs"][i], mine)
                mine, info = single.reset()
            np.testing.assert_array_equal(obs[i], mine)
            assert infos["lives"][i] == info["lives"]
    native.close()
    assert ends == [(0, 121, False), (1, 129, True), (0, 243, False), (1, 259, True)]


@pytest.mark.parametrize(
    ("game", "noop_max", "grayscale"), [("qbert", 30, True), ("pong", 30, False), ("seaquest", 1, True), ("hero", 0, True)]
)
def test_a_game_is_gymnasiums_atari_preprocessing(game: str, noop_max: int, grayscale: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No-ops, frame skip, pooling and ends, with the same seed. Its resizing is OpenCV's; where that is not here, ours stands in for it."""
    import ale_py.env

    if importlib.util.find_spec("cv2") is None:
        stand_in = SimpleNamespace(resize=lambda image, size, interpolation: AreaResize(image.shape, size[0])(image), INTER_AREA=3)
        monkeypatch.setitem(sys.modules, "cv2", stand_in)
    ours = AtariGame(game, replace(CALM, noop_max=noop_max, grayscale=grayscale))
    bare = ale_py.env.AtariEnv(game=game, frameskip=1, repeat_action_probability=0.0)
    theirs = gym.wrappers.AtariPreprocessing(bare, noop_max=noop_max, grayscale_obs=grayscale)
    assert ours.observation_space == theirs.observation_space
    for seed in (1, 2):
        np.testing.assert_array_equal(ours.reset(seed=seed)[0], theirs.reset(seed=seed)[0])
        for action in actions_of(ours.action_space, 30, seed):
            mine, other = ours.step(action), theirs.step(action)
            np.testing.assert_array_equal(mine[0], other[0])
            assert mine[1:4] == other[1:4] and mine[4]["lives"] == other[4]["lives"]
    ours.close()
    theirs.close()


@pytest.mark.parametrize("game", ["pong", "breakout", "asterix"])
def test_the_preset_sb3_is_stable_baselines3s_wrapper(game: str) -> None:
    """Through lost lives, after which its `reset` plays what ours plays in the step. `benchmarks.atari_equality sb3` has more games."""
    wrappers = pytest.importorskip("stable_baselines3.common.atari_wrappers")
    pytest.importorskip("cv2")
    import ale_py.env

    ours = AtariGame(game, PRESETS["sb3"])
    theirs = wrappers.AtariWrapper(ale_py.env.AtariEnv(game=game, frameskip=1, repeat_action_probability=0.0))
    mine, other = ours.reset(seed=1)[0], theirs.reset(seed=1)[0]
    lost = 0
    for action in actions_of(ours.action_space, 150):
        np.testing.assert_array_equal(mine, other[..., 0])
        mine, reward, over, _, info = ours.step(action)
        other, learned, ended, _, _ = theirs.step(action)
        assert np.clip(reward, -1, 1) == learned
        if ended:
            other = theirs.reset()[0]
        if over:
            mine, info = ours.reset()
        assert info["lives"] == theirs.unwrapped.ale.lives()
        lost += ended and not over
    assert lost >= {"pong": 0, "breakout": 2, "asterix": 1}[game]


@pytest.mark.parametrize(("game", "played"), [("breakout", [0, 1, 2]), ("asterix", [0])])
def test_after_a_lost_life_the_preset_sb3_plays_no_action_and_serves(game: str, played: list[int]) -> None:
    """As one does that plays them itself. Asterix has no FIRE."""
    protocol = replace(PRESETS["sb3"], noop_max=0)
    serving, by_hand = AtariGame(game, protocol), AtariGame(game, replace(protocol, terminal_on_life_loss=False))
    lives, lost = serving.reset(seed=1)[1]["lives"], 0
    by_hand.reset(seed=1)
    for action in actions_of(serving.action_space, 150):
        step, (obs, reward, over, _, info) = serving.step(action), by_hand.step(action)
        if 0 < info["lives"] < lives and not over:
            lost += 1
            for other in played:
                obs, more, over, _, info = by_hand.step(other)
                reward += more
        lives = info["lives"]
        np.testing.assert_array_equal(step[0], obs)
        assert step[1:3] == (reward, over) and step[4] == info
        if over:
            break
    assert lost >= 1


def test_frames_are_pooled_before_or_after_they_turn_grey() -> None:
    """Red over green is yellow in colour, 0.299 · 255 + 0.587 · 255 = 226, and the brighter of 76 and 150 in grey."""
    frames, grey = np.zeros((2, 1, 3, 3), np.uint8), np.array([[76, 76, 29]], np.uint8)
    frames[0, 0] = [[255, 0, 0], [255, 0, 0], [0, 0, 255]]
    frames[1, 0] = [[0, 255, 0], [255, 0, 0], [0, 0, 200]]
    pool_in_colour(frames, grey)
    assert grey.tolist() == [[226, 76, 29]]
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (2, 20, 30, 3), np.uint8)
    first = frames[0].astype(float) @ [0.299, 0.587, 0.114]
    expected, grey = frames.max(0).astype(float) @ [0.299, 0.587, 0.114], np.round(first).astype(np.uint8)
    pool_in_colour(frames, grey)
    assert np.abs(grey - expected).max() <= 0.51  # rounded; the weights are rounded to 2^-15
    if importlib.util.find_spec("cv2") is not None:
        import cv2

        np.testing.assert_array_equal(grey, cv2.cvtColor(frames[1], cv2.COLOR_RGB2GRAY))


def test_sticky_actions_hold_the_previous_one_in_each_frame() -> None:
    """With probability 1 the first held action, doing nothing, stays for ever; with 0 the game follows. ALE's own is the same law."""
    differing = []
    for probability in (0.0, 0.25, 1.0):
        game = AtariGame("freeway", replace(CALM, sticky_probability=probability))
        game.reset(seed=5)
        ale, made = game._ale, []
        known = {name: getattr(ale, name) for name in ("game_over", "lives")}
        game._ale = SimpleNamespace(act=lambda code, made=made, ale=ale: made.append(code) or ale.act(code), **known)  # type: ignore[assignment]
        chosen = [1 + step % 2 for step in range(100)]
        for action in chosen:
            game.step(action)
        differing.append(np.mean([code != game._codes[action] for code, action in zip(made, np.repeat(chosen, 4), strict=True)]))
    # The k-th frame of a step differs with p^k, k = 1 … 4: (p + p² + p³ + p⁴)/4 = .083 of them on average, of 400 give or take .02.
    assert differing[0] == 0.0 and differing[2] == 1.0 and 0.03 < differing[1] < 0.14


def test_a_game_is_drawn_whole_and_in_colour() -> None:
    envs = make_envs("ALE/Pong-v5", num_envs=1, seed=0, env_kwargs={"render_mode": "rgb_array"})
    assert envs.reset().shape == (1, 4, 84, 84)
    (screen,) = envs._workers.call("render")
    envs.close()
    assert screen.shape == (210, 160, 3) and len({tuple(pixel) for pixel in screen.reshape(-1, 3)}) > 2
    with pytest.raises(UserError, match="Atari games render as human or rgb_array"):
        make_envs("ALE/Pong-v5", num_envs=1, seed=0, env_kwargs={"render_mode": "ansi"})


def test_what_evaluations_single_games_refuse_is_said_before_a_native_run_begins(cli: Cli) -> None:
    """ALE's vector environment draws nothing, so it would take any render mode."""
    small = ("--total-timesteps", "8", "--num-envs", "2", "--set", "algo_kwargs.buffer_capacity=100", "--set", "eval_max_steps=1")
    line = cli.refused("train", "--config", "dqn/atari_pong", *small, "--set", "env_kwargs.render_mode=ansi")
    assert line == "error: vectorization: native: evaluation's environment: Atari games render as human or rgb_array, not 'ansi'"


def test_an_episode_is_truncated_after_max_steps() -> None:
    game = AtariGame("pong", replace(CALM, max_steps=3, noop_max=5, fire_reset=True))
    for _ in range(2):
        game.reset(seed=1)
        assert [game.step(0)[3] for _ in range(3)] == [False, False, True]
    game.close()


def test_learners_are_given_clipped_rewards_and_people_real_returns() -> None:
    """Qbert pays 25 a square; a game is over within 500 random steps."""
    real = make_envs("ALE/Qbert-v5", num_envs=1, seed=0, env_kwargs={"clip_rewards": False})
    clipped = make_envs("ALE/Qbert-v5", num_envs=1, seed=0)
    real.reset()
    clipped.reset()
    ended = []
    for action in actions_of(real.single_action_space, 500):
        one, other = real.step(np.array([action])), clipped.step(np.array([action]))
        assert other.rewards[0] == np.clip(one.rewards[0], -1.0, 1.0)
        assert one.episodes == other.episodes
        ended += one.episodes
    assert ended and ended[0].episode_return >= 25
    real.close()
    clipped.close()


class _Kept:
    """A feed that keeps what the actor pushes."""

    raw, num_open = True, 0

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def push(self, step: Step) -> None:
        self.steps.append(step)


def test_a_run_says_which_emulator_it_played_with() -> None:
    assert versions()["ale-py"] == importlib.metadata.version("ale-py")


@pytest.mark.parametrize("vectorization", ["auto", "sync", "async", "native"])
def test_a_lost_life_ends_nothing_but_the_learners_future(vectorization: Any) -> None:
    """Breakout has five lives. A player that only serves loses four and plays on, and the fifth ends the game."""
    kwargs = {"preset": "sb3", "noop_max": 0, "fire_reset": False}
    envs = make_envs("ALE/Breakout-v5", num_envs=2, seed=0, env_kwargs=kwargs, vectorization=vectorization)
    serve: Any = SimpleNamespace(learning_starts=0, begin=lambda *_: np.array([1, 0]), to_env=lambda actions: actions)
    network: Any = SimpleNamespace(initial_state=lambda n: (), modules=list)
    feed = _Kept()
    actor = Actor(envs, network, feed, behaviour=serve, device=torch.device("cpu"), seed=0)  # type: ignore[arg-type]
    ended = []
    while not ended:
        ended = list(actor.step(0).episodes)
    envs.close()
    lost = np.array([step.lost_life for step in feed.steps])
    assert lost.sum(0).tolist() == [4, 0]  # the other one does nothing, and its ball never comes
    assert ended[0].length == len(feed.steps) and feed.steps[-1].terminated.tolist() == [True, False]
    assert not any(np.any(step.terminated) for step in feed.steps[:-1]) and not lost[-1].any()
    starts = [bool(step.episode_starts[0]) for step in feed.steps]  # type: ignore[index]
    assert starts == [True] + [False] * (len(starts) - 1)
    # What replay is given: three-step windows that end at each loss with discount 0.
    windows, made = NStepAccumulator(3, 0.9, 2), []
    for step in feed.steps:
        made.append(windows.push(step))
    dones = np.concatenate([items["dones"] for items in made])
    assert dones.sum() == 5 * 3 and all((items["discounts"][items["dones"] > 0] == 0).all() for items in made)


def test_nobody_is_told_of_lives_where_the_protocol_does_not_count_them() -> None:
    envs = make_envs("ALE/Breakout-v5", num_envs=1, seed=0)
    envs.reset()
    assert envs.step(np.array([0])).lost_life is None
    envs.close()


# A game saved and brought back


@pytest.mark.parametrize("game", ["breakout", "qbert"])  # what ALE leaves out of its state shows in Qbert
def test_a_saved_game_goes_on_exactly_in_another_one(game: str) -> None:
    protocol = replace(PRESETS["sb3"], sticky_probability=0.25)
    one, other = AtariGame(game, protocol), AtariGame(game, protocol)
    one.reset(seed=4)
    actions = actions_of(one.action_space, 160)
    for action in actions[:90]:
        obs = one.step(action)[0]
    saved = one.save_state()
    assert saved is not None
    other.reset(seed=99)
    found, info = other.restore_state(saved)
    np.testing.assert_array_equal(found, obs)
    assert info == one._info()
    for action in actions[90:]:
        mine, its = one.step(action), other.step(action)
        np.testing.assert_array_equal(mine[0], its[0])
        assert mine[1:] == its[1:]
        if mine[2]:
            break


def test_a_game_that_does_not_go_on_exactly_from_its_state_is_played_again() -> None:
    """After these 98 steps 3-D tic-tac-toe draws nothing for a while: brought back from a state, it would show another screen next."""

    def made() -> Any:
        return make_envs("ALE/TicTacToe3D-v5", num_envs=1, seed=3)

    envs, again = made(), made()
    envs.reset()
    actions = actions_of(envs.single_action_space, 100, seed=1)
    for action in actions[:-2]:
        envs.step(np.array([action]))
    state = envs.state_dict()
    assert "states" not in state and again.load_state_dict(state).restored.all()
    for action in actions[-2:]:
        np.testing.assert_array_equal(again.step(np.array([action])).obs, envs.step(np.array([action])).obs)
    envs.close()
    again.close()


@pytest.mark.parametrize(
    "change",
    [
        {"emulator": np.zeros(3, np.uint8)},
        {"emulator": np.zeros(14_440, np.uint8)},
        {"emulator": np.zeros(14_440)},
        {"frame": np.zeros((3, 3), np.uint8)},
        {"generator": {}},
        {"held": 77},
        {"steps": "many"},
    ],
)
def test_a_state_that_is_no_state_of_the_game_is_refused(change: dict[str, Any]) -> None:
    game = AtariGame("pong", PRESETS["dopamine"])
    game.reset(seed=1)
    assert game.save_state() is None  # so early its actions are the better record
    for _ in range(RECENT):
        game.step(0)
    saved = game.save_state()
    assert saved is not None
    with pytest.raises((ValueError, TypeError, KeyError, IndexError)):
        game.restore_state(saved | change)
    game.close()


def test_an_emulator_that_did_not_take_its_state_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frame that was saved with it is shown whatever the emulator does, so the frame says nothing of it."""
    game = AtariGame("pong", PRESETS["dopamine"])
    game.reset(seed=1)
    for _ in range(RECENT):
        game.step(0)
    saved = game.save_state()
    assert saved is not None

    class Deaf:
        def __getattr__(self, name: str) -> Any:
            return (lambda state: None) if name == "restoreState" else getattr(ale, name)

    ale = game._ale
    monkeypatch.setattr(game, "_ale", Deaf())
    with pytest.raises(ValueError, match="not where it was saved"):
        game.restore_state(saved)
    monkeypatch.undo()
    game.restore_state(saved)  # one that listens does
    game.close()


@pytest.mark.parametrize("vectorization", ["auto", "sync", "async"])
def test_environments_are_restored_from_the_emulators_state(vectorization: Any) -> None:
    """And not by playing again: with wrong actions they arrive all the same. A wrong state is noticed, and then the actions are played."""

    def made() -> Any:
        return make_envs("ALE/Boxing-v5", num_envs=2, seed=7, vectorization=vectorization)

    envs = made()
    envs.reset()
    actions = np.array([actions_of(envs.single_action_space, 80, seed) for seed in (1, 2)]).T
    for row in actions[:70]:
        envs.step(row)
    state = envs.state_dict()
    steps = [envs.step(row) for row in actions[70:]]
    envs.close()
    wrong_actions = np.zeros_like(state["actions"])
    broken = [{**saved, "emulator": saved["emulator"][::-1].copy()} for saved in state["states"]]
    again = made()
    with pytest.warns(RuntimeWarning, match="environment 1: playing the saved episode again did not arrive"):
        lost = again.load_state_dict(state | {"states": [state["states"][0], broken[1]], "actions": wrong_actions})
    assert lost.restored.tolist() == [True, False]
    for saved in (state | {"actions": wrong_actions}, state | {"states": broken}):
        restored = again.load_state_dict(saved)
        assert restored.restored.all()
        np.testing.assert_array_equal(restored.obs, state["stacks"])
        for row, step in zip(actions[70:], steps, strict=True):
            now = again.step(row)
            np.testing.assert_array_equal(now.obs, step.obs)
            np.testing.assert_array_equal(now.rewards, step.rewards)
    again.close()


def test_a_wrapper_may_hold_something_so_its_environment_is_played_again() -> None:
    envs = make_envs("ALE/Pong-v5", num_envs=1, seed=0, env_kwargs={"wrappers": [{"time_limit": {"max_steps": 70}}]})
    envs.reset()
    for _ in range(RECENT):
        envs.step(np.array([0]))
    state = envs.state_dict()
    assert "states" not in state and envs.load_state_dict(state).restored.all()
    assert [bool(envs.step(np.array([0])).truncated[0]) for _ in range(6)] == [False] * 5 + [True]
    envs.close()
