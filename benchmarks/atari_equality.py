"""Presets beside the wrappers they are named after, step by step: the same games, seeds and random actions, through lives and ends.

Compared are observations, lives, ends, rewards and the game's own score. Each game begins from a seed of its own, as ours always do:
without one ALE's next game shows traces of the one before.

`sb3` beside Stable-Baselines3's `AtariWrapper`. Where a life is lost it ends an episode, and the observation that follows is that of its
`reset`: no action, FIRE and the action after it. Ours plays them inside the step that lost the life, so that what they score is part of
that step's reward; the wrapper's learner is not told of it. Such steps are counted apart.

    .peers/bin/python -m benchmarks.atari_equality sb3 --json benchmarks/results/atari_equality.json

`dopamine` beside Dopamine's `AtariPreprocessing`, sticky actions included: it stands on an emulator that is asked frame by frame and holds
its action as ALE does, with the same draws as ours. What Dopamine imports besides (TensorFlow, gin) takes no part and is replaced by empty
modules. At a game's end its observation "may not contain valid image data", so that one is not compared.

    pip install --no-deps --target DIR dopamine-rl==4.1.2
    PYTHONPATH=DIR .peers/bin/python -m benchmarks.atari_equality dopamine --json benchmarks/results/atari_equality_dopamine.json
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import ale_py.env
import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding

from benchmarks.common import machine
from rl_training.envs.atari.game import AtariGame
from rl_training.envs.atari.presets import PRESETS

GAMES = "pong,boxing,breakout,freeway,asterix,qbert,space_invaders,beam_rider,seaquest,ms_pacman,enduro,assault,road_runner,amidar"


class Score(gym.Wrapper[Any, Any, Any, Any]):
    """The game's own score, whatever the wrappers above make of it."""

    total = 0.0

    def step(self, action: Any) -> Any:
        found = self.env.step(action)
        self.total += float(found[1])
        return found


def beside_sb3(game: str, seed: int, steps: int) -> dict[str, Any]:
    """Both with the same actions; stops at the first difference."""
    from stable_baselines3.common.atari_wrappers import AtariWrapper

    score = Score(ale_py.env.AtariEnv(game=game, frameskip=1, repeat_action_probability=0.0))
    theirs, ours, ale = AtariWrapper(score), AtariGame(game, PRESETS["sb3"]), score.env.unwrapped.ale  # type: ignore[attr-defined]
    found: dict[str, Any] = {"steps": 0, "lives_lost": 0, "games_over": 0, "scored_while_serving": 0, "differs": None}
    mine, other = ours.reset(seed=seed)[0], theirs.reset(seed=seed)[0]
    total, began = 0.0, score.total  # what no-ops and the first serve score is no part of an episode
    for action in np.random.default_rng(seed).integers(0, ours.action_space.n, steps).tolist():  # type: ignore[attr-defined]
        if not np.array_equal(mine, other[..., 0]):
            return {**found, "differs": "observation"}
        mine, reward, over, truncated, info = ours.step(action)
        other, learned, ended, cut, _ = theirs.step(action)
        found["steps"] += 1
        lost = ended and not ale.game_over(with_truncation=False)
        before = score.total
        if ended:
            found["lives_lost" if lost else "games_over"] += 1
            other = theirs.reset(seed=None if lost else found["steps"])[0]
        served = score.total - before if lost else 0.0
        found["scored_while_serving"] += bool(served)
        total += reward
        if np.sign(reward - served) != learned:
            return {**found, "differs": "reward"}
        if truncated or cut or over != (ended and not lost) or (not over and info["lives"] != ale.lives()):
            return {**found, "differs": "end or lives"}
        if over:
            if total != before - began:
                return {**found, "differs": "score"}
            mine = ours.reset(seed=found["steps"])[0]
            total, began = 0.0, score.total
    ours.close()
    theirs.close()
    return found


class StickyFrames:
    """An emulator a frame at a time, as Dopamine's wrapper wants it. Each frame repeats the action before with the preset's probability."""

    def __init__(self, game: str) -> None:
        self.env = ale_py.env.AtariEnv(game=game, frameskip=1, repeat_action_probability=0.0)
        self.observation_space, self.probability = self.env.observation_space, PRESETS["dopamine"].sticky_probability
        self.next_seed = 0

    def reset(self) -> None:
        self.env.reset(seed=self.next_seed)
        self.random, _ = seeding.np_random(int(np.random.SeedSequence(self.next_seed).generate_state(2)[0]))
        self.held = 0

    def step(self, action: int) -> Any:
        if self.random.random() >= self.probability:
            self.held = action
        return self.env.step(self.held)


@cache
def dopamines_wrapper() -> Any:
    """The class, of a Dopamine whose other imports are empty."""
    empty = {name: mock.MagicMock() for name in ("absl", "baselines", "baselines.common", "gym", "tensorflow", "gin")}
    empty["tensorflow"].keras.Model = object
    empty["gin"].configurable = lambda given=None, **options: given if callable(given) else lambda decorated: decorated
    import cv2  # noqa: F401  # not while modules are replaced: its own loading takes that amiss

    with mock.patch.dict(sys.modules, empty):
        from dopamine.discrete_domains.atari_lib import AtariPreprocessing
    return AtariPreprocessing


def beside_dopamine(game: str, seed: int, steps: int) -> dict[str, Any]:
    """Both with the same actions and the same draws of stickiness; stops at the first difference."""
    frames, ours = StickyFrames(game), AtariGame(game, PRESETS["dopamine"])
    theirs, ale = dopamines_wrapper()(frames), frames.env.ale
    found: dict[str, Any] = {"steps": 0, "lives_lost": 0, "games_over": 0, "scored_while_serving": 0, "differs": None}

    def begin(seed: int) -> tuple[Any, Any]:
        frames.next_seed = seed
        return ours.reset(seed=seed)[0], theirs.reset()

    mine, other = begin(seed)
    lives = ale.lives()
    for action in np.random.default_rng(seed).integers(0, ours.action_space.n, steps).tolist():  # type: ignore[attr-defined]
        if not np.array_equal(mine, other[..., 0]):
            return {**found, "differs": "observation"}
        mine, reward, over, truncated, info = ours.step(action)
        other, score, ended, _ = theirs.step(action)
        found["steps"] += 1
        found["lives_lost"] += ale.lives() < lives
        lives = ale.lives()
        if reward != score:
            return {**found, "differs": "score"}
        if truncated or over != ended or info["lives"] != lives:
            return {**found, "differs": "end or lives"}
        if over:
            found["games_over"] += 1
            mine, other = begin(found["steps"])
            lives = ale.lives()
    ours.close()
    return found


BESIDE = {"sb3": beside_sb3, "dopamine": beside_dopamine}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", choices=list(BESIDE))
    parser.add_argument("--games", default=GAMES, help="comma-separated (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1_500, help="of each game and seed (default: %(default)s)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    print(f"{'game':<16} {'steps':>7} {'lives lost':>11} {'games over':>11} {'scored while serving':>21}  differs")
    for game in options.games.split(","):
        runs = [BESIDE[options.preset](game, seed, options.steps) for seed in range(options.seeds)]
        counts = {key: sum(run[key] for run in runs) for key in ("steps", "lives_lost", "games_over", "scored_while_serving")}
        results[game] = {**counts, "differs": [run["differs"] for run in runs if run["differs"]]}
        shown = [
            f"{counts['steps']:>7,}",
            f"{counts['lives_lost']:>11}",
            f"{counts['games_over']:>11}",
            f"{counts['scored_while_serving']:>21}",
        ]
        print(f"{game:<16} {' '.join(shown)}  {'; '.join(results[game]['differs']) or '-'}", flush=True)
    if options.json:
        given = {key: value for key, value in vars(options).items() if key != "json"}
        options.json.write_text(
            json.dumps({"machine": machine(0), "options": given, "results": results}, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
