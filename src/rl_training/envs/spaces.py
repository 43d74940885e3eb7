"""Which observations and actions a row can learn from, and what to do about the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.envs.images import is_image
from rl_training.errors import SpaceError

_WORDS = {
    "box": "a Box",
    "vector": "a Box of one dimension",
    "image": "images (uint8, of two or three dimensions)",
    "discrete": "Discrete",
    "multi_discrete": "MultiDiscrete",
    "multi_binary": "MultiBinary",
    "tuple": "a Tuple",
    "dict": "a Dict",
}
_FLATTEN = "add the wrapper `flatten` (env_kwargs: {wrappers: [flatten]})"
_IMAGES = ("vector", "image")


def require_spaces(
    row: str,
    obs_space: gym.Space[Any],
    action_space: gym.Space[Any],
    *,
    observations: tuple[str, ...] = ("box",),
    actions: tuple[str, ...] = ("discrete",),
    torso: str = "auto",
) -> None:
    """Raises SpaceError, naming the row, the space and what would work, unless both spaces are of a kind the row takes.

    Kinds: box (any), vector (1-D Box), image (as images.py reads them), discrete, multi_discrete, multi_binary, tuple, dict.
    torso: what the row reads observations with, where the settings name one.
    """
    if not _kinds(obs_space) & set(observations):
        named = "" if torso == "auto" else f" with torso: {torso}"
        takes = f"{row}{named} cannot learn from the observation space {_name(obs_space)}: it takes {_list(observations)}"
        raise SpaceError(f"{takes}; {_remedy(obs_space, observations, torso)}")
    if not _kinds(action_space) & set(actions):
        raise SpaceError(
            f"{row} cannot act in the action space {_name(action_space)}: it takes {_list(actions)}; "
            "choose an algorithm for that space (`rl-training algos`) or wrap the environment so that its actions are of that kind"
        )


def _remedy(space: gym.Space[Any], observations: tuple[str, ...], torso: str) -> str:
    kinds = _kinds(space)
    if torso != "auto" and kinds & set(_IMAGES):
        return f"leave torso out, and the right one for {'images' if 'image' in kinds else 'vectors'} is chosen"
    if "image" in observations and isinstance(space, spaces.Box) and len(space.shape) == 3:
        return "wrap the environment so that it gives its images as uint8, 0 … 255: a network divides by the space's `high` itself"
    if "image" in kinds:
        return "use a row that learns from images, or give this one a `network` and `observations` of its own"
    if isinstance(space, spaces.Dict) and "image" in observations and (images := [key for key, part in space.items() if is_image(part)]):
        return f"learn from the image alone (env_kwargs: {{wrappers: [{{select: {{key: {images[0]}}}}}]}})"
    flattens = space.is_np_flattenable and {"box", "vector"} & set(observations)  # a Sequence or a Graph has no one length
    return _FLATTEN if flattens else "wrap the environment so that it gives one"


def describe_action_space(space: gym.Space[Any]) -> dict[str, Any]:
    """What a policy needs to know of the actions, as a manifest can hold it; only the kind where no row acts in such a space."""
    if isinstance(space, spaces.Discrete):
        return {"kind": "discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = ([int(n) for n in np.ravel(values)] for values in (space.nvec, space.start))
        return {"kind": "multi_discrete", "shape": list(space.shape), "nvec": nvec, "start": start}
    if isinstance(space, spaces.Box):
        low, high = ([float(bound) for bound in np.ravel(bounds)] for bounds in (space.low, space.high))
        return {"kind": "box", "shape": list(space.shape), "low": low, "high": high}
    return {"kind": type(space).__name__}


def require_same_spaces(saved: Mapping[str, Any], found: Mapping[str, Any], *, source: object) -> None:
    """Raises SpaceError unless an environment is of the kind the network in a checkpoint (`source`) was made for.

    Both as `describe_spaces` gives them. The bounds of a Box may differ: they change no shape.
    """
    if _kind_of(saved) != _kind_of({**found, "action": {key: found["action"].get(key) for key in saved["action"]}}):
        raise SpaceError(f"{source}: was trained with {_kind_of(saved)}; this environment has {_kind_of(found)}")


def _kind_of(described: Mapping[str, Any]) -> str:
    action = {key: value for key, value in described["action"].items() if key not in ("low", "high")}
    return f"observations of shape {tuple(described['obs_shape'])} ({described['obs_dtype']}) and actions {action}"


def first_action(action: Mapping[str, Any]) -> int:
    """What a Discrete action counted from 0 lacks to be the environment's own; 0 for other spaces, as `describe_action_space` gives them.

    Networks, replay and rollouts count from 0. The adapter adds this to what it hands to the environments, a policy to what it answers.
    """
    return int(action.get("start") or 0) if action["kind"] == "discrete" else 0


def _kinds(space: gym.Space[Any]) -> set[str]:
    if isinstance(space, spaces.Box):
        kinds = {"box"}
        if len(space.shape) == 1:
            kinds.add("vector")
        if is_image(space):
            kinds.add("image")
        return kinds
    table = {
        spaces.Discrete: "discrete",
        spaces.MultiDiscrete: "multi_discrete",
        spaces.MultiBinary: "multi_binary",
        spaces.Tuple: "tuple",
        spaces.Dict: "dict",
    }
    return {kind for cls, kind in table.items() if isinstance(space, cls)}


def _name(space: gym.Space[Any]) -> str:
    """One short line: a Box prints its bounds, which may be a whole image."""
    return f"Box(shape={space.shape}, {space.dtype})" if isinstance(space, spaces.Box) else " ".join(str(space).split())


def _list(kinds: tuple[str, ...]) -> str:
    return " or ".join(_WORDS[kind] for kind in kinds)


def as_read(space: gym.Space[Any]) -> gym.Space[Any]:
    """The space of what we hand out: Box observations are float32, or uint8 where they are (images stay one byte a value)."""
    if not isinstance(space, spaces.Box) or space.dtype in (np.float32, np.uint8):
        return space
    with np.errstate(over="ignore"):  # a bound such as the largest float64 becomes infinite
        return spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)
