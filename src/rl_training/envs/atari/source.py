"""From `ALE/…` and `env_kwargs` to what makes the games: single ones here or in workers, or ALE's vector of them."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from rl_training.envs.atari.game import AtariGame
from rl_training.envs.atari.native import NativeAtari, departures
from rl_training.envs.atari.presets import Protocol, describe, parse_protocol
from rl_training.errors import UserError

PREFIX = "ALE/"


def import_ale() -> None:
    """Registers the games."""
    try:
        gym.register_envs(importlib.import_module("ale_py"))
    except ImportError as error:
        raise UserError("environments ALE/… need the package ale-py: pip install 'rl-training[atari]'") from error


def todays_name(name: str) -> str | None:
    """`ALE/Pong-v5` for `Pong`, `Pong-v4` or `PongNoFrameskip-v4`; None where ale-py has no such game.

    ale-py is looked at and not imported: that would register the old names, as bare environments without a protocol. Where it is not
    here, only a name that nothing else has is taken for a game's; whoever then asks for `ALE/…` is told of the extra.
    """
    old, package = re.fullmatch(r"(\w+?)(NoFrameskip|Deterministic)?(-v\d+)?", name), importlib.util.find_spec("ale_py")
    if old is None:
        return None
    if package is None or package.origin is None:
        return f"{PREFIX}{old[1]}-v5" if old[2] else None
    rom = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", old[1]).lower()
    return f"{PREFIX}{old[1]}-v5" if (Path(package.origin).parent / "roms" / f"{rom}.bin").exists() else None


@dataclass(frozen=True)
class AtariSource:
    """A game and its protocol. Called, it makes one; it holds nothing but what can be sent to a worker."""

    env_id: str
    game: str
    preset: str
    protocol: Protocol

    @classmethod
    def of(cls, spec: EnvSpec, kwargs: Mapping[str, Any]) -> AtariSource:
        return cls(spec.id, spec.kwargs["game"], *parse_protocol(kwargs))

    def __call__(self, render_mode: str | None = None) -> AtariGame:
        return AtariGame(self.game, self.protocol, render_mode)

    @property
    def __name__(self) -> str:  # what an error calls it
        return self.env_id

    def native(self, num_envs: int) -> NativeAtari:
        return NativeAtari(self.game, self.protocol, num_envs)

    def notes(self, *, native: bool, frame_stack: int) -> dict[str, str]:
        """What a run's metadata says of it."""
        said = describe(self.preset, self.protocol, frame_stack)
        return {"atari": f"{said}; {departures(self.protocol)}" if native and departures(self.protocol) else said}
