"""A JSON Schema of configs, for editors: completion and warnings while a YAML file is written.

It says what the config and each row's settings say of themselves. What only parsing can tell (that two values agree, that a switch is on)
is left to `train`, which always checks everything.
"""

from __future__ import annotations

from typing import Any

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.meanings import meaning
from rl_training.experiment.registry import algorithm_names, get_algorithm_spec
from rl_training.experiment.settings import Settings

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def config_schema() -> dict[str, Any]:
    """One schema for all rows: `algo` decides what `algo_kwargs` may hold."""
    schema = TrainConfig.model_json_schema(ref_template="#/$defs/{model}")
    properties = schema["properties"]
    properties["algo"] = {"enum": list(algorithm_names())}
    properties["algo_kwargs"] = {"type": ["object", "null"]}
    for key, field in TrainConfig.model_fields.items():
        properties[key]["description"] = meaning(key, field)
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
        properties[key]["default"] = list(value) if isinstance(value, tuple) else value  # as JSON has it
    for key, least in spec.minimum.items():
        properties[key]["minimum"] = least
    return {**schema, "title": name, "description": f"{spec.summary} ({spec.paper})", "type": ["object", "null"]}


def _settings_schema(settings: type[Settings]) -> dict[str, Any]:
    schema = settings.model_json_schema()
    for key, shown in schema["properties"].items():
        needs = " and ".join(str(need) for need in settings.needs(key))
        said = [meaning(key, settings.model_fields[key]), f"Needs {needs}." if needs else ""]
        if any(said):
            shown["description"] = " ".join(filter(None, said))
    return schema
