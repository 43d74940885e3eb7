"""From a run's parts to a checkpoint and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rl_training.data.replay import WritesFiles
from rl_training.envs.spaces import require_same_spaces
from rl_training.errors import CheckpointError, RunError, UserError, warn
from rl_training.experiment.checkpoint_store import CheckpointStore
from rl_training.experiment.checkpointing import Checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.manifest import manifest_of
from rl_training.runtime.run_parts import Parts
from rl_training.runtime.run_state import RunState
from rl_training.types import State


def save(store: CheckpointStore, config: TrainConfig, parts: Parts, run: State, *, with_replay: bool, for_resume: bool) -> Path:
    """Everything that changes, at the step that `run` says.

    for_resume: False keeps it as `best` only; a run that has nothing else starts over.
    """
    learner = parts.learner.state_dict()
    model = learner.pop(parts.learner.model_key)
    training = {"learner": learner, "actor": parts.actor.state_dict(), "run": run}
    # without a second copy of its memory: nothing is added before it is written
    held = parts.replay if with_replay else None
    replay = None if held is None else held.state_dict(copy=False)
    shards = getattr(held, "write_files", None)  # a replay in shards (see `WritesFiles`)
    manifest = {**manifest_of(config), "spaces": dict(parts.spaces), "for_resume": for_resume}
    files: dict[str, Any] = {"model": model, "training": training, "replay": replay, "write_more": shards}
    return store.save(run["env_steps"], **files, manifest=manifest, link_latest=for_resume)


def restore(checkpoint: Checkpoint, parts: Parts) -> RunState:
    """Brings the parts back to where they were saved; what the run remembers of itself then. Nothing is written."""
    try:
        return _restore(checkpoint, parts)
    except (UserError, RunError):
        raise
    except Exception as error:  # parts may say anything of a state that is not theirs: it is chained, and the reason said
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise CheckpointError(f"{checkpoint.path}: does not fit the run of its config ({reason:.300})") from error


def _restore(checkpoint: Checkpoint, parts: Parts) -> RunState:
    require_same_spaces(checkpoint.spaces, parts.spaces, source=checkpoint.path)
    training = checkpoint.load_training()
    parts.learner.load_state_dict({**training["learner"], parts.learner.model_key: checkpoint.load_model()})
    replay = parts.replay
    saved = None if replay is None else checkpoint.load_replay()
    if replay is not None and saved is not None:
        replay.load_state_dict(saved)
        if isinstance(replay, WritesFiles):
            replay.read_files(checkpoint.path, checkpoint.shard_files)
    parts.actor.load_state_dict(training["actor"])  # ends in the replay what cannot go on
    state = RunState.parse(training["run"], source=str(checkpoint.path), step=checkpoint.step)
    if replay is not None and saved is None:
        # Fill the memory again before learning from it, by the policy as it is.
        parts.actor.refill_from(state.env_steps)
        warn(f"{checkpoint.path} holds no replay: the run goes on with an empty one, not exactly as it was")
    return state


def require_finite(parts: Parts, step: int) -> None:
    """A network that has diverged is not worth an evaluation, and never takes the place of a good checkpoint."""
    finite = [torch.isfinite(parameter).all() for parameter in parts.actor.network.parameters()]
    if finite and not bool(torch.stack(finite).all()):  # read once, since each reading waits for the device
        raise RunError(f"the network's parameters are not finite at step {step}: learning has diverged")
