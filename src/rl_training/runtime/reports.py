"""What a run has measured so far, and the records it writes of it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping

import numpy as np
import torch

from rl_training.errors import RunError, warn
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.logging import Sinks
from rl_training.runtime.run_parts import Clock, Parts
from rl_training.runtime.run_state import RunState
from rl_training.types import Episode, State, UpdateResult

RECENT_EPISODES = 100  # as many as Stable-Baselines3 averages rollout/ep_rew_mean over
CLIPPED_SHARE_WARNING = 0.05


class Reports:
    """Made before a run is restored; writes once `open` has given it somewhere to write."""

    def __init__(self, config: TrainConfig, parts: Parts, clock: Clock) -> None:
        self._config, self._parts, self._clock = config, parts, clock
        self.recent: deque[Episode] = deque(maxlen=RECENT_EPISODES)
        self.num_episodes = 0
        self.best_mean: float | None = None
        self.best_step = 0
        self.last_result: UpdateResult | None = None
        self.last_evaluation: tuple[int, dict[str, float]] | None = None
        self.logged_steps = 0
        self.num_records = 0  # in metrics.jsonl
        self._elapsed_before = 0.0
        self._warned_clipping = self._warned_cut = False

    def open(self, sinks: Sinks) -> None:
        self._sinks = sinks
        self._began = self._logged_at = time.perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds spent in this run, resumed parts included."""
        return self._elapsed_before + time.perf_counter() - self._began

    @property
    def is_logged(self) -> bool:
        return self.logged_steps == self._clock.env_steps

    @property
    def is_evaluated(self) -> bool:
        return self.last_evaluation is not None and self.last_evaluation[0] == self._clock.env_steps

    def saw(self, episodes: Iterable[Episode]) -> None:
        """Episodes of training have ended."""
        for episode in episodes:
            self.recent.append(episode)
            self.num_episodes += 1

    def evaluated(self, metrics: dict[str, float]) -> bool:
        """Writes an evaluation; whether it is the best so far (the first one on ties)."""
        now = self._clock.env_steps
        self._warn_of_cut_episodes(metrics)
        self.last_evaluation = (now, metrics)
        is_best = self.best_mean is None or metrics["eval_return_mean"] > self.best_mean
        if is_best:
            self.best_mean, self.best_step = metrics["eval_return_mean"], now
        tags = {"eval/mean_reward": "eval_return_mean", "eval/std_reward": "eval_return_std", "eval/mean_ep_length": "eval_length_mean"}
        self._write({tag: metrics[key] for tag, key in tags.items()})
        return is_best

    def log(self) -> dict[str, float]:
        """Reads the metrics, which stayed on the device until now, and writes them."""
        now, env_steps = time.perf_counter(), self._clock.env_steps
        record = {
            "time/fps": (env_steps - self.logged_steps) / max(now - self._logged_at, 1e-9),
            "time/time_elapsed": self.elapsed,
            "train/n_updates": float(self._clock.updates),
            "rollout/episodes": float(self.num_episodes),
        }
        self._logged_at, self.logged_steps = now, env_steps
        if self.recent:
            record["rollout/ep_rew_mean"] = float(np.mean([episode.episode_return for episode in self.recent]))
            record["rollout/ep_len_mean"] = float(np.mean([episode.length for episode in self.recent]))
        if self._parts.exploration_rate is not None:
            record["rollout/exploration_rate"] = self._parts.exploration_rate(env_steps)
        if self._parts.measures is not None:
            record.update(self._parts.measures())
        if self.last_result is not None:
            record.update({f"train/{name}": float(value) for name, value in self.last_result.metrics.items()})
            record["train/learning_rate"] = self._parts.learner.current_learning_rate(env_steps)
            self._warn_of_clipping(record.get("train/clipped_share", 0.0))
            if not np.isfinite(record.get("train/loss", 0.0)):
                raise RunError(f"the loss is {record['train/loss']} at step {env_steps}: learning has diverged")
        self._write(record)
        return record

    def _write(self, record: dict[str, float]) -> None:
        self._sinks.write(self._clock.env_steps, record)
        self.num_records += 1

    def _warn_of_cut_episodes(self, metrics: Mapping[str, float]) -> None:
        if metrics["eval_cut_episodes"] and not self._warned_cut:
            self._warned_cut = True
            warn(
                f"evaluation at step {self._clock.env_steps}: {metrics['eval_cut_episodes']} of {metrics['eval_episodes']} episodes went "
                f"on after eval_max_steps = {self._config.eval_max_steps:,} steps; they were cut there and count as they stood",
                RuntimeWarning,
            )

    def _warn_of_clipping(self, share: float) -> None:
        if share > CLIPPED_SHARE_WARNING and not self._warned_clipping:
            self._warned_clipping = True
            warn(
                f"{share:.0%} of the target's mass lies outside [v_min, v_max] at step {self._clock.env_steps}: widen the support",
                RuntimeWarning,
            )

    def final(self) -> dict[str, float]:
        """The figures of the result, after the final evaluation."""
        assert self.last_evaluation is not None
        replay = self._parts.replay
        return {
            "global_step": self._clock.env_steps,
            **self.last_evaluation[1],
            "buffer_size": 0 if replay is None else replay.num_transitions + self._parts.actor.num_open,
            "num_updates": self._clock.updates,
            "num_episodes": self.num_episodes,
            "best_eval_return_mean": self.best_mean if self.best_mean is not None else float("nan"),
            "best_step": self.best_step,
            "wall_time_s": self.elapsed,
        }

    def state_dict(self) -> State:
        return {
            "recent": [list(episode) for episode in self.recent],
            "num_episodes": self.num_episodes,
            "best_mean": self.best_mean,
            "best_step": self.best_step,
            "last_evaluation": None if self.last_evaluation is None else list(self.last_evaluation),
            "logged_steps": self.logged_steps,
            "num_records": self.num_records,
            # An on-policy run logs its last update for many steps: a resumed one must go on doing so.
            "last_metrics": None if self.last_result is None else {name: float(x) for name, x in self.last_result.metrics.items()},
            "elapsed": self.elapsed,
        }

    def restore(self, state: RunState) -> None:
        self.recent.extend(Episode(*episode) for episode in state.recent)
        self.num_episodes = state.num_episodes
        self.best_mean, self.best_step = state.best_mean, state.best_step
        self.last_evaluation = state.last_evaluation
        self.logged_steps, self.num_records = state.logged_steps, state.num_records
        if state.last_metrics is not None:
            self.last_result = UpdateResult({name: torch.tensor(x, dtype=torch.float64) for name, x in state.last_metrics.items()}, 0)
        self._elapsed_before = state.elapsed
