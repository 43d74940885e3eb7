"""What a config asks for that nobody means: said before the run begins, or refused where nothing at all would be learned."""

from __future__ import annotations

from collections.abc import Iterator

from rl_training.errors import ConfigError, warn
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.settings import RolloutSettings, ValueSettings
from rl_training.runtime.schedules import end_at_zero


def check_sanity(config: TrainConfig) -> None:
    """Raises or warns. A run that is learned in pieces is judged by the whole: by the total its schedules run over."""
    whole = max(config.total_timesteps, config.horizon)
    settings = config.settings
    if isinstance(settings, RolloutSettings) and whole < (rollout := settings.num_steps * config.num_envs):
        raise ConfigError(
            f"total_timesteps: {whole} environment steps are less than one rollout ({settings.num_steps} num_steps × {config.num_envs} "
            f"num_envs = {rollout}), so nothing would be learned: take {rollout} or more, or a smaller algo_kwargs.num_steps"
        )
    for text in _doubts(config, whole):
        warn(text)


def _doubts(config: TrainConfig, whole: int) -> Iterator[str]:
    settings = config.settings
    if isinstance(settings, ValueSettings):
        if whole < settings.learning_starts:
            yield f"nothing is learned: learning_starts is {settings.learning_starts:,} and the run ends at step {whole:,}"
        if settings.epsilon_ladder and not settings.noisy and config.num_envs == 1:
            yield "epsilon_ladder over one environment is ε = 0.4 for ever: take more num_envs, or epsilon_ladder: false"
    if config.total_timesteps > config.horizon:
        for name in end_at_zero(settings, config.horizon):
            yield (
                f"{name} is 0 from step {config.horizon:,} on, where its schedule ends, and steps up to {config.total_timesteps:,} teach "
                "nothing: with resume --extend-schedule, or learn(n, extend_schedule=True), it runs over the new total"
            )
