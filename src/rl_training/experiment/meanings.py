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
    "algo": "The algorithm; rl-training algos lists them.",
    "env_id": "A registered Gymnasium id, or module:Id.",
    "seed": "Seeds everything random in the run.",
    "total_timesteps": "Environment steps, all environments together.",
    "output_dir": "Where the run's directory is created.",
    "device": "auto, cpu, cuda, cuda:<number> or mps.",
    "num_envs": "Environments stepped in parallel.",
    "eval_episodes": "Greedy episodes per evaluation.",
    "eval_max_steps": "Steps after which an evaluation episode is cut; its return so far counts.",
    "eval_interval": "Environment steps between evaluations; 0: only at the end.",
    "log_interval": "Environment steps between records; 0: only at the end.",
    "checkpoint_interval": "Environment steps between checkpoints; 0: only at the end.",
    "checkpoint_replay": "Whether checkpoints contain the replay; without it, a resumed run fills its replay again.",
    "keep_checkpoints": "How many are kept, besides the best one.",
    "tags": "Free-form labels, saved with the run.",
    "algo_kwargs": "The algorithm's settings.",
    "env_kwargs": "Keyword arguments of the environment; wrappers is a list of named wrappers.",
    "eval_env_kwargs": "Keyword arguments of the evaluation environments; they override env_kwargs.",
    "vectorization": "auto, sync and async resume exactly; with native, unfinished episodes restart.",
    "compile": "Whether updates are compiled; auto: if the run is long enough to pay for it.",
    "threads": "Torch's threads; auto: 1 for MLPs.",
    "precision": "The precision of a network's passes; auto: tf32 for convolutions and recurrent cores on a GPU, else float32.",
    "replay_device": "Where the replay is: cpu or cuda; auto: on the GPU if it fits.",
    "actors": "Ray processes that act, each with num_envs environments; 0: this process acts, and Ray is not imported.",
    "ray_address": "The Ray cluster that actors run on, host:port or auto; if not given, Ray is started on this machine.",
    "lockstep": "With one actor: it and the learner wait for each other, and the run equals the local one, byte for byte.",
    "replay_shards": "Ray processes that hold the replay instead of the learner; 0: the learner holds it.",
    "schedule_timesteps": "The steps that schedules run over, if not total_timesteps; a resumed run sets it.",
    "trackers": "wandb, mlflow, or {name: {argument: value}}.",
}

SETTINGS = {
    # what every row learns with
    "learning_rate": "Learning rate, or a schedule of it.",
    "lr_schedule": "linear: from learning_rate to learning_rate_end over the run.",
    "learning_rate_end": "Final value of a linear learning rate.",
    "optimizer": "The optimizer.",
    "weight_decay": "As in torch.optim: decoupled in adamw, added to the gradient in the others.",
    "adam_eps": "Adam's ε, added to the square root of the second moment.",
    "gamma": "γ, the discount factor.",
    "loss": "Loss of the TD error.",
    "max_grad_norm": "Gradients are clipped to this norm; null: no clipping.",
    # networks
    "hidden_sizes": "Units of each fully connected layer; with a recurrent network, those of the encoder.",
    "torso": "What encodes the observation before the fully connected layers; auto: by its kind and size.",
    "torso_width": "Multiplies the torso's channels.",
    "spectral_norm": "Spectral normalisation of the torso's residual convolutions.",
    "torso_padding": "Padding of the torso's convolutions: valid: none; same: zeros, so that borders are kept.",
    "activation": "Activation function between layers.",
    "layer_norm": "Layer normalisation before each activation.",
    "initialization": "Initial weights: PyTorch's; Glorot uniform (xavier); variance 1/(√3 · inputs). The last two set biases to 0.",
    "dueling": "Separate streams for value and advantages.",
    "noisy": "Layers with learned noise, which replaces ε-greedy exploration.",
    "noisy_sigma": "Initial scale of that noise.",
    "noisy_epsilon": "Also explore with ε in the first half of the run, decaying exponentially with time constant exploration_fraction.",
    "head": "What is learned about the return: its mean, or its distribution as atoms or quantiles.",
    "features_dim": "Units of the layer between encoder and core.",
    "head_hidden_sizes": "Units of the layers between core and head.",
    "core": "The recurrent core: lstm, gru, or a registered one.",
    "recurrent_hidden_size": "Units of the core.",
    "recurrent_num_layers": "Layers of the core.",
    "recurrent_skip": "Whether the head also reads the encoder's features, bypassing the core.",
    "previous_action_reward": "Whether the core also reads the previous action and reward.",
    "log_std_init": "Initial log standard deviation of a Gaussian policy (Box actions).",
    # replay and updates
    "buffer_capacity": "Transitions in the replay; steps that overlapping sequences share count once per sequence.",
    "batch_size": "Transitions, or sequences, per update.",
    "learning_starts": "Environment steps with random actions before the first update.",
    "train_frequency": "Environment steps per round of updates, all environments together.",
    "gradient_steps": "Updates per round; -1: as many as environment steps.",
    "target_update_interval": "Environment steps between updates of the target network.",
    "tau": "How far the target network moves towards the online network at each update; 1: a full copy.",
    "n_step": "Length of n-step returns.",
    "q_lambda": "λ of the λ-returns used as targets.",
    "double_q": "Whether the online network selects the target's action.",
    "munchausen": "Whether the policy's scaled log-probability is added to the reward.",
    "munchausen_alpha": "Weight of that bonus.",
    "munchausen_tau": "Temperature of the policy.",
    "munchausen_clip": "Lower bound of the scaled log-probability.",
    # exploration
    "epsilon_start": "Initial ε.",
    "epsilon_end": "ε after exploration_fraction of the run.",
    "exploration_fraction": "Fraction of the run over which ε decays.",
    "epsilon": "ε as a number or a schedule, instead of epsilon_start, epsilon_end and exploration_fraction.",
    "epsilon_ladder": "A different constant ε for each environment, from exploring to nearly greedy.",
    # distributions
    "num_atoms": "Atoms of the distribution's support.",
    "v_min": "Lowest return of the support.",
    "v_max": "Highest return of the support.",
    "num_quantiles": "Quantiles that are learned, or levels drawn per update.",
    "num_target_quantiles": "Levels drawn for the target.",
    "num_acting_quantiles": "Levels averaged over when acting.",
    "embedding_dim": "Cosines in the embedding of a level.",
    "quantile_levels": "How levels are drawn: one from each of N equal strata, for the whole batch, or each on its own, as in the paper.",
    "kappa": "Where the quantile Huber loss turns from quadratic to linear.",
    # priorities
    "prioritized": "Prioritized replay: transitions with large TD errors are replayed more often.",
    "prioritized_alpha": "Exponent of the priorities; 0: uniform.",
    "prioritized_beta_start": "Initial β, the exponent of the importance weights.",
    "prioritized_beta_end": "Final β.",
    "prioritized_beta_fraction": "Fraction of the run over which β changes.",
    "priority_eps": "Added to every priority, so that none is 0.",
    "priority_eta": "A sequence's priority: η · largest + (1 − η) · mean absolute TD error.",
    "initial_priority": "Priority of new items: the largest seen (max) or the actor's own TD error (actor).",
    # sequences
    "sequence_length": "Steps in a stored sequence, burn-in included.",
    "sequence_overlap": "Steps shared by neighbouring sequences.",
    "burn_in": "First steps of a sequence, which only warm up the core's state.",
    "stored_state": "Whether a sequence starts from the core's state when it was played; otherwise from zeros.",
    "value_rescaling": "Whether values are learned on the scale of h(x) = sign(x)(√(|x|+1) − 1) + εx.",
    # on policy
    "num_steps": "Steps per environment in a rollout.",
    "update_epochs": "Passes over each rollout.",
    "minibatch_size": "Maximum steps per update.",
    "num_minibatches": "Updates per pass over a rollout.",
    "gae_lambda": "λ of generalised advantage estimation.",
    "clip_coef": "How far the probability ratio may move from 1, or a schedule of it.",
    "clip_schedule": "linear: from clip_coef to 0 over the run.",
    "ent_coef": "Weight of the entropy bonus.",
    "vf_coef": "Weight of the value loss.",
    "vf_clip": "How far a value may move in an update; null: no limit.",
    "target_kl": "Stops a rollout's epochs at 1.5 times this KL divergence; null: never.",
    "normalize_advantage": "Whether advantages are normalized per minibatch to mean 0 and standard deviation 1.",
}
