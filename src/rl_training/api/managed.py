"""`ManagedAlgorithm`: what users import, train, ask and save. All the work is done by runtime/workflows.py."""

from __future__ import annotations

import contextlib
import inspect
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from rl_training.api.environments import read_environment, require_maker
from rl_training.api.keywords import SAID_OTHERWISE, RowSignature, documentation, unknown_keyword
from rl_training.errors import CheckpointError, ConfigError, Interrupted, LearningInterrupted, UserError, warn
from rl_training.experiment.config import TrainConfig, load_config, row_values
from rl_training.experiment.explain import shown, whole_number
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.shipped import shipped_for

if TYPE_CHECKING:
    import gymnasium as gym

    from rl_training.models.network import Network
    from rl_training.runtime.callbacks import Callback, StepFunction
    from rl_training.runtime.observations import WrappedObservations
    from rl_training.runtime.policy import Policy
    from rl_training.runtime.run import TrainResult

_CLASSES: dict[str, str] = {}


class ManagedAlgorithm:
    """One row of the registry as an object.

    `DQN.from_config("dqn/cartpole")` has the settings that were measured; `DQN("CartPole-v1", learning_rate=1e-3, num_envs=4, ...)` the
    row's defaults, but for the keys of a config and of the row that are given; `DQN(config)` what a `TrainConfig` says.
    Instead of an environment's id, a callable that makes one will do; such a run is loaded and resumed by passing it again as `env`.
    What `gymnasium.make` gave is taken for its id and keywords: a run makes its own environments.

    A class for a row of your own: `class Mine(ManagedAlgorithm, row="mine"): ...`.
    """

    row: ClassVar[str]
    algo_name: ClassVar[str]
    """The same name, as configs call it: `algo`."""
    __signature__ = RowSignature()

    def __init_subclass__(cls, *, row: str, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.row = cls.algo_name = row
        _CLASSES.setdefault(row, cls.__name__)
        with contextlib.suppress(ConfigError):  # a row that is registered later has its keys in its signature alone
            cls.__doc__ = f"{inspect.cleandoc(cls.__doc__ or '')}\n\n{documentation(row)}"

    def __init__(self, config: TrainConfig | str | gym.Env[Any, Any] | Callable[..., Any], *more: Any, **keywords: Any) -> None:
        if more:
            raise UserError(f"{type(self).__name__} takes one environment or config, and the rest by name: {SAID_OTHERWISE['policy']}")
        self._env: Callable[..., Any] | None = None
        self._total_is_unsaid = not isinstance(config, TrainConfig) and "total_timesteps" not in keywords
        self._hint: str | None = None
        """Said once, where the defaults are about to be trained and there is something better."""
        if isinstance(config, TrainConfig):
            if config.algo != self.row:
                raise ConfigError(f"this config {_wrong_row(config.algo, type(self))}")
            base = dict(config)
        else:
            env_id, env_kwargs, self._env = read_environment(config)
            base = {**row_values(self.row, env_id), "env_kwargs": env_kwargs}
            if env_kwargs and isinstance(own := keywords.get("env_kwargs"), Mapping):
                keywords["env_kwargs"] = {**env_kwargs, **own}
        self.config = TrainConfig(**{**base, **_sorted_keywords(self.row, keywords, base)})
        if not isinstance(config, TrainConfig):
            self._hint = _hint(type(self), self.config)
        self.checkpoint_path: Path | None = None
        """The newest checkpoint of what this object has learned or loaded."""
        self._goes_on_in_place = True
        self._policy: Policy | None = None
        self._schedules: dict[str, Callable[[int], float]] = {}
        self._wrapped: WrappedObservations | None = None
        self._last_action: Any = None

    if not TYPE_CHECKING:  # type checkers know the attributes there are

        def __setattr__(self, name: str, value: Any) -> None:
            """A key of the config, assigned here, would do nothing."""
            config = self.__dict__.get("config")
            if config is not None and (name in TrainConfig.model_fields or name in type(config.settings).model_fields):
                new = f"{type(self).__name__}(agent.config, {name}={shown(value)})"
                raise ConfigError(f"{name} cannot be assigned; {new} makes a new agent with it")
            super().__setattr__(name, value)

    @classmethod
    def from_config(cls, config: str | Path, **overrides: Any) -> Self:
        """What a config file says: a path, or the name of a shipped one, such as `dqn/cartpole` (`rl-training configs` lists them).
        `overrides` are keys of a config or of the row."""
        loaded = load_config(config)
        if loaded.algo != cls.row:
            raise ConfigError(f"{config}: {_wrong_row(loaded.algo, cls)}")
        return cls(loaded, **overrides)

    def learn(
        self,
        total_timesteps: int | None = None,
        *,
        extend_schedule: bool = False,
        callbacks: Callback | StepFunction | Sequence[Callback | StepFunction] = (),
        quiet: bool = True,
        **unknown: Any,
    ) -> TrainResult:
        """Trains `total_timesteps` more environment steps (None: up to the config's total) and returns the result.

        A later call goes on exactly where the last one stopped; ε, β and the learning rate keep the schedule of the config's total.
        With `extend_schedule` they run over what this call makes the total, so that the rate at step t is that of t / new total.
        callbacks: one or several, each a `Callback` or a function `(run, step)` that is called after every step (False ends the run).
        """
        from rl_training.runtime.callbacks import as_callbacks

        if unknown:
            known = ("total_timesteps", "extend_schedule", "callbacks", "quiet")
            raise UserError(unknown_keyword(next(iter(unknown)), known, owner="learn"))
        if total_timesteps is not None:
            total_timesteps = whole_number(total_timesteps, "total_timesteps", least=1)
        watched = (self._watcher(), *as_callbacks(callbacks))  # first: a callback of the user's may raise
        try:
            return self._train(total_timesteps, extend_schedule=extend_schedule, callbacks=watched, quiet=quiet)
        except Interrupted as error:  # told in short: where the run was when it noticed is of no interest
            go_on = "" if self.checkpoint_path is None else "; learn() goes on from there"
            raise LearningInterrupted(f"{error}{go_on}", signum=error.signum, run_dir=error.run_dir) from None

    def _train(self, total_timesteps: int | None, *, extend_schedule: bool, callbacks: tuple[Callback, ...], quiet: bool) -> TrainResult:
        from rl_training.runtime import workflows

        self._policy = None
        if self.checkpoint_path is None:
            if total_timesteps is None:
                config = self.config
            elif self._total_is_unsaid:
                config = self.config = self.config.replace(total_timesteps=total_timesteps)
            else:
                horizon = total_timesteps if extend_schedule else self.config.horizon
                config = self.config.replace(total_timesteps=total_timesteps, schedule_timesteps=horizon)
            if self._hint is not None:
                warn(self._hint)
                self._hint = None
            result = workflows.train(config, callbacks=callbacks, env=self._env, quiet=quiet)
        else:
            from rl_training.experiment.checkpointing import find_run, open_checkpoint

            opened = open_checkpoint(self.checkpoint_path)
            opened.require_for_resume()
            step = opened.step
            end = max(step, self.config.total_timesteps) if total_timesteps is None else step + total_timesteps
            with self._place_to_go_on() as path:
                new_in = self.config.output_dir if find_run(path) is None else None
                where: dict[str, Any] = {"total_timesteps": end, "extend_schedule": extend_schedule, "output_dir": new_in, "env": self._env}
                where |= {"trackers": self.config.trackers, "schedules": self._schedules}  # what no file holds: passwords, callables
                where["ray_address"] = self.config.ray_address
                result = workflows.resume_training(path, callbacks=callbacks, quiet=quiet, **where)
        self.checkpoint_path, self._goes_on_in_place, self._total_is_unsaid = result.checkpoint_path, True, False
        return result

    def predict(
        self,
        obs: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        *,
        action_masks: Any = None,
        previous: Any = None,
    ) -> tuple[Any, Any]:
        """Actions for one observation or a batch, as the network reads them (wrappers applied, not normalised), and the state to pass in
        next time (recurrent rows; others carry nothing). action_masks: what may be chosen, for each observation (None: everything).
        previous: (actions, rewards) that led to the observations, where the row has `previous_action_reward`.

        A mapping is one observation as a Dict environment gives it: the run's wrappers are applied to it. Where these look back
        (`frame_stack`), say `episode_start=True` when an episode begins.
        """
        ask = partial(self._asked().predict, action_masks=action_masks, previous=previous)
        if not isinstance(obs, Mapping):
            return ask(obs, state, episode_start, deterministic)
        if self._wrapped is None:
            from rl_training.runtime import workflows

            self._wrapped = workflows.wrapped_observations(self.config, self.checkpoint_path, env=self._env)
        try:
            read = self._wrapped(obs, self._last_action, episode_start=bool(episode_start))
        except UserError as error:
            raise UserError(f"an observation {error}") from None
        self._last_action, state = ask(read, state, episode_start, deterministic)
        return self._last_action, state

    @property
    def network(self) -> Network:
        """The network that acts, with the weights of the newest checkpoint: a `torch.nn.Module`."""
        return self._asked().network

    def _asked(self) -> Policy:
        """The policy as it is now, made or loaded when somebody asks."""
        if self._policy is None:
            from rl_training.runtime import workflows

            self._wrapped = self._last_action = None
            if self.checkpoint_path is None:
                self._policy = workflows.fresh_policy(self.config, env=self._env)
            else:
                self._policy = workflows.load_policy(self.checkpoint_path)
        return self._policy

    def __repr__(self) -> str:
        at = "untrained"
        if self.checkpoint_path is not None:
            step = self.checkpoint_path.resolve().name.removeprefix("step_")
            total = self.config.total_timesteps
            steps = "loaded" if not step.isdecimal() else f"step {int(step):,}" + (f" of {total:,}" if int(step) < total else "")
            at = f"{steps}, {self.checkpoint_path}"
        return f"{type(self).__name__}({self.config.env_id!r}, seed={self.config.seed}: {at})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A pickle would hold the name of a checkpoint, not what was learned, and two copies would train in one run."""
        name = type(self).__name__
        raise UserError(f"{name} is neither pickled nor copied: agent.save(path) writes what it has learned, {name}.load(path) reads it")

    def evaluate(
        self,
        num_episodes: int = 20,
        *,
        seed: int | None = None,
        record: str | Path | None = None,
        device: str | None = None,
        **unknown: Any,
    ) -> dict[str, float]:
        """Greedy episodes with what was learned last: a dict with `eval_return_mean`, `eval_return_std`, ...

        record: an .mp4 file for them, one after another (extra `video`). device: another one than the run's.
        """
        from rl_training.runtime import workflows

        if unknown:
            raise UserError(unknown_keyword(next(iter(unknown)), ("num_episodes", "seed", "record", "device"), owner="evaluate"))
        checkpoint = self._trained("evaluate")
        return workflows.evaluate_checkpoint(checkpoint, num_episodes=num_episodes, seed=seed, env=self._env, record=record, device=device)

    def save(self, path: str | Path) -> Path:
        """Copies the newest checkpoint to the directory `path`: `load` and `resume` take it, and so does the command line."""
        from rl_training.experiment.checkpoint_copy import copy_checkpoint

        return copy_checkpoint(self._trained("save"), path)

    def export(self, path: str | Path) -> Path:
        """Writes the newest checkpoint's greedy policy as one file that runs without this package: a .onnx (extra `export`) or a .pt2."""
        from rl_training.exchange.export import export_policy

        return export_policy(self._trained("export"), path, env=self._env)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        env: Callable[..., Any] | None = None,
        schedules: Mapping[str, Callable[[int], float]] | None = None,
    ) -> Self:
        """What a checkpoint holds, to ask, evaluate or train on; training goes on in a new run, beside what was loaded, and leaves that one
        as it is. `env` and `schedules` are the callables that the run was made with, to train on: no file holds them."""
        loaded = cls.resume(path, env=env, schedules=schedules)
        loaded._goes_on_in_place = False
        return loaded

    @classmethod
    def resume(
        cls,
        checkpoint: str | Path,
        *,
        env: Callable[..., Any] | None = None,
        schedules: Mapping[str, Callable[[int], float]] | None = None,
        ray_address: str | None = None,
    ) -> Self:
        """The run a checkpoint belongs to: `learn()` goes on in its directory, from this checkpoint, as if it had never stopped.

        ray_address: of the cluster it goes on with, where it was on one.
        """
        from rl_training.experiment.checkpointing import open_checkpoint

        opened, env = open_checkpoint(checkpoint), require_maker(env)
        if opened.config.algo != cls.row:
            raise CheckpointError(f"{checkpoint}: {_wrong_row(opened.config.algo, cls)}")
        if env is not None:
            from rl_training.runtime import workflows

            workflows.require_fitting_env(opened, env)
        # A `learn(n)` that stopped short of the total it began with has its end in the saved config: the object's total is the larger one.
        # Where a new run is made is not for the file to say: beside the checkpoint, or the run it is in.
        config, beside = opened.config, (opened.run_dir or opened.path.absolute()).parent
        total = max(config.total_timesteps, config.horizon)
        resumed = cls(config.replace(total_timesteps=total, schedule_timesteps=config.horizon, output_dir=beside, ray_address=ray_address))
        resumed._env, resumed.checkpoint_path, resumed._schedules = env, opened.path, dict(schedules or {})
        return resumed

    def _trained(self, verb: str) -> Path:
        if self.checkpoint_path is None:
            raise UserError(f"there is nothing to {verb} before learn() or load()")
        return self.checkpoint_path

    @contextlib.contextmanager
    def _place_to_go_on(self) -> Iterator[Path]:
        """The checkpoint to train on from. A copy stands in no run's directory, so a loaded one goes on in a new one."""
        path = self._trained("resume")
        if self._goes_on_in_place:
            yield path
            return
        from rl_training.experiment.checkpoint_copy import copy_checkpoint

        with tempfile.TemporaryDirectory() as folder:
            yield copy_checkpoint(path, Path(folder) / "checkpoint")

    def _watcher(self) -> Callback:
        """Notes every checkpoint, so that an interrupted `learn` can go on."""
        from rl_training.runtime.callbacks import Callback

        algorithm = self

        class Watcher(Callback):
            def on_checkpoint(self, run: Any, path: Path) -> None:
                algorithm.checkpoint_path, algorithm._goes_on_in_place = path, True

        return Watcher()


def _wrong_row(algo: str, cls: type[ManagedAlgorithm]) -> str:
    right = _CLASSES.get(algo)
    return f"is of {algo}, and {cls.__name__} is {cls.row}" + (f"; use rl_training.{right}" if right else "")


def _hint(cls: type[ManagedAlgorithm], config: TrainConfig) -> str | None:
    """Where a row's bare defaults are asked for and a config is shipped for them: what to write to have it."""
    shipped = None if config.algo_kwargs or config.env_kwargs else shipped_for(config.algo, config.env_id)
    if shipped is None:
        return None
    return f'{config.algo} on {config.env_id} with its defaults; the settings that were tuned: {cls.__name__}.from_config("{shipped}")'


def _sorted_keywords(row: str, keywords: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords as a config has them: its own keys at the top, the row's under `algo_kwargs`, beside what `base` has there already."""
    top = TrainConfig.model_fields.keys() - {"algo", "env_id"}
    inner = get_algorithm_spec(row).settings.model_fields.keys()
    unknown = next((key for key in keywords if key not in top and key not in inner), None)
    if unknown is not None:
        raise ConfigError(unknown_keyword(unknown, top | inner, owner=f"a config or of {row}"))
    values = {key: value for key, value in keywords.items() if key in top}
    if not isinstance(values.get("algo_kwargs", {}), Mapping):
        return values  # which the config refuses, in its words
    given = {key: value for key, value in keywords.items() if key in inner}
    return {**values, "algo_kwargs": {**base.get("algo_kwargs", {}), **values.get("algo_kwargs", {}), **given}}
