"""From an environment's name, or a callable, to environments one can step: `make_envs`."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import DependencyNotInstalled
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from rl_training.envs import blobs as _blobs  # noqa: F401  (importing it registers rl_training/Blobs-v0 and rl_training/MemoryBlobs-v0)
from rl_training.envs import chain as _chain  # noqa: F401  (importing it registers rl_training/Chain-v0 and rl_training/MemoryChain-v0)
from rl_training.envs.atari.presets import FRAME_STACK as ATARI_STACK
from rl_training.envs.atari.source import PREFIX as ATARI_PREFIX
from rl_training.envs.atari.source import AtariSource, import_ale, todays_name
from rl_training.envs.episodes import FAILURES, ReplayableEpisodes
from rl_training.envs.images import KEY as IMAGE_CHANNELS
from rl_training.envs.images import Channels, is_image
from rl_training.envs.memory import POPGYM_PREFIX, import_popgym  # importing it registers rl_training/TMaze-v0
from rl_training.envs.minatar import PREFIX as MINATAR_PREFIX
from rl_training.envs.minatar import register_games
from rl_training.envs.normalize import ObservationNormalizer, RewardNormalizer
from rl_training.envs.serial import SerialVectorEnv
from rl_training.envs.spaces import require_spaces
from rl_training.envs.stacking import KEY as FRAME_STACK
from rl_training.envs.vector import VectorEnvs
from rl_training.envs.workers import WorkerVectorEnv
from rl_training.envs.wrappers import Wrappers, parse_wrappers
from rl_training.errors import UserError, one_line

__all__ = ["EnvSource", "Vectorization", "find_env", "make_envs", "require_spaces"]

EnvSource: TypeAlias = str | Callable[..., gym.Env[Any, Any]]
Source: TypeAlias = EnvSpec | Callable[..., gym.Env[Any, Any]]  # an AtariSource is such a callable
Vectorization: TypeAlias = Literal["auto", "sync", "async", "native"]

OURS = ("wrappers", IMAGE_CHANNELS, FRAME_STACK)
"""The keys of `env_kwargs` that are not the environment's."""


def make_envs(
    env: EnvSource | EnvSpec,
    *,
    num_envs: int,
    seed: int,
    first_index: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    vectorization: Vectorization = "auto",
    seed_stream: str = "train",
    update_statistics: bool = True,
    gamma: float = 0.99,
    record: bool = True,
    max_steps: int | None = None,
    watch: Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]] | None = None,
) -> VectorEnvs:
    """Makes `num_envs` environments behind one adapter.

    env: a registered id, `module:Id`, what `find_env` found, or a callable that returns an environment. `env_kwargs` goes to it, except
    `wrappers` (wrappers.py), `image_channels` (images.py) and `frame_stack` (stacking.py); for `ALE/…` it names the parts of a protocol
    (atari/presets.py).
    vectorization: `auto` is the lean loop in this process; `sync` and `async` are Gymnasium's; all three resume exactly. `native` is the
    environment's own vector form, whose episodes restart on resume.
    first_index: the number of the first environment: an episode's seed is made from its environment's number.
    seed_stream: another name, another sequence of episodes from the same seed; evaluation has its own.
    update_statistics: False freezes `normalize_observation` and `normalize_reward`, as evaluation must.
    gamma: the discount of the returns that `normalize_reward` scales by, unless its own arguments say one.
    record: False keeps no actions, without which nothing can be resumed. max_steps: where an episode is cut (neither with `native`).
    watch: wraps each environment outside the named wrappers, such as a recorder (not with `native`).
    """
    kwargs = dict(env_kwargs or {})
    wrappers = parse_wrappers(kwargs.pop("wrappers", ()))
    image_channels: Channels = kwargs.pop(IMAGE_CHANNELS, "auto")
    if vectorization not in get_args(Vectorization):
        raise UserError(f"vectorization must be one of {', '.join(get_args(Vectorization))}, not {vectorization!r}")
    if num_envs < 1:
        raise UserError(f"num_envs must be at least 1, not {num_envs}")
    stack = kwargs.pop(FRAME_STACK, None)
    source, kwargs = _find_source(env, kwargs)
    protocol = source.protocol if isinstance(source, AtariSource) else None
    if stack is None:
        stack = 1 if protocol is None else ATARI_STACK
    vector_env: VectorEnv[Any, Any, Any]
    if vectorization == "native":
        vector_env = _make_native(source, num_envs, kwargs, wrappers)
    else:
        maker = EnvMaker(source, kwargs, wrappers, seed, seed_stream, 0, record, max_steps, watch)
        vector_env = _vectorize([replace(maker, index=first_index + index) for index in range(num_envs)], vectorization)
    try:
        return VectorEnvs(
            vector_env,
            replayable=vectorization != "native",
            seed=seed,
            seed_stream=seed_stream,
            first_index=first_index,
            observation_normalizer=_observation_normalizer(vector_env, wrappers, update_statistics),
            reward_normalizer=_reward_normalizer(num_envs, wrappers, gamma, update_statistics),
            image_channels=image_channels,
            clip_rewards=protocol is not None and protocol.clip_rewards,
            life_loss=protocol is not None and protocol.terminal_on_life_loss,
            notes=source.notes(native=vectorization == "native", frame_stack=stack) if isinstance(source, AtariSource) else {},
            frame_stack=stack,
        )
    except UserError:
        vector_env.close()
        raise


def make_bare(env: EnvSource, env_kwargs: Mapping[str, Any]) -> gym.Env[Any, Any]:
    """One environment as it is without the named wrappers."""
    kwargs = {key: value for key, value in env_kwargs.items() if key not in OURS}
    return _make_one(*_find_source(env, kwargs))


def _find_source(env: EnvSource | EnvSpec, kwargs: dict[str, Any]) -> tuple[Source, dict[str, Any]]:
    """What makes the environments, and what it is made with."""
    source = find_env(env) if isinstance(env, str) else env
    if not isinstance(source, EnvSpec) or not source.id.startswith(ATARI_PREFIX):
        return source, kwargs
    parts = {key: value for key, value in kwargs.items() if key != "render_mode"}
    rendering = {"render_mode": kwargs["render_mode"]} if "render_mode" in kwargs else {}
    return AtariSource.of(source, parts), rendering


def find_env(env_id: str) -> EnvSpec:
    """The registered environment of that name (`Id` or `module:Id`); UserError with the nearest known one where there is none."""
    module, _, name = env_id.rpartition(":")
    before = set(gym.registry)
    if name.startswith(POPGYM_PREFIX) or module == "popgym":
        import_popgym()
    elif name.startswith(MINATAR_PREFIX) and not module:
        register_games()
    elif name.startswith(ATARI_PREFIX):
        import_ale()
    elif module:
        try:
            importlib.import_module(module)
        except FAILURES as error:  # a module may raise anything
            raise UserError(f"environment {env_id}: module {module} cannot be imported: {one_line(error)}") from error
    try:
        return gym.spec(name)
    except Exception as error:  # Gymnasium's own, and others where the name is an odd one
        own = _registered_by(module, before) if module else []
        near = todays_name(name) or (_nearest(name, own) if own else _nearest_env(name))
        listed = ", ".join(_some([each for each in own if _family(each) == _family(name)] or own))
        hint = f"; did you mean {near}?" if near else f"; {module} registers {listed}" if own else ""
        raise UserError(f"no environment is registered as {name!r}{hint} (`module:Id` imports the module that registers it)") from error


def _nearest_env(name: str) -> str | None:
    """The registered environment most like `name`, in the family it names (`ALE/…`). Of a family that nobody knows, the Atari game of that
    name."""
    family = [each for each in gym.registry if _family(each) == _family(name)]
    return _nearest(name, family) or (None if family else todays_name(_bare(name)))


def _nearest(name: str, ids: Iterable[str]) -> str | None:
    """By what stands between family and version, since those in common are no likeness; of two alike, the one of `name`'s family."""
    known = {_bare(each): each for each in sorted(ids, key=lambda each: _family(each) == _family(name))}
    near = difflib.get_close_matches(_bare(name), known, n=1, cutoff=0.6)
    return known[near[0]] if near else None


def _family(env_id: str) -> str:
    return env_id.rpartition("/")[0]


def _bare(env_id: str) -> str:
    return env_id.rpartition("/")[2].partition("-v")[0]


def _some(ids: Sequence[str]) -> Sequence[str]:
    return ids if len(ids) <= 6 else [*ids[:4], f"{ids[4]} and {len(ids) - 5} more"]


def _registered_by(module: str, before: Collection[str]) -> list[str]:
    """The environments that were not there `before` the module was imported, and those whose classes are in its package."""
    found = []
    for spec in gym.registry.values():
        entry = spec.entry_point
        place = entry if isinstance(entry, str) else getattr(entry, "__module__", None) or ""  # a built-in has one that is None
        if spec.id not in before or re.split("[.:]", place)[0] == module.partition(".")[0]:
            found.append(spec.id)
    return found


@dataclass(frozen=True)
class EnvMaker:
    """Makes environment `index`, here or in a worker process (so it holds nothing but what can be sent there)."""

    source: Source
    kwargs: dict[str, Any]
    wrappers: Wrappers
    seed: int
    seed_stream: str
    index: int
    record: bool = True
    max_steps: int | None = None
    watch: Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]] | None = None

    def __call__(self) -> gym.Env[Any, Any]:
        env = self.wrappers.apply(_make_one(self.source, self.kwargs))
        if self.watch is not None:
            env = self.watch(env)
        how: dict[str, Any] = {"record": self.record, "max_steps": self.max_steps}
        return ReplayableEpisodes(env, seed=self.seed, stream=self.seed_stream, env_index=self.index, **how)


def _vectorize(makers: list[EnvMaker], vectorization: Vectorization) -> VectorEnv[Any, Any, Any]:
    try:
        if vectorization == "auto":
            return SerialVectorEnv(makers)
        if vectorization == "sync":
            return SyncVectorEnv(makers, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
        return WorkerVectorEnv(makers)
    except UserError:
        raise
    except Exception as error:  # Gymnasium's, of spaces that differ or that it cannot batch
        raise UserError(f"the environments cannot be stepped together: {one_line(error)}") from error


def _make_one(source: Source, kwargs: dict[str, Any]) -> gym.Env[Any, Any]:
    name = source.id if isinstance(source, EnvSpec) else getattr(source, "__name__", repr(source))
    try:
        with _no_word_on_modes() if "render_mode" in kwargs else contextlib.nullcontext():
            env: Any = gym.make(source, **kwargs) if isinstance(source, EnvSpec) else source(**kwargs)
    except UserError:
        raise
    except FAILURES as error:  # a constructor may raise anything
        if "render_mode" in kwargs and "render_mode" in str(error):
            raise UserError(f"environment {name} cannot be rendered: it takes no render_mode ({kwargs['render_mode']})") from error
        if "box2d" in str(error).lower() and isinstance(error, DependencyNotInstalled):
            raise UserError(f"environment {name} needs the package Box2D: pip install 'rl-training[box2d]'") from error
        with_kwargs = f" with env_kwargs {kwargs}" if kwargs else ""
        raise UserError(f"environment {name} cannot be made{with_kwargs}: {one_line(error)}") from error
    if not isinstance(env, gym.Env):
        several = " (one environment: num_envs says how many are made)" if isinstance(env, VectorEnv) else ""
        raise UserError(f"{name} must return a gymnasium.Env, not {type(env).__name__}{several}")
    for space in ("observation_space", "action_space"):
        if not isinstance(getattr(env, space, None), gym.Space):
            raise UserError(f"environment {name} has no {space}")
    return env


@contextlib.contextmanager
def _no_word_on_modes() -> Iterator[None]:
    """Whoever renders looks at what comes out and says what is wrong: Gymnasium's warning of the mode would be a second line."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*render_mode", category=UserWarning)
        yield


def _make_native(source: Source, num_envs: int, kwargs: dict[str, Any], wrappers: Wrappers) -> VectorEnv[Any, Any, Any]:
    if not isinstance(source, (EnvSpec, AtariSource)):
        raise UserError("vectorization: native needs an environment's registered id, not a callable")
    name = source.id if isinstance(source, EnvSpec) else source.env_id
    if isinstance(source, EnvSpec) and source.vector_entry_point is None:
        raise UserError(f"{name} has no native vector form: use vectorization auto, sync or async")
    if wrappers.per_env:
        names = ", ".join(call.name for call in wrappers.per_env)
        raise UserError(f"vectorization: native cannot wrap single environments ({names}): use vectorization auto, sync or async")
    try:
        if isinstance(source, AtariSource):
            return source.native(num_envs)
        return gym.make_vec(source, num_envs=num_envs, vectorization_mode="vector_entry_point", **kwargs)
    except UserError:
        raise
    except FAILURES as error:
        raise UserError(f"environment {name} cannot be made natively with env_kwargs {kwargs}: {one_line(error)}") from error


def _observation_normalizer(vector_env: VectorEnv[Any, Any, Any], wrappers: Wrappers, update: bool) -> ObservationNormalizer | None:
    if wrappers.observation is None:
        return None
    space = vector_env.single_observation_space
    if is_image(space):
        raise UserError("wrapper normalize_observation is for vectors: a network divides images by their largest value itself")
    if not isinstance(space, gym.spaces.Box) or space.dtype == np.uint8:
        raise UserError(f"wrapper normalize_observation needs a Box observation of real numbers, not {space}; `flatten` makes one")
    return ObservationNormalizer(space.shape, **wrappers.observation, update=update)


def _reward_normalizer(num_envs: int, wrappers: Wrappers, gamma: float, update: bool) -> RewardNormalizer | None:
    if wrappers.reward is None:
        return None
    return RewardNormalizer(num_envs, **{"gamma": gamma, **wrappers.reward}, update=update)
