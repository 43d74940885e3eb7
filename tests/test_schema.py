"""`configs --schema` agrees with what `train` accepts, and `configs copy` copies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from command_line import SMALL, Cli
from rl_training.experiment.config import SHIPPED_CONFIGS, load_config, shipped_configs
from rl_training.experiment.registry import algorithm_names
from rl_training.experiment.schema import config_schema
from rl_training.experiment.yaml_text import parse_yaml

SCHEMA = config_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def errors(config: Any) -> list[str]:
    return [error.json_path for error in VALIDATOR.iter_errors(config)]


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", shipped_configs())
def test_every_shipped_config_fits_as_written_and_as_resolved(name: str) -> None:
    assert errors(parse_yaml((SHIPPED_CONFIGS / name).read_text(), source=name)) == []  # 1e-3 is a number, as in YAML 1.2
    assert errors(json.loads(json.dumps(load_config(name).to_dict()))) == []


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"algo": "dqnn"}, "$.algo"),
        ({"num_env": 3}, "$"),
        ({"total_timesteps": 0}, "$.total_timesteps"),
        ({"vectorization": "threads"}, "$.vectorization"),
        ({"algo_kwargs": {"batchsize": 64}}, "$.algo_kwargs"),
        ({"algo_kwargs": {"batch_size": "64"}}, "$.algo_kwargs.batch_size"),
        ({"algo_kwargs": {"gamma": 2}}, "$.algo_kwargs.gamma"),
        ({"algo": "double_dqn", "algo_kwargs": {"double_q": False}}, "$.algo_kwargs.double_q"),
        ({"algo": "n_step_dqn", "algo_kwargs": {"n_step": 1}}, "$.algo_kwargs.n_step"),
        ({"algo": "dqn", "algo_kwargs": {"burn_in": 1}}, "$.algo_kwargs"),
    ],
)
def test_what_train_refuses_is_marked(changes: dict[str, Any], where: str) -> None:
    assert where in errors({**SMALL, **changes})
    assert errors(SMALL) == []


@pytest.mark.parametrize("missing", ["algo", "env_id", "seed", "total_timesteps", "output_dir"])
def test_what_a_config_must_have(missing: str) -> None:
    assert errors({key: value for key, value in SMALL.items() if key != missing})


def test_the_command_prints_it(cli: Cli) -> None:
    printed = cli("configs", "--schema")
    assert printed.code == 0 and json.loads(printed.out) == SCHEMA
    assert set(algorithm_names()) <= set(SCHEMA["$defs"])


def test_copy(cli: Cli) -> None:
    original = (SHIPPED_CONFIGS / "dqn" / "cartpole.yaml").read_text()
    assert cli("configs", "copy", "configs/dqn/cartpole.yaml").out == "dqn_cartpole.yaml\n"
    assert Path("dqn_cartpole.yaml").read_text() == original
    Path("folder").mkdir()
    assert cli("configs", "copy", "dqn/cartpole.yaml", "folder").out.strip() == str(Path("folder/cartpole.yaml"))
    Path("mine.yaml").write_text("something else")
    assert "exists already" in cli.refused("configs", "copy", "dqn/cartpole.yaml", "mine.yaml")
    assert Path("mine.yaml").read_text() == "something else"
    assert cli("configs", "copy", "dqn/cartpole.yaml", "mine.yaml", "--force").code == 0
    assert Path("mine.yaml").read_text() == original
