"""Typed settings: strict types, ranges, switches and the agreement of keys, each refused in one line that names the key."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_training.errors import ConfigError
from rl_training.experiment.settings import RecurrentSettings, Settings, ValueSettings


def refused(kind: type[Settings], **values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        kind.parse(values)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_an_integer_serves_as_a_float_and_a_list_as_a_tuple() -> None:
    settings = ValueSettings.parse({"learning_rate": 1, "hidden_sizes": [32, 16], "max_grad_norm": None})
    assert settings.learning_rate == 1.0
    assert settings.hidden_sizes == (32, 16)
    assert settings.max_grad_norm is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch_size": "64"}, "batch_size must be an integer, got '64'"),
        ({"batch_size": 64.0}, "batch_size must be an integer, got 64.0; write 64"),
        ({"batch_size": 0.5}, "batch_size must be an integer, got 0.5"),
        ({"batch_size": True}, "batch_size must be an integer, got True"),
        ({"learning_rate": "1e-3"}, "learning_rate must be a number, got '1e-3'"),
        ({"learning_rate": True}, "learning_rate must be a number, got True"),
        ({"learning_rate": float("nan")}, "learning_rate must be a finite number, got nan"),
        ({"dueling": 1}, "dueling must be true or false, got 1"),
        ({"hidden_sizes": 64}, "hidden_sizes must be a list, got 64"),
        ({"hidden_sizes": [64, "a"]}, "hidden_sizes.1 must be an integer, got 'a'"),
        ({"hidden_sizes": [64, 0]}, "hidden_sizes.1 must be >= 1, got 0"),
        ({"head": "quantiles"}, "head must be one of 'scalar', 'categorical', 'quantile' or 'implicit', got 'quantiles'"),
        ({"gamma": 1.5}, "gamma must be <= 1.0, got 1.5"),
        ({"learning_rate": 0}, "learning_rate must be > 0.0, got 0"),
        ({"tau": 0.0}, "tau must be > 0.0, got 0.0"),
        ({"gradient_steps": 0}, "gradient_steps must be -1 or >= 1, got 0"),
        ({"gradient_steps": -2}, "gradient_steps must be >= -1, got -2"),
        ({"batch_size": 65, "buffer_capacity": 64}, "batch_size must be <= buffer_capacity, got 65 and 64"),
        ({"head": "categorical", "v_min": 2, "v_max": 2}, "v_min must be < v_max, got 2.0 and 2.0"),
        ({"head": "quantile", "num_quantiles": 0}, "num_quantiles must be >= 1, got 0"),
        ({"head": "quantile", "kappa": -1.0}, "kappa must be >= 0.0, got -1.0"),
        ({"batchsize": 64}, "batchsize is not a key of ValueSettings; did you mean batch_size?"),
        ({"zzz": 64}, "zzz is not a key of ValueSettings"),
        ({"zzz": 64, "gamma": 2.0}, "zzz is not a key of ValueSettings (and 1 more)"),
    ],
)
def test_a_wrong_value_is_named(values: dict[str, Any], message: str) -> None:
    assert refused(ValueSettings, **values) == message


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prioritized_alpha": 0.6}, "prioritized_alpha needs prioritized: true"),
        ({"priority_eps": 1e-3}, "priority_eps needs prioritized: true"),
        ({"v_min": -1.0}, "v_min needs head: categorical"),
        ({"head": "quantile", "num_atoms": 51}, "num_atoms needs head: categorical"),
        ({"kappa": 1.0}, "kappa needs head: quantile or implicit"),
        ({"head": "quantile", "embedding_dim": 64}, "embedding_dim needs head: implicit"),
        ({"noisy_sigma": 0.5}, "noisy_sigma needs noisy: true"),
        ({"learning_rate_end": 1e-4}, "learning_rate_end needs lr_schedule: linear"),
    ],
)
def test_a_key_of_a_part_that_is_off_says_which_switch_it_needs(values: dict[str, Any], message: str) -> None:
    assert refused(ValueSettings, **values) == message


def test_the_same_key_is_fine_where_its_part_is_on() -> None:
    assert ValueSettings.parse({"prioritized": True, "prioritized_alpha": 0.7}).prioritized_alpha == 0.7
    assert ValueSettings.parse({"head": "implicit", "kappa": 0}).kappa == 0.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sequence_length": 8, "burn_in": 8}, "sequence_length must be > burn_in, got 8 and 8"),
        # 10 steps, 4 of burn-in: 6 are trained, and the last of them needs a bootstrap inside the chunk
        ({"sequence_length": 10, "burn_in": 4, "n_step": 6}, "n_step must be < sequence_length - burn_in, got 6 and 6"),
        ({"sequence_length": 8, "sequence_overlap": 8}, "sequence_overlap must be < sequence_length, got 8 and 8"),
        ({"sequence_length": 80, "buffer_capacity": 64, "batch_size": 8}, "buffer_capacity must be >= sequence_length, got 64 and 80"),
        ({"priority_eta": 0.9}, "priority_eta needs prioritized: true"),
    ],
)
def test_sequences_agree_with_themselves(values: dict[str, Any], message: str) -> None:
    assert refused(RecurrentSettings, **values) == message


def test_recurrent_settings_at_their_limits() -> None:
    settings = RecurrentSettings.parse({"sequence_length": 10, "burn_in": 4, "n_step": 5, "sequence_overlap": 9})
    assert (settings.n_step, settings.sequence_overlap) == (5, 9)


def test_to_dict_leaves_out_parts_that_are_off() -> None:
    off = ValueSettings().to_dict()
    assert not {"prioritized_alpha", "v_min", "num_quantiles", "noisy_sigma", "learning_rate_end"} & off.keys()
    assert off["hidden_sizes"] == [128, 128]  # a list: YAML has no tuple
    on = ValueSettings.parse({"prioritized": True, "noisy": True}).to_dict()
    assert {"prioritized_alpha", "noisy_sigma"} <= on.keys()


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "learning_rate": st.floats(1e-8, 10.0),
            "gamma": st.floats(0.0, 1.0),
            "n_step": st.integers(1, 20),
            "hidden_sizes": st.lists(st.integers(1, 512), max_size=3),
            "head": st.sampled_from(["scalar", "categorical", "quantile", "implicit"]),
            "prioritized": st.booleans(),
            "noisy": st.booleans(),
            "lr_schedule": st.sampled_from(["constant", "linear"]),
            "max_grad_norm": st.one_of(st.none(), st.floats(0.1, 100.0)),
        },
    )
)
def test_what_to_dict_gives_parses_to_the_same_settings(values: dict[str, Any]) -> None:
    settings = ValueSettings.parse(values)
    assert ValueSettings.parse(settings.to_dict()) == settings


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="gamma cannot be assigned"):
        ValueSettings().gamma = 0.5  # type: ignore[misc]  # what is tested
