"""What each key means, in a line: `help(DQN)`, the JSON Schema for editors and the documentation's tables take it from here.

A row of one's own says it where its settings are: `Annotated[int, Field(description="...")]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


def meaning(key: str, field: FieldInfo) -> str:
    """What the key means; nothing where nobody has said."""
    return field.description or CONFIG.get(key) or SETTINGS.get(key, "")


CONFIG = {
    "algo": "The row: rl-training algos lists them.",
    "env_id": "A registered Gymnasium id, or module:Id.",
    "seed": "Decides everything random of the run.",
    "total_timesteps": "Environment steps, all environments together.",
    "output_dir": "Where the run's directory is made.",
    "device": "auto, cpu, cuda, cuda:<number> or mps.",
    "num_envs": "Environments stepped side by side.",
    "eval_episodes": "Greedy episodes an evaluation plays.",
    "eval_max_steps": "Steps after which an episode of an evaluation is cut, and counted as it stands.",
    "eval_interval": "Environment steps between evaluations; 0: only at the end.",
    "log_interval": "Environment steps between records; 0: only at the end.",
    "checkpoint_interval": "Environment steps between checkpoints; 0: only at the end.",
    "checkpoint_replay": "Whether a checkpoint holds the replay; without it resume fills its memory again.",
    "keep_checkpoints": "How many are kept, beside the best one.",
    "tags": "Words of your own, saved with the run.",
    "algo_kwargs": "The row's settings.",
    "env_kwargs": "Keywords of the environment; wrappers is a list of named wrappers.",
    "eval_env_kwargs": "Keywords of evaluation's environments, in place of those of the same name in env_kwargs.",
    "vectorization": "auto, sync and async resume exactly; native restarts its episodes on resume.",
    "compile": "Whether updates are compiled; auto: where the run is long enough to pay for it.",
    "threads": "Torch's threads; auto: 1 for MLPs.",
    "precision": "What a GPU computes a network's passes in; auto: tf32 for convolutions and recurrent cores, else float32.",
    "replay_device": "Where replay lives: cpu or cuda; auto: on the GPU where it fits.",
    "actors": "Ray processes that act, each with num_envs environments; 0: this process acts, and Ray is not imported.",
    "ray_address": "The Ray cluster that actors run on, host:port or auto; without, Ray is started on this machine.",
    "lockstep": "With one actor: it and the learner wait for each other, and the run is the local one, byte for byte.",
    "replay_shards": "Ray processes that hold the replay, beside the learner; 0: the learner holds it.",
    "schedule_timesteps": "What schedules run over, where it is not total_timesteps: a resumed run sets it.",
    "trackers": "wandb, mlflow, or {name: {argument: value}}.",
}

SETTINGS = {
    # what every row learns with
    "learning_rate": "The optimizer's step, or a schedule of it.",
    "lr_schedule": "linear: from learning_rate to learning_rate_end over the total.",
    "learning_rate_end": "Where a linear learning rate ends.",
    "optimizer": "What makes steps of gradients.",
    "weight_decay": "As torch.optim has it: decoupled in adamw, added to the gradient in the others.",
    "adam_eps": "Adam's ε, added to the root of the second moment.",
    "gamma": "γ, the discount of the next step's value.",
    "loss": "Of the TD error.",
    "max_grad_norm": "The norm that gradients are scaled down to; none: as they are.",
    # networks
    "hidden_sizes": "Units of each fully connected layer; of the encoder in recurrent rows.",
    "torso": "What reads the observation before the fully connected layers; auto: by its kind and size.",
    "torso_width": "The torso's channels, times this.",
    "spectral_norm": "Spectral normalisation of the torso's residual convolutions.",
    "torso_padding": "valid: the torso's convolutions stay inside the image; same: zeros around it keep its border.",
    "activation": "Between layers.",
    "layer_norm": "Layer normalisation before each activation.",
    "initialization": "How weights start: as torch does it; by Glorot's law; with variance 1/(√3 · inputs). Biases are 0 in the last two.",
    "dueling": "Separate streams for value and advantages.",
    "noisy": "Layers with learned noise, which explores in place of ε.",
    "noisy_sigma": "How large that noise is in the beginning.",
    "noisy_epsilon": "ε beside the noise until half of the total, falling exponentially with exploration_fraction as time constant.",
    "head": "What is learned of the return: its mean, or its distribution by atoms or quantiles.",
    "features_dim": "Units of the layer between encoder and core.",
    "head_hidden_sizes": "Units of the layers between core and head.",
    "core": "The memory: lstm, gru, or one that was registered.",
    "recurrent_hidden_size": "Units of the core.",
    "recurrent_num_layers": "Layers of the core.",
    "recurrent_skip": "Whether the head also reads the encoder's features, past the core.",
    "previous_action_reward": "Whether the core also reads the action and reward that led to an observation.",
    "log_std_init": "The logarithm of a Gaussian policy's standard deviation to start with (Box actions).",
    # replay and updates
    "buffer_capacity": "Transitions that the replay holds.",
    "batch_size": "Transitions, or sequences, of one update.",
    "learning_starts": "Environment steps of random actions before the first update.",
    "train_frequency": "Environment steps per round of updates, all environments together.",
    "gradient_steps": "Updates in a round; -1: as many as environment steps.",
    "target_update_interval": "Environment steps between updates of the target network.",
    "tau": "How far the target network moves towards the online one each time; 1: all the way.",
    "n_step": "Steps of reward before the target bootstraps.",
    "q_lambda": "λ of the returns that targets are made of.",
    "double_q": "Whether the online network selects the target's action.",
    "munchausen": "Whether the reward is augmented by the policy's own log-probability.",
    "munchausen_alpha": "The weight of that bonus.",
    "munchausen_tau": "The temperature of the policy.",
    "munchausen_clip": "The least that the log-probability counts.",
    # exploration
    "epsilon_start": "ε in the beginning.",
    "epsilon_end": "ε from exploration_fraction of the total on.",
    "exploration_fraction": "The share of the total over which ε falls.",
    "epsilon": "ε as a number or a schedule, in place of the three keys epsilon_start, epsilon_end and exploration_fraction.",
    "epsilon_ladder": "A constant ε for each environment, from exploring to nearly greedy.",
    # distributions
    "num_atoms": "Atoms of the distribution's support.",
    "v_min": "The support's lowest return.",
    "v_max": "The support's highest return.",
    "num_quantiles": "Quantiles of the return that are learned, or levels drawn in an update.",
    "num_target_quantiles": "Levels drawn for the target.",
    "num_acting_quantiles": "Levels averaged over in acting.",
    "embedding_dim": "Cosines that a level is embedded by.",
    "kappa": "Where the quantile Huber loss turns from square to straight.",
    # priorities
    "prioritized": "Whether surprising items are replayed more often.",
    "prioritized_alpha": "How strongly priorities count; 0: not at all.",
    "prioritized_beta_start": "β, the correction by importance weights, in the beginning.",
    "prioritized_beta_end": "β in the end.",
    "prioritized_beta_fraction": "The share of the total over which β moves.",
    "priority_eps": "Added to every priority, so that none is 0.",
    "priority_eta": "A sequence's priority: this much of its largest error, the rest of its mean.",
    "initial_priority": "Of new items: the largest seen, or the actor's own error.",
    # sequences
    "sequence_length": "Steps of a stored sequence, its burn-in included.",
    "sequence_overlap": "Steps that one sequence shares with the next.",
    "burn_in": "First steps of a sequence that only warm the core up.",
    "stored_state": "Whether sequences begin with the core's state as it was; else with zeros.",
    "value_rescaling": "Whether values are learned on the scale of h(x) = sign(x)(√(|x|+1) − 1) + εx.",
    # on policy
    "num_steps": "Steps of each environment in a rollout.",
    "update_epochs": "Passes over a rollout.",
    "minibatch_size": "Steps of one update, at most.",
    "num_minibatches": "Updates of one pass over a rollout.",
    "gae_lambda": "λ of generalised advantage estimation.",
    "clip_coef": "How far the policy's ratio may move from 1, or a schedule of it.",
    "clip_schedule": "linear: from clip_coef to 0 over the total.",
    "ent_coef": "The weight of the policy's entropy.",
    "vf_coef": "The weight of the value's loss.",
    "vf_clip": "How far a value may move in an update; none: as far as it likes.",
    "target_kl": "A rollout's epochs stop at 1.5 times this divergence; none: they do not.",
    "normalize_advantage": "Whether a minibatch's advantages are brought to mean 0 and deviation 1.",
}
