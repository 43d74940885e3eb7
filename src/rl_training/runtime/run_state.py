"""What a run remembers of itself in a checkpoint, as read back: every number has its type, whoever wrote it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from typing_extensions import Self

from rl_training.errors import CheckpointError
from rl_training.experiment.explain import one_line
from rl_training.experiment.settings import Steps

_as_tuple = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)


class RunState(BaseModel):
    """The counterpart of `Run.state_dict`."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    env_steps: Steps
    updates: Steps
    recent: list[Annotated[tuple[int, float, int], _as_tuple]]
    num_episodes: Steps
    best_mean: float | None
    best_step: Steps
    last_evaluation: Annotated[tuple[Steps, dict[str, int | float]], _as_tuple] | None
    logged_steps: Steps
    due_since: Steps | None
    num_records: Steps
    last_metrics: dict[str, float] | None
    elapsed: Annotated[float, Field(ge=0.0)]

    @classmethod
    def parse(cls, values: Any, *, source: str, step: int) -> Self:
        """The state in `values`, of a checkpoint at `step`; CheckpointError where it is none."""
        try:
            state = cls.model_validate(values)
        except ValidationError as error:
            raise CheckpointError(f"{source}: {one_line(error, prefix='run.', unknown=lambda key: ' is not known')}") from None
        if state.env_steps != step:
            raise CheckpointError(f"{source}: run.env_steps is {state.env_steps}, but the manifest says {step}")
        return state
