# Made by `make generated` from the registry and its settings, for editors and type checkers: the keywords of each class.
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

import gymnasium as gym
from typing_extensions import Self, Unpack

from rl_training.api.managed import ManagedAlgorithm as ManagedAlgorithm
from rl_training.experiment.config import TrainConfig

_Source: TypeAlias = TrainConfig | str | gym.Env[Any, Any] | Callable[..., Any]

class _ConfigKeywords(TypedDict, total=False):
    seed: int
    total_timesteps: int
    output_dir: str | Path
    device: str
    replay_device: Literal['auto', 'cpu', 'cuda']
    num_envs: int
    eval_episodes: int
    eval_max_steps: int
    eval_interval: int
    log_interval: int
    checkpoint_interval: int
    checkpoint_replay: bool
    keep_checkpoints: int
    tags: Sequence[str]
    algo_kwargs: Mapping[str, Any]
    env_kwargs: Mapping[str, Any]
    eval_env_kwargs: Mapping[str, Any] | None
    vectorization: Literal['auto', 'sync', 'async', 'native']
    compile: Literal['auto'] | bool
    threads: Literal['auto'] | int
    precision: Literal['auto', 'float32', 'tf32', 'bf16']
    actors: int
    ray_address: str | None
    lockstep: bool
    replay_shards: int
    trackers: Sequence[Any]
    schedule_timesteps: int | None

class _ValueKeywords(_ConfigKeywords, total=False):
    learning_rate: float | Mapping[str, Any] | Callable[[int], float]
    lr_schedule: Literal['constant', 'linear']
    learning_rate_end: float
    optimizer: Literal['adam', 'adamw', 'radam']
    adam_eps: float
    weight_decay: float
    gamma: float
    torso: str
    torso_width: int
    spectral_norm: bool
    torso_padding: Literal['valid', 'same']
    activation: Literal['relu', 'tanh', 'elu', 'gelu', 'silu']
    layer_norm: bool
    epsilon_start: float
    epsilon_end: float
    exploration_fraction: float
    epsilon: float | Mapping[str, Any] | Callable[[int], float] | None
    buffer_capacity: int
    batch_size: int
    learning_starts: int
    train_frequency: int
    gradient_steps: int
    target_update_interval: int
    tau: float
    hidden_sizes: Sequence[int]
    max_grad_norm: float | None
    epsilon_ladder: bool
    n_step: int
    double_q: bool
    initialization: Literal['torch', 'xavier', 'variance_scaling']
    dueling: bool
    noisy: bool
    noisy_sigma: float
    noisy_epsilon: bool
    head: Literal['scalar', 'categorical', 'quantile', 'implicit']
    loss: Literal['huber', 'mse']
    num_atoms: int
    v_min: float
    v_max: float
    num_quantiles: int
    kappa: float
    num_target_quantiles: int
    num_acting_quantiles: int
    embedding_dim: int
    quantile_levels: Literal['stratified', 'independent']
    prioritized: bool
    prioritized_alpha: float
    prioritized_beta_start: float
    prioritized_beta_end: float
    prioritized_beta_fraction: float
    priority_eps: float
    munchausen: bool
    munchausen_alpha: float
    munchausen_tau: float
    munchausen_clip: float
    initial_priority: Literal['auto', 'max', 'actor']

class _RecurrentKeywords(_ConfigKeywords, total=False):
    learning_rate: float | Mapping[str, Any] | Callable[[int], float]
    lr_schedule: Literal['constant', 'linear']
    learning_rate_end: float
    optimizer: Literal['adam', 'adamw', 'radam']
    adam_eps: float
    weight_decay: float
    gamma: float
    torso: str
    torso_width: int
    spectral_norm: bool
    torso_padding: Literal['valid', 'same']
    activation: Literal['relu', 'tanh', 'elu', 'gelu', 'silu']
    layer_norm: bool
    recurrent_hidden_size: int
    recurrent_num_layers: int
    core: str
    head_hidden_sizes: Sequence[int]
    previous_action_reward: bool
    epsilon_start: float
    epsilon_end: float
    exploration_fraction: float
    epsilon: float | Mapping[str, Any] | Callable[[int], float] | None
    buffer_capacity: int
    batch_size: int
    learning_starts: int
    train_frequency: int
    gradient_steps: int
    target_update_interval: int
    tau: float
    hidden_sizes: Sequence[int]
    max_grad_norm: float | None
    epsilon_ladder: bool
    n_step: int
    double_q: bool
    initialization: Literal['torch', 'xavier', 'variance_scaling']
    dueling: bool
    noisy: bool
    noisy_sigma: float
    noisy_epsilon: bool
    head: Literal['scalar', 'categorical', 'quantile', 'implicit']
    loss: Literal['huber', 'mse']
    num_atoms: int
    v_min: float
    v_max: float
    num_quantiles: int
    kappa: float
    num_target_quantiles: int
    num_acting_quantiles: int
    embedding_dim: int
    quantile_levels: Literal['stratified', 'independent']
    prioritized: bool
    prioritized_alpha: float
    prioritized_beta_start: float
    prioritized_beta_end: float
    prioritized_beta_fraction: float
    priority_eps: float
    munchausen: bool
    munchausen_alpha: float
    munchausen_tau: float
    munchausen_clip: float
    initial_priority: Literal['auto', 'max', 'actor']
    features_dim: int
    recurrent_skip: bool
    sequence_length: int
    sequence_overlap: int
    burn_in: int
    stored_state: bool
    priority_eta: float
    value_rescaling: bool

class _PPOKeywords(_ConfigKeywords, total=False):
    learning_rate: float | Mapping[str, Any] | Callable[[int], float]
    lr_schedule: Literal['constant', 'linear']
    learning_rate_end: float
    optimizer: Literal['adam', 'adamw', 'radam']
    adam_eps: float
    weight_decay: float
    gamma: float
    torso: str
    torso_width: int
    spectral_norm: bool
    torso_padding: Literal['valid', 'same']
    activation: Literal['relu', 'tanh', 'elu', 'gelu', 'silu']
    layer_norm: bool
    num_steps: int
    update_epochs: int
    minibatch_size: int
    gae_lambda: float
    clip_coef: float | Mapping[str, Any] | Callable[[int], float]
    clip_schedule: Literal['constant', 'linear']
    ent_coef: float
    vf_coef: float
    vf_clip: float | None
    target_kl: float | None
    normalize_advantage: bool
    max_grad_norm: float | None
    hidden_sizes: Sequence[int]
    log_std_init: float

class _RecurrentPPOKeywords(_ConfigKeywords, total=False):
    learning_rate: float | Mapping[str, Any] | Callable[[int], float]
    lr_schedule: Literal['constant', 'linear']
    learning_rate_end: float
    optimizer: Literal['adam', 'adamw', 'radam']
    adam_eps: float
    weight_decay: float
    gamma: float
    torso: str
    torso_width: int
    spectral_norm: bool
    torso_padding: Literal['valid', 'same']
    activation: Literal['relu', 'tanh', 'elu', 'gelu', 'silu']
    layer_norm: bool
    recurrent_hidden_size: int
    recurrent_num_layers: int
    core: str
    head_hidden_sizes: Sequence[int]
    previous_action_reward: bool
    num_steps: int
    update_epochs: int
    minibatch_size: int
    gae_lambda: float
    clip_coef: float | Mapping[str, Any] | Callable[[int], float]
    clip_schedule: Literal['constant', 'linear']
    ent_coef: float
    vf_coef: float
    vf_clip: float | None
    target_kl: float | None
    normalize_advantage: bool
    max_grad_norm: float | None
    hidden_sizes: Sequence[int]
    log_std_init: float
    features_dim: int | None

class _PQNKeywords(_ConfigKeywords, total=False):
    learning_rate: float | Mapping[str, Any] | Callable[[int], float]
    lr_schedule: Literal['constant', 'linear']
    learning_rate_end: float
    optimizer: Literal['adam', 'adamw', 'radam']
    adam_eps: float
    weight_decay: float
    gamma: float
    torso: str
    torso_width: int
    spectral_norm: bool
    torso_padding: Literal['valid', 'same']
    activation: Literal['relu', 'tanh', 'elu', 'gelu', 'silu']
    layer_norm: bool
    epsilon_start: float
    epsilon_end: float
    exploration_fraction: float
    epsilon: float | Mapping[str, Any] | Callable[[int], float] | None
    num_steps: int
    update_epochs: int
    minibatch_size: int
    q_lambda: float
    max_grad_norm: float | None
    hidden_sizes: Sequence[int]
    dueling: bool

class _RecurrentPQNKeywords(_ConfigKeywords, total=False):
    learning_rate: float | Mapping[str, Any] | Callable[[int], float]
    lr_schedule: Literal['constant', 'linear']
    learning_rate_end: float
    optimizer: Literal['adam', 'adamw', 'radam']
    adam_eps: float
    weight_decay: float
    gamma: float
    torso: str
    torso_width: int
    spectral_norm: bool
    torso_padding: Literal['valid', 'same']
    activation: Literal['relu', 'tanh', 'elu', 'gelu', 'silu']
    layer_norm: bool
    recurrent_hidden_size: int
    recurrent_num_layers: int
    core: str
    head_hidden_sizes: Sequence[int]
    previous_action_reward: bool
    epsilon_start: float
    epsilon_end: float
    exploration_fraction: float
    epsilon: float | Mapping[str, Any] | Callable[[int], float] | None
    num_steps: int
    update_epochs: int
    minibatch_size: int
    q_lambda: float
    max_grad_norm: float | None
    hidden_sizes: Sequence[int]
    dueling: bool
    features_dim: int
    recurrent_skip: bool

class DQN(ManagedAlgorithm, row='dqn'):
    def __init__(self, config: _Source, **keywords: Unpack[_ValueKeywords]) -> None: ...
    @classmethod
    def from_config(  # type: ignore[override]  # the keys of this row alone
        cls, config: str | Path, **overrides: Unpack[_ValueKeywords]
    ) -> Self: ...

class DoubleDQN(ManagedAlgorithm, row='double_dqn'):
    def __init__(self, config: _Source, **keywords: Unpack[_ValueKeywords]) -> None: ...
    @classmethod
    def from_config(  # type: ignore[override]  # the keys of this row alone
        cls, config: str | Path, **overrides: Unpack[_ValueKeywords]
    ) -> Self: ...

class DuelingDQN(ManagedAlgorithm, row='dueling_dqn'):
    def __init__(self, config: _Source, **keywords: Unpack[_ValueKeywords]) -> None: ...
    @classmethod
    def from_config(  # type: ignore[override]  # the keys of this row alone
        cls, config: str | Path, **overrides: Unpack[_ValueKeywords]
    ) -> Self: ...

class NoisyDQN(ManagedAlgorithm, row='noisy_dqn'):
    def __init__(self, config: _Source, **keywords: Unpack[_ValueKeywords]) -> None: ...
    @classmethod
    def from_config(  # type: ignore[override]  # the keys of this row alone
        cls, config: str | Path, **overrides: Unpack[_ValueKeywords]
    ) -> Self: ...

class PrioritizedDQN(ManagedAlgorithm, row='prioritized_dqn'):
    def __init__(self, config: _Source, **keywords: Unpack[_ValueKeywords]) -> None: ...
    @classmethod
    def from_config(  # type: ignore[override]  # the keys of this row alone
        cls, config: str | Path, **overrides: Unpack[_ValueKeywords]
    ) -> Self: ...

class NStepDQN(ManagedAlgorithm, row='n_step_dqn'):
    def __init__(self, config: _Source, **keywords: Unpack[_ValueKeywords]) -> None: ...
    @classmethod
    def from_config(  # type: ignore[override]  # the keys of this row alone
        cls, config: str | Path, **overrides: Unpack[_ValueKeywords]
    ) -> Self: ...

class C51DQN(ManagedAlgorithm, row='c51_dqn'):
    def __init__(self, config: _Source, **keywords: Unpack[_ValueKeywords]) -> None: ...
    @classmethod
    def from_config(  # type: ignore[override]  # the keys of this row alone
        cls, config: str | Path, **overrides: Unpack[_ValueKeywords]
    ) -> Self: ...

class QRDQN(ManagedAlgorithm, row='qr_dqn'):
    def __init__(self, config: _Source, **keywords: Unpack[_ValueKeywords]) -> None: ...
    @classmethod
    def from_config(  # type: ignore[override]  # the keys of this row alone
        cls, config: str | Path, **overrides: Unpack[_ValueKeywords]
    ) -> Self: ...

class IQN(ManagedAlgorithm, row='iqn'):
    def __init__(self, config: _Source, **keywords: Unpack[_ValueKeywords]) -> None: ...
    @classmethod
    def from_config(  # type: ignore[override]  # the keys of this row alone
        cls, config: str | Path, **overrides: Unpack[_ValueKeywords]
    ) -> Self: ...

class RainbowDQN(ManagedAlgorithm, row='rainbow_dqn'):
    def __init__(self, config: _Source, **keywords: Unpack[_ValueKeywords]) -> None: ...
    @classmethod
    def from_config(  # type: ignore[override]  # the keys of this row alone
        cls, config: str | Path, **overrides: Unpack[_ValueKeywords]
    ) -> Self: ...

class MunchausenDQN(ManagedAlgorithm, row='munchausen_dqn'):
    def __init__(self, config: _Source, **keywords: Unpack[_ValueKeywords]) -> None: ...
    @classmethod
    def from_config(  # type: ignore[override]  # the keys of this row alone
        cls, config: str | Path, **overrides: Unpack[_ValueKeywords]
    ) -> Self: ...

class MunchausenIQN(ManagedAlgorithm, row='munchausen_iqn'):
    def __init__(self, config: _Source, **keywords: Unpack[_ValueKeywords]) -> None: ...
    @classmethod
    def from_config(  # type: ignore[override]  # the keys of this row alone
        cls, config: str | Path, **overrides: Unpack[_ValueKeywords]
    ) -> Self: ...

class BTR(ManagedAlgorithm, row='btr'):
    def __init__(self, config: _Source, **keywords: Unpack[_ValueKeywords]) -> None: ...
    @classmethod
    def from_config(  # type: ignore[override]  # the keys of this row alone
        cls, config: str | Path, **overrides: Unpack[_ValueKeywords]
    ) -> Self: ...

class DRQN(ManagedAlgorithm, row='drqn'):
    def __init__(self, config: _Source, **keywords: Unpack[_RecurrentKeywords]) -> None: ...
    @classmethod
    def from_config(  # type: ignore[override]  # the keys of this row alone
        cls, config: str | Path, **overrides: Unpack[_RecurrentKeywords]
    ) -> Self: ...

class R2D2(ManagedAlgorithm, row='r2d2'):
    def __init__(self, config: _Source, **keywords: Unpack[_RecurrentKeywords]) -> None: ...
    @classmethod
    def from_config(  # type: ignore[override]  # the keys of this row alone
        cls, config: str | Path, **overrides: Unpack[_RecurrentKeywords]
    ) -> Self: ...

class PPO(ManagedAlgorithm, row='ppo'):
    def __init__(self, config: _Source, **keywords: Unpack[_PPOKeywords]) -> None: ...
    @classmethod
    def from_config(  # type: ignore[override]  # the keys of this row alone
        cls, config: str | Path, **overrides: Unpack[_PPOKeywords]
    ) -> Self: ...

class RecurrentPPO(ManagedAlgorithm, row='recurrent_ppo'):
    def __init__(self, config: _Source, **keywords: Unpack[_RecurrentPPOKeywords]) -> None: ...
    @classmethod
    def from_config(  # type: ignore[override]  # the keys of this row alone
        cls, config: str | Path, **overrides: Unpack[_RecurrentPPOKeywords]
    ) -> Self: ...

class PQN(ManagedAlgorithm, row='pqn'):
    def __init__(self, config: _Source, **keywords: Unpack[_PQNKeywords]) -> None: ...
    @classmethod
    def from_config(  # type: ignore[override]  # the keys of this row alone
        cls, config: str | Path, **overrides: Unpack[_PQNKeywords]
    ) -> Self: ...

class RecurrentPQN(ManagedAlgorithm, row='recurrent_pqn'):
    def __init__(self, config: _Source, **keywords: Unpack[_RecurrentPQNKeywords]) -> None: ...
    @classmethod
    def from_config(  # type: ignore[override]  # the keys of this row alone
        cls, config: str | Path, **overrides: Unpack[_RecurrentPQNKeywords]
    ) -> Self: ...
