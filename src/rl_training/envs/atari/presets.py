"""The protocols of Atari experiments, by name. Results compare only within one, so a run says which parts its preset resolved to.

docs/atari.md has the table with its sources.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from rl_training.errors import UserError


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a game is played and what the learner is given of it: each part is a key of `env_kwargs`."""

    sticky_probability: float = 0.25
    """In each frame the previous action is repeated with this probability instead of the one chosen (arXiv:1709.06009, §5.2)."""
    noop_max: int = 0
    """An episode begins with 1 … noop_max frames of no action (none where it is 0)."""
    fire_reset: bool = False
    """Then FIRE and the action after it, for the games that wait for it. After a lost life too, where that is a termination, and there
    behind a step of no action, which games without FIRE have as well."""
    terminal_on_life_loss: bool = False
    """A lost life is a termination for the learner; the game goes on."""
    frame_skip: int = 4
    """Frames that an action is held for."""
    max_pool: bool = True
    """An observation is the maximum of the last two frames, since some games draw an object in every other one."""
    pool_in_colour: bool = False
    """Before the frames turn grey, not after (pooling.py)."""
    grayscale: bool = True
    screen_size: int = 84
    """Observations are resized to a square by the mean over each pixel's area."""
    clip_rewards: bool = True
    """The learner is given rewards clipped to ±1; returns stay real."""
    max_steps: int = 27_000
    """Agent steps after which an episode is truncated: 30 minutes of play."""
    full_action_set: bool = False
    """All 18 actions of the joystick, not only those that the game uses."""
    mode: int | None = None
    difficulty: int | None = None
    """The game's own; None is the first."""


PRESETS: dict[str, Protocol] = {
    "dopamine": Protocol(),
    "sb3": Protocol(sticky_probability=0.0, noop_max=30, fire_reset=True, terminal_on_life_loss=True, pool_in_colour=True),
    "r2d2": Protocol(sticky_probability=0.0, noop_max=30, clip_rewards=False, full_action_set=True),
    "btr": Protocol(noop_max=30),
}
DEFAULT = "dopamine"
FRAME_STACK = 4
"""Of every preset, unless `env_kwargs.frame_stack` says another."""

_BOUNDS = {
    "sticky_probability": (0.0, 1.0),
    "noop_max": (0, 10_000),
    "frame_skip": (1, 1_000),
    "screen_size": (16, 160),  # area means are for making images smaller; the screen is 160 pixels wide
    "max_steps": (1, 2**40),
    "mode": (0, 255),
    "difficulty": (0, 255),
}


def parse_protocol(kwargs: Mapping[str, Any]) -> tuple[str, Protocol]:
    """The preset's name and its parts, changed by those that `kwargs` name. UserError with the nearest known name."""
    preset = kwargs.get("preset", DEFAULT)
    if not isinstance(preset, str) or preset not in PRESETS:
        raise UserError(f"env_kwargs.preset: no protocol is named {preset!r}; {_nearest(str(preset), list(PRESETS))}")
    parts = {part.name: part for part in fields(Protocol)}
    changes = {name: value for name, value in kwargs.items() if name != "preset"}
    for name, value in changes.items():
        if name not in parts:
            raise UserError(f"env_kwargs.{name}: an Atari protocol has no such part; {_nearest(name, ['preset', 'frame_stack', *parts])}")
        _require_kind(name, value, str(parts[name].type))
    return preset, replace(PRESETS[preset], **changes)


def describe(preset: str, protocol: Protocol, frame_stack: int) -> str:
    """One line for a run's metadata: every part, and which of them are not the preset's."""
    usual = {**asdict(PRESETS[preset]), "frame_stack": FRAME_STACK}
    resolved = {**asdict(protocol), "frame_stack": frame_stack}
    parts = [f"{name} {_word(value)}" + ("" if value == usual[name] else " (changed)") for name, value in resolved.items()]
    return f"preset {preset}: {', '.join(parts)}"


def _require_kind(name: str, value: Any, kind: str) -> None:
    where = f"env_kwargs.{name}"
    if value is None and "None" in kind:
        return
    if kind == "bool":
        if not isinstance(value, bool):
            raise UserError(f"{where} must be true or false, not {value!r}")
        return
    low, high = _BOUNDS[name]
    number = isinstance(value, int) or (kind == "float" and isinstance(value, float))
    if isinstance(value, bool) or not number or not low <= value <= high:
        whole = "a number" if kind == "float" else "a whole number"
        raise UserError(f"{where} must be {whole} from {low:,} to {high:,}, not {value!r:.60}")


def _word(value: Any) -> str:
    return {True: "on", False: "off", None: "default"}[value] if value is None or isinstance(value, bool) else str(value)


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
