"""A JSON Schema of configs, for editors: completion and warnings while a YAML file is written.

It says what the config and each row's settings say of themselves. What only parsing can tell (that two values agree, that a switch is on)
is left to `train`, which always checks everything.
"""

from __future__ import annotations

from typing import Any

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import algorithm_names, get_algorithm_spec
from rl_training.experiment.settings import Settings

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def config_schema() -> dict[str, Any]:
    """One schema for all rows: `algo` decides what `algo_kwargs` may hold."""
    schema = TrainConfig.model_json_schema(ref_template="#/$defs/{model}")
    properties = schema["properties"]
    properties["algo"] = {"enum": list(algorithm_names()), "description": "The row: rl-training algos lists them."}
    for key, description in _DESCRIPTIONS.items():
        properties[key]["description"] = description
    properties["algo_kwargs"] = {"type": ["object", "null"], "description": "The row's settings."}
    rows = [
        {
            "if": {"properties": {"algo": {"const": name}}, "required": ["algo"]},
            "then": {"properties": {"algo_kwargs": {"$ref": f"#/$defs/{name}"}}},
        }
        for name in algorithm_names()
    ]
    definitions = {**schema.get("$defs", {}), **{name: row_schema(name) for name in algorithm_names()}}
    return {"$schema": DIALECT, **schema, "title": "A config of rl-training", "allOf": rows, "$defs": definitions}


def row_schema(name: str) -> dict[str, Any]:
    """What `algo_kwargs` may hold in one row."""
    spec = get_algorithm_spec(name)
    schema = _settings_schema(spec.settings)
    properties = schema["properties"]
    for key, value in spec.fixed.items():  # what the row is
        properties[key] = {"const": value}
    for key, value in spec.defaults.items():
        properties[key]["default"] = value
    for key, least in spec.minimum.items():
        properties[key]["minimum"] = least
    return {**schema, "title": name, "description": f"{spec.summary} ({spec.paper})", "type": ["object", "null"]}


def _settings_schema(settings: type[Settings]) -> dict[str, Any]:
    schema = settings.model_json_schema()
    for key, shown in schema["properties"].items():
        needs = " and ".join(str(need) for need in settings.needs(key))
        if needs:
            shown["description"] = f"needs {needs}"
    return schema


_DESCRIPTIONS = {
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
    "env_kwargs": "Keywords of the environment; wrappers is a list of named wrappers.",
    "eval_env_kwargs": "Keywords of evaluation's environments, in place of those of the same name in env_kwargs.",
    "vectorization": "auto, sync and async resume exactly; native restarts its episodes on resume.",
    "compile": "Whether updates are compiled; auto: where the run is long enough to pay for it.",
    "threads": "Torch's threads; auto: 1 for MLPs.",
    "precision": "What a GPU computes a network's passes in; auto: tf32 for convolutions and recurrent cores, else float32.",
    "actors": "Ray processes that act, each with num_envs environments; 0: this process acts, and Ray is not imported.",
    "ray_address": "The Ray cluster that actors run on, host:port or auto; without, Ray is started on this machine.",
    "lockstep": "With one actor: it and the learner wait for each other, and the run is the local one, byte for byte.",
    "replay_shards": "Ray processes that hold the replay, beside the learner; 0: the learner holds it.",
    "schedule_timesteps": "What schedules run over, where it is not total_timesteps: a resumed run sets it.",
    "trackers": "wandb, mlflow, or {name: {argument: value}}.",
}
