"""What `algo_kwargs` may hold, typed: one class per family of rows, parsed once.

Types are strict (`"64"` is no integer), but an integer serves as a float and a list as a tuple. A key of a part that is
switched off is refused, and the message says which switch it needs: a number that silently does nothing is a wrong experiment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator
from typing_extensions import Self

from rl_training.errors import ConfigError
from rl_training.experiment.explain import did_you_mean, one_line
from rl_training.experiment.frozen import Frozen, changed_copy
from rl_training.experiment.network_parts import known_core, known_torso
from rl_training.experiment.schedules import OrSchedule, Schedule
from rl_training.types import ActivationName, InitializationName, LevelsName, LossName, OptimizerName, PaddingName

Unit = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
# Every number that decides how much memory is taken has an end, far beyond what anybody trains with: a slip, or a stranger's config,
# is told so instead of taking the machine down.
MOST = 10**15  # steps: more than a run can take, and floats still tell them apart
Count = Annotated[int, Field(ge=1, le=MOST)]
Steps = Annotated[int, Field(ge=0, le=MOST)]
Width = Annotated[int, Field(ge=1, le=16_384)]  # units of one layer
Depth = Annotated[int, Field(ge=1, le=64)]  # layers
Outputs = Annotated[int, Field(ge=1, le=10_000)]  # atoms or quantiles of one action
Items = Annotated[int, Field(ge=1, le=10_000_000_000)]  # of a buffer, which says itself whether it fits into memory
BatchItems = Annotated[int, Field(ge=1, le=1_048_576)]
Window = Annotated[int, Field(ge=1, le=4_096)]  # steps of one n-step window
Stretch = Annotated[int, Field(ge=1, le=65_536)]  # steps of one sequence
Rounds = Annotated[int, Field(ge=1, le=1_000_000)]
_as_tuple = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
Sizes = Annotated[tuple[Width, ...], Field(max_length=64), _as_tuple]
CoreName = Annotated[str, AfterValidator(known_core)]
Rate = Annotated[float | Schedule, OrSchedule(Positive)]  # a number, or a schedule of it


@dataclass(frozen=True)
class Needs:
    """Marks a key that means something only where the key `switch` has one of `values`."""

    switch: str
    values: tuple[Any, ...]

    def met(self, values: Mapping[str, Any]) -> bool:
        return values.get(self.switch) in self.values

    def __str__(self) -> str:
        return f"{self.switch}: {' or '.join('null' if value is None else str(value).lower() for value in self.values)}"


PRIORITIZED = Needs("prioritized", (True,))
SCALAR = Needs("head", ("scalar",))
CATEGORICAL = Needs("head", ("categorical",))
QUANTILE = Needs("head", ("quantile", "implicit"))
IMPLICIT = Needs("head", ("implicit",))
IMPALA = Needs("torso", ("impala",))
NATURE = Needs("torso", ("nature",))
MUNCHAUSEN = Needs("munchausen", (True,))
NO_EPSILON = Needs("epsilon", (None,))


class Settings(Frozen):
    """Base of every family."""

    def _instead(self, key: str, value: str) -> str:
        return changed_copy("algo_kwargs", key, value)

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, owner: str | None = None, prefix: str = "") -> Self:
        """These values as settings, or a ConfigError that names the key as `prefix` + key and whose key it is not."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            unknown = f" is not a key of {owner or cls.__name__}"
            raise ConfigError(one_line(error, prefix=prefix, unknown=lambda key: unknown + did_you_mean(key, cls.model_fields))) from None

    @classmethod
    def needs(cls, key: str) -> tuple[Needs, ...]:
        """The switches `key` stands under."""
        field = cls.model_fields.get(key)
        return tuple(mark for mark in field.metadata if isinstance(mark, Needs)) if field else ()

    @model_validator(mode="after")
    def _given_keys_are_in_use(self) -> Settings:
        values = dict(self)
        for key in sorted(self.model_fields_set):
            for need in self.needs(key):
                if not need.met(values):
                    raise ValueError(f"{key} needs {need}")
        return self

    def to_dict(self) -> dict[str, Any]:
        """Every key in use with its value, as YAML and JSON can hold it; parsing it gives these settings back."""
        values = dict(self)
        return {
            key: list(value) if isinstance(value, tuple) else value.to_dict() if isinstance(value, Schedule) else value
            for key, value in values.items()
            if all(need.met(values) for need in self.needs(key))
        }


class LearningSettings(Settings):
    """What every row learns with."""

    learning_rate: Rate = 1e-3
    lr_schedule: Literal["constant", "linear"] = "constant"
    learning_rate_end: Annotated[NonNegative, Needs("lr_schedule", ("linear",))] = 0.0
    optimizer: OptimizerName = "adam"
    adam_eps: Positive = 1e-8  # of any of them
    weight_decay: NonNegative = 0.0  # as torch.optim has it: decoupled in adamw, added to the gradient in the others
    gamma: Unit = 0.99
    # what reads the observation before the fully connected layers: auto is mlp for vectors, and for images by their size
    torso: Annotated[str, AfterValidator(known_torso)] = "auto"
    torso_width: Annotated[int, Field(ge=1, le=64), IMPALA] = 1  # times its channels
    spectral_norm: Annotated[bool, IMPALA] = False  # of its residual convolutions
    torso_padding: Annotated[PaddingName, NATURE] = "valid"  # of its convolutions
    activation: ActivationName = "relu"  # between layers
    layer_norm: bool = False  # before each activation

    @model_validator(mode="after")
    def _one_schedule(self) -> LearningSettings:
        for key, other in (("learning_rate", "lr_schedule"), ("clip_coef", "clip_schedule")):
            if isinstance(getattr(self, key, None), Schedule) and getattr(self, other) != "constant":
                raise ValueError(f"{other} is {getattr(self, other)}, and {key} is a schedule itself: give one of them")
        return self


class ExploringSettings(LearningSettings):
    """Rows that explore by ε: a random action with this probability, falling in a line over a fraction of the run."""

    epsilon_start: Annotated[Unit, NO_EPSILON] = 1.0
    epsilon_end: Annotated[Unit, NO_EPSILON] = 0.05
    exploration_fraction: Annotated[Unit, NO_EPSILON] = 0.2
    epsilon: Annotated[float | Schedule | None, OrSchedule(Unit | None, high=1.0)] = None  # in place of the three above


class CoreSettings(LearningSettings):
    """Rows with a recurrent network: encoder (`hidden_sizes`, `features_dim`), core, head or heads (`head_hidden_sizes`)."""

    recurrent_hidden_size: Width = 64
    recurrent_num_layers: Depth = 1
    core: CoreName = "lstm"
    head_hidden_sizes: Sizes = ()
    previous_action_reward: bool = False  # the core reads the action and reward that led to an observation beside its features


class ValueSettings(ExploringSettings):
    """Value-based algorithms: DQN and its variants. All step counts are environment steps."""

    buffer_capacity: Items = 100_000
    batch_size: BatchItems = 64
    learning_starts: Steps = 1_000
    train_frequency: Count = 4
    gradient_steps: Annotated[int, Field(ge=-1, le=1_000_000)] = 1  # -1: as many as environment steps in the round
    target_update_interval: Count = 500
    tau: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    hidden_sizes: Sizes = (128, 128)
    max_grad_norm: Positive | None = 10.0
    epsilon_ladder: bool = False  # a constant ε per environment, from exploring to nearly greedy (arXiv:1803.00933)
    n_step: Window = 1
    double_q: bool = False
    initialization: InitializationName = "torch"  # of the torso's and head's layers
    dueling: bool = False
    noisy: bool = False
    noisy_sigma: Annotated[Positive, Needs("noisy", (True,))] = 0.5
    # A noisy network explores by its noise alone (ε 0), unless this says that ε stands beside it until half of the run.
    noisy_epsilon: Annotated[bool, Needs("noisy", (True,))] = False
    head: Literal["scalar", "categorical", "quantile", "implicit"] = "scalar"
    loss: Annotated[LossName, SCALAR] = "huber"  # of the TD error
    num_atoms: Annotated[int, Field(ge=2, le=10_000), CATEGORICAL] = 51
    v_min: Annotated[float, CATEGORICAL] = -10.0
    v_max: Annotated[float, CATEGORICAL] = 10.0
    num_quantiles: Annotated[Outputs, QUANTILE] = 51
    kappa: Annotated[NonNegative, QUANTILE] = 1.0
    num_target_quantiles: Annotated[Outputs, IMPLICIT] = 64
    num_acting_quantiles: Annotated[Outputs, IMPLICIT] = 32
    embedding_dim: Annotated[Width, IMPLICIT] = 64
    quantile_levels: Annotated[LevelsName, IMPLICIT] = "stratified"
    prioritized: bool = False
    prioritized_alpha: Annotated[Unit, PRIORITIZED] = 0.6
    prioritized_beta_start: Annotated[Unit, PRIORITIZED] = 0.4
    prioritized_beta_end: Annotated[Unit, PRIORITIZED] = 1.0
    prioritized_beta_fraction: Annotated[Unit, PRIORITIZED] = 1.0
    priority_eps: Annotated[Positive, PRIORITIZED] = 1e-6
    munchausen: bool = False  # the log-policy as a reward, and a soft maximum (arXiv:2007.14430), in place of max or double-Q
    munchausen_alpha: Annotated[Unit, MUNCHAUSEN] = 0.9
    munchausen_tau: Annotated[float, Field(ge=1e-6), MUNCHAUSEN] = 0.03
    munchausen_clip: Annotated[float, Field(le=0.0), MUNCHAUSEN] = -1.0
    initial_priority: Annotated[Literal["auto", "max", "actor"], PRIORITIZED] = "auto"  # of new items; auto: `actor` with actors elsewhere

    @model_validator(mode="after")
    def _values_agree(self) -> ValueSettings:
        if self.epsilon is not None and self.epsilon_ladder:
            raise ValueError("epsilon and epsilon_ladder: give one of them")
        if self.gradient_steps == 0:
            raise ValueError("gradient_steps must be -1 or >= 1, got 0")
        if self.head == "categorical" and self.v_min >= self.v_max:
            raise ValueError(f"v_min must be < v_max, got {self.v_min} and {self.v_max}")
        if self.munchausen and self.double_q:
            raise ValueError("munchausen takes the place of double_q: set double_q: false")
        if self.batch_size > self.buffer_capacity:
            raise ValueError(f"batch_size must be <= buffer_capacity, got {self.batch_size} and {self.buffer_capacity}")
        return self


class RecurrentSettings(ValueSettings, CoreSettings):
    """DRQN and R2D2, which train a recurrent network on sequences. `sequence_length` includes the burn-in."""

    hidden_sizes: Sizes = (64,)
    features_dim: Width = 64
    recurrent_skip: bool = False  # the head reads the encoder's features beside the core's output
    sequence_length: Stretch = 20
    sequence_overlap: Steps = 0
    burn_in: Steps = 0
    stored_state: bool = True
    priority_eta: Annotated[Unit, PRIORITIZED] = 0.9
    value_rescaling: bool = False

    @model_validator(mode="after")
    def _sequences_agree(self) -> RecurrentSettings:
        length, trained = self.sequence_length, self.sequence_length - self.burn_in
        if trained <= 0:
            raise ValueError(f"sequence_length must be > burn_in, got {length} and {self.burn_in}")
        if self.n_step >= trained:
            raise ValueError(f"n_step must be < sequence_length - burn_in, got {self.n_step} and {trained}")
        if self.sequence_overlap >= length:
            raise ValueError(f"sequence_overlap must be < sequence_length, got {self.sequence_overlap} and {length}")
        if self.buffer_capacity < length:
            raise ValueError(f"buffer_capacity must be >= sequence_length, got {self.buffer_capacity} and {length}")
        return self


class RolloutSettings(LearningSettings):
    """The on-policy rows. A rollout is `num_steps` of each environment; minibatches hold at most `minibatch_size` of its steps, in equal
    parts."""

    num_steps: Rounds = 2_048
    update_epochs: Rounds = 10
    minibatch_size: Count = 64


class PPOSettings(RolloutSettings):
    """PPO."""

    learning_rate: Rate = 3e-4
    adam_eps: Positive = 1e-5
    gae_lambda: Unit = 0.95
    clip_coef: Rate = 0.2
    clip_schedule: Literal["constant", "linear"] = "constant"  # linear: to 0 at the end
    ent_coef: NonNegative = 0.0
    vf_coef: NonNegative = 0.5
    vf_clip: Positive | None = None
    target_kl: Positive | None = None  # a rollout's epochs stop at 1.5 times this
    normalize_advantage: bool = True
    max_grad_norm: Positive | None = 0.5
    hidden_sizes: Sizes = (64, 64)
    activation: ActivationName = "tanh"
    log_std_init: float = 0.0  # Box actions only: the logarithm of the standard deviation to start with


class RecurrentPPOSettings(PPOSettings, CoreSettings):
    """Recurrent PPO. A sequence is the part of an episode inside one rollout, so `num_steps` bounds its length. The core reads the previous
    action only in Discrete spaces."""

    num_steps: Rounds = 128
    hidden_sizes: Sizes = ()
    features_dim: Width | None = 64  # None: no such layer


class PQNSettings(RolloutSettings, ExploringSettings):
    """PQN, with the paper's defaults for Atari, where a rollout is 32 steps of 128 environments."""

    learning_rate: Rate = 2.5e-4
    optimizer: OptimizerName = "radam"
    layer_norm: bool = True
    num_steps: Rounds = 32
    update_epochs: Rounds = 2
    minibatch_size: Count = 128
    q_lambda: Unit = 0.65  # 0: one-step targets; 1: the rewards until the rollout's end
    max_grad_norm: Positive | None = 10.0
    hidden_sizes: Sizes = (128, 128)
    epsilon_end: Annotated[Unit, NO_EPSILON] = 0.001
    exploration_fraction: Annotated[Unit, NO_EPSILON] = 0.1
    dueling: bool = False


class RecurrentPQNSettings(PQNSettings, CoreSettings):
    """Recurrent PQN. A sequence is the part of an episode inside one rollout, so `num_steps` bounds its length."""

    hidden_sizes: Sizes = ()
    features_dim: Width = 64
    recurrent_skip: bool = False  # as in RecurrentSettings
