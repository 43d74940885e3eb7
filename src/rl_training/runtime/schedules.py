"""From settings to the schedules of a run: learning rate, clip range, ε and β. The one place where they are made.

They run over `horizon`, the total that the run began with (or that `--extend-schedule` gave it). What a config gives in environment steps
(points, a warm-up, a callable's argument) stays where it is.
"""

from __future__ import annotations

import math

from rl_training.algorithms.schedules import CosineSchedule, ExponentialSchedule, LinearSchedule, PiecewiseSchedule, Schedule, WarmUp
from rl_training.errors import ConfigError, RunError
from rl_training.experiment.schedules import Constant, Cosine, Falling, Named, Piecewise, named_schedule
from rl_training.experiment.schedules import Schedule as ScheduleSettings
from rl_training.experiment.settings import ExploringSettings, LearningSettings, PPOSettings, ValueSettings


def learning_rate(settings: LearningSettings, horizon: int) -> float | Schedule:
    rate = settings.learning_rate
    if settings.lr_schedule == "linear" and not isinstance(rate, ScheduleSettings):
        return LinearSchedule(rate, settings.learning_rate_end, horizon)
    return build(rate, horizon, key="learning_rate")


def clip_range(settings: PPOSettings, horizon: int) -> float | Schedule:
    clip = settings.clip_coef
    if settings.clip_schedule == "linear" and not isinstance(clip, ScheduleSettings):
        return LinearSchedule(clip, 0.0, horizon)
    return build(clip, horizon, key="clip_coef")


def epsilon(settings: ExploringSettings, horizon: int) -> Schedule:
    """ε where it is one for all environments. A noisy network explores by its noise alone; with `noisy_epsilon` (arXiv:2411.03820) only
    from half of the run on, unless ε is a schedule of its own. Until then it falls as in BTR's public code (`EpsilonGreedy.update_eps` of
    VIPTankz/BeyondTheRainbowICML), which takes 1/2,000,000 of what is left away at every step: 2M steps are a time constant."""
    noisy = isinstance(settings, ValueSettings) and settings.noisy
    if isinstance(settings, ValueSettings) and noisy and not settings.noisy_epsilon:
        return lambda env_steps: 0.0
    if settings.epsilon is None:
        over = settings.epsilon_start, settings.epsilon_end, settings.exploration_fraction * horizon
        falling = ExponentialSchedule(*over)
        return (lambda env_steps: falling(env_steps) if 2 * env_steps < horizon else 0.0) if noisy else LinearSchedule(*over)
    made = build(settings.epsilon, horizon, key="epsilon", high=1.0)
    return made if callable(made) else lambda env_steps: made


def priority_beta(settings: ValueSettings, horizon: int) -> Schedule:
    steps = settings.prioritized_beta_fraction * horizon
    return LinearSchedule(settings.prioritized_beta_start, settings.prioritized_beta_end, steps)


def build(value: float | ScheduleSettings, horizon: int, *, key: str, high: float = math.inf) -> float | Schedule:
    """A number as it is, a schedule as a callable of environment steps."""
    if isinstance(value, Constant):
        return value.value if not value.warmup else WarmUp(value.warmup, LinearSchedule(value.value, value.value, 0))
    if isinstance(value, Falling):
        form = CosineSchedule if isinstance(value, Cosine) else LinearSchedule
        falling = form(value.start, value.end, value.fraction * horizon - value.warmup)
        return WarmUp(value.warmup, falling) if value.warmup else falling
    if isinstance(value, Piecewise):
        return PiecewiseSchedule(value.points)
    if isinstance(value, Named):
        return _checked(value.name, key, high)
    assert not isinstance(value, ScheduleSettings)  # all kinds stand above
    return value


def _checked(name: str, key: str, high: float) -> Schedule:
    """A callable of somebody's own, which may give anything."""
    given = named_schedule(name)
    if given is None:
        raise ConfigError(f"{key} of this run is a callable ({name}): pass it again, schedules={{{key!r}: ...}} in load or resume")

    def checked(env_steps: int) -> float:
        value = float(given(env_steps))
        if not (math.isfinite(value) and 0.0 <= value <= high):
            most = f" and <= {high:g}" if high < math.inf else ""
            raise RunError(f"the schedule of {key} gave {value} at step {env_steps}: it must be a number >= 0{most}")
        return value

    return checked


def end_at_zero(settings: object, horizon: int) -> list[str]:
    """The schedules without which nothing is learned, where they have fallen to 0 at the horizon that they run over."""
    found = []
    if isinstance(settings, LearningSettings):
        rates: dict[str, float | Schedule | None] = {"learning_rate": _falling(settings.learning_rate, learning_rate(settings, horizon))}
        if isinstance(settings, PPOSettings):
            rates["clip_coef"] = _falling(settings.clip_coef, clip_range(settings, horizon))
        found = [key for key, made in rates.items() if callable(made) and made(horizon) == 0]
    return found


def _falling(value: float | ScheduleSettings, made: float | Schedule) -> float | Schedule | None:
    """`made`, but for points and callables, which say themselves at which step they are what."""
    return None if isinstance(value, (Piecewise, Named)) else made
