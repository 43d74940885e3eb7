"""What a user may give for an environment: its id, a callable that makes one, or one that Gymnasium made from an id.

A run makes several environments (for training, for evaluation, again after a resume), so an object alone will not do: it is taken where it
says how it was made, and refused with what to write instead where it does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rl_training.errors import ConfigError
from rl_training.experiment.config import callable_env_id


class Environment(NamedTuple):
    """As a config has it. `make` is the callable, where one was given; it is passed on beside the config."""

    env_id: str
    env_kwargs: dict[str, Any]
    make: Callable[..., Any] | None = None


def read_environment(given: Any) -> Environment:
    """What `given` means, or a ConfigError that says what to give."""
    if isinstance(given, str):
        return Environment(given, {})
    if hasattr(given, "reset") and not isinstance(given, type):
        return _of_object(given)
    if callable(given):
        return Environment(callable_env_id(given), {}, given)
    raise ConfigError(f"an environment is an id such as CartPole-v1, or a callable that makes one, got {given!r:.60}")


def require_maker(given: Any) -> Callable[..., Any] | None:
    """What `load` and `resume` take as `env`: the callable that the run was made with."""
    if given is None:
        return None
    if isinstance(given, type) or (callable(given) and not hasattr(given, "reset")):
        maker: Callable[..., Any] = given
        return maker
    raise ConfigError(f"env must be the callable that makes the run's environment, got {given!r:.60}")


def _of_object(env: Any) -> Environment:
    several = getattr(env, "num_envs", None)
    spec = getattr(env, "spec", None)
    if isinstance(several, int):  # Gymnasium's, and Stable-Baselines3's
        one = repr(spec.id) if spec is not None else "the id of one of them (or a callable that makes one)"
        raise ConfigError(f"a vector environment is not taken, since a run makes its own: give {one} and num_envs={several}")
    kept = "give a callable that makes it (a run makes several), such as lambda: MyEnv(...)"
    if spec is None:
        raise ConfigError(f"{type(env).__name__} does not say how it was made: {kept}")
    if spec.additional_wrappers:
        names = ", ".join(wrapper.name for wrapper in spec.additional_wrappers)
        raise ConfigError(f"{spec.id} is wrapped ({names}): {kept}, or name the wrappers in env_kwargs")
    return Environment(spec.id, _changed(spec))


def _changed(spec: Any) -> dict[str, Any]:
    """The keywords it was made with, beside those it is registered with; a window is not for training."""
    import gymnasium as gym

    registered = gym.spec(spec.id)
    changed = {key: value for key, value in spec.kwargs.items() if key != "render_mode" and registered.kwargs.get(key) != value}
    if spec.max_episode_steps != registered.max_episode_steps:
        changed["max_episode_steps"] = spec.max_episode_steps
    return changed
