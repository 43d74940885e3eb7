"""The table of rows: identity cannot be contradicted, numbers can be tuned, users can add rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rl_training.errors import ConfigError
from rl_training.experiment import registry
from rl_training.experiment.config import load_config, shipped_configs
from rl_training.experiment.registry import algorithm_names, get_algorithm_spec, register_algorithm
from rl_training.experiment.settings import ValueSettings

ROWS = ("dqn", "double_dqn", "dueling_dqn", "noisy_dqn", "prioritized_dqn", "n_step_dqn")


@pytest.fixture
def own_rows() -> Iterator[None]:
    """Rows that a test registers do not outlive it."""
    before = dict(registry._TABLE)
    yield
    registry._TABLE.clear()
    registry._TABLE.update(before)


def test_the_rows_are_there() -> None:
    assert set(ROWS) <= set(algorithm_names())


@pytest.mark.parametrize("name", algorithm_names())
def test_every_row_is_whole(name: str) -> None:
    spec = get_algorithm_spec(name)
    settings = spec.parse({})
    for key, value in spec.fixed.items():
        assert getattr(settings, key) == value
    assert spec.parse(settings.to_dict()) == settings
    assert spec.summary and spec.paper
    assert callable(spec.train_fn)
    with pytest.raises(ConfigError, match=rf"algo_kwargs.learningrate is not a key of {name}; did you mean learning_rate\?"):
        spec.parse({"learningrate": 3})


@pytest.mark.parametrize("name", algorithm_names())
def test_every_row_ships_a_cartpole_config(name: str) -> None:
    assert any(path.startswith(f"{name}/cartpole") for path in shipped_configs())


@pytest.mark.parametrize("path", shipped_configs())
def test_every_shipped_config_loads_and_lies_where_its_row_says(path: str) -> None:
    assert load_config(path).algo == path.partition("/")[0]


@pytest.mark.parametrize(
    ("name", "key"), [("double_dqn", "double_q"), ("dueling_dqn", "dueling"), ("noisy_dqn", "noisy"), ("prioritized_dqn", "prioritized")]
)
def test_a_row_cannot_be_told_to_be_another(name: str, key: str) -> None:
    spec = get_algorithm_spec(name)
    assert getattr(spec.parse({key: True}), key) is True
    with pytest.raises(ConfigError, match=rf"algo_kwargs.{key} is true in every {name}"):
        spec.parse({key: False})


def test_dqn_is_open_to_every_part() -> None:
    settings = get_algorithm_spec("dqn").parse({"dueling": True, "noisy": True, "n_step": 3, "double_q": True, "head": "quantile"})
    assert isinstance(settings, ValueSettings)
    assert settings.dueling and settings.noisy and settings.double_q and settings.n_step == 3 and settings.head == "quantile"


def test_n_step_dqn_takes_at_least_two_steps() -> None:
    spec = get_algorithm_spec("n_step_dqn")
    assert spec.parse({}).to_dict()["n_step"] == 3
    assert spec.parse({"n_step": 2}).to_dict()["n_step"] == 2
    with pytest.raises(ConfigError, match=r"algo_kwargs.n_step is at least 2 in every n_step_dqn, got 1"):
        spec.parse({"n_step": 1})


def test_an_unknown_row_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"algo 'prioritised_dqn' is unknown; did you mean prioritized_dqn\?$"):
        get_algorithm_spec("prioritised_dqn")
    with pytest.raises(ConfigError, match=r"known: .*dqn.*; for a row of your own import its module first \(--import MODULE\)$"):
        get_algorithm_spec("zzz")


@pytest.mark.usefixtures("own_rows")
def test_users_add_rows() -> None:
    def trainer(config: Any, run_suffix: str | None = None) -> str:
        return "trained"

    spec = register_algorithm("mine", trainer=trainer, summary="my own", fixed={"double_q": True}, defaults={"gamma": 0.9})
    assert get_algorithm_spec("mine") is spec
    assert spec.train_fn(None) == "trained"
    assert spec.parse({}).to_dict()["gamma"] == 0.9
    assert spec.parse({"gamma": 0.5}).to_dict()["gamma"] == 0.5
    with pytest.raises(ConfigError, match="already registered"):
        register_algorithm("mine", trainer=trainer, summary="again")


@pytest.mark.usefixtures("own_rows")
def test_a_row_that_contradicts_its_settings_is_refused_when_registered() -> None:
    with pytest.raises(ConfigError, match="gama"):
        register_algorithm("wrong", trainer="m:f", summary="", fixed={"gama": 0.9})
    assert "wrong" not in algorithm_names()


@pytest.mark.usefixtures("own_rows")
def test_a_default_of_a_part_that_a_config_switches_off_goes_with_it() -> None:
    spec = register_algorithm("mine", trainer="m:f", summary="", defaults={"prioritized": True, "prioritized_alpha": 0.9})
    assert spec.parse({}).to_dict()["prioritized_alpha"] == 0.9
    assert "prioritized_alpha" not in spec.parse({"prioritized": False}).to_dict()
    with pytest.raises(ConfigError, match="needs prioritized: true"):  # but what the user said is not dropped
        spec.parse({"prioritized": False, "prioritized_alpha": 0.5})
