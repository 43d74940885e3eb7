"""MinAtar's five games (extra `minatar`; Young & Tian 2019, arXiv:1903.03176) by their own ids, `MinAtar/Breakout-v1` and so on.

Observations are bool images [10, 10, C], a channel for each kind of object. The conventions are MinAtar's own: the last action is repeated
with probability 0.1, whatever is chosen (`sticky_action_prob`), and games become harder (`difficulty_ramping`); both are keywords of the
environment. `-v1` has the actions that do something in the game, `-v0` all six. There is no time limit.
"""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium as gym

from rl_training.errors import UserError

PREFIX = "MinAtar/"
GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
CONVENTIONS = "MinAtar's own: the last action is repeated with probability {sticky_action_prob}, difficulty ramping is {ramping}"


class FreshStart(gym.Wrapper[Any, Any, Any, Any]):
    """An episode begins without a last action. MinAtar keeps that of the episode before, which a sticky first step would repeat: then an
    episode is not what its seed and actions say, and cannot be played again."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.env.unwrapped.game.last_action = 0  # type: ignore[attr-defined]  # of MinAtar's environments
        return self.env.reset(seed=seed, options=options)


def make_game(**kwargs: Any) -> gym.Env[Any, Any]:
    return FreshStart(_minatar().BaseEnv(**kwargs))


def register_games() -> None:
    """MinAtar's ids, with our `make_game` behind them; UserError where the extra is not installed."""
    _minatar()
    for game in GAMES:
        for version, minimal in ((0, False), (1, True)):
            name = f"{PREFIX}{game.title().replace('_', '')}-v{version}"
            gym.registry.pop(name, None)  # MinAtar's own, where somebody has registered them: its episodes could not be played again
            gym.register(name, "rl_training.envs.minatar:make_game", kwargs={"game": game, "use_minimal_action_set": minimal})


def conventions(env_id: str, env_kwargs: dict[str, Any]) -> str:
    """For the run's notes; "" where it is no game of MinAtar."""
    if not env_id.startswith(PREFIX):
        return ""
    sticky, ramping = env_kwargs.get("sticky_action_prob", 0.1), env_kwargs.get("difficulty_ramping", True)
    return CONVENTIONS.format(sticky_action_prob=sticky, ramping="on" if ramping else "off")


def _minatar() -> Any:
    try:
        return importlib.import_module("minatar.gym")
    except ModuleNotFoundError as error:
        raise UserError('MinAtar environments need the extra `minatar`: pip install "rl-training[minatar]"') from error
