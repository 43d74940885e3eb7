"""Preset `sb3` beside Stable-Baselines3's `AtariWrapper`, step by step: the same games, seeds and random actions, through lives and ends.

Compared are observations, lives, ends, the learner's rewards and the game's own score. Where a life is lost its wrapper ends an episode,
and the observation that follows is that of its `reset`: no action, FIRE and the action after it. Ours plays them inside the step that lost
the life, so that what they score is part of that step's reward; the wrapper's learner is not told of it. Such steps are counted apart.
Each game begins from a seed of its own, as ours always do: without one ALE's next game shows traces of the one before.

    .peers/bin/python -m benchmarks.atari_equality --json benchmarks/results/atari_equality.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import ale_py.env
import gymnasium as gym
import numpy as np

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


def play(game: str, seed: int, steps: int) -> dict[str, Any]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", default=GAMES, help="comma-separated (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1_500, help="of each game and seed (default: %(default)s)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    print(f"{'game':<16} {'steps':>7} {'lives lost':>11} {'games over':>11} {'scored while serving':>21}  differs")
    for game in options.games.split(","):
        runs = [play(game, seed, options.steps) for seed in range(options.seeds)]
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
