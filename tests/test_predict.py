"""`predict`: observations as JSON in, actions and Q-values as JSON lines out."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from command_line import Cli
from rl_training import DRQN, PPO
from rl_training.errors import UserError
from rl_training.runtime.policy import read_observation
from rl_training.runtime.workflows import load_policy, predict

A, B = [0.0, 0.1, -0.02, 0.3], [0.5, -0.5, 0.1, 0.0]


def answers(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_arguments_file_and_standard_input_give_the_same(cli: Cli, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    q_values, _ = load_policy(trained).q_values([A, B])
    expected = [{"action": int(q.argmax()), "q_values": q.tolist()} for q in q_values]
    lines = f"{json.dumps(A)}\n\n  {json.dumps({'obs': B, 'episode_start': True})}\n"  # an empty line is none
    Path("obs.jsonl").write_text(lines)
    told = cli("predict", "--checkpoint", str(trained), json.dumps(A), json.dumps(B))
    assert told.code == 0 and told.err == ""
    for got, want in zip(answers(told.out), expected, strict=True):
        assert got["action"] == want["action"] and got["q_values"] == pytest.approx(want["q_values"], rel=1e-6)
    assert cli("predict", "--checkpoint", str(trained), "--input", "obs.jsonl") == told
    for source in ((), ("--input", "-")):
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        assert cli("predict", "--checkpoint", str(trained), *source) == told
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert cli("predict", "--checkpoint", str(trained)).out == ""


def test_answers_come_one_by_one(trained: Path) -> None:
    """Whoever steps an environment by them can give the next observation only after the last answer."""
    asked = []

    def observations() -> Any:
        for obs in (A, B):
            asked.append(obs)
            yield obs

    given = predict(trained, observations())
    next(given)
    assert asked == [A]
    next(given)
    assert asked == [A, B]


@pytest.mark.parametrize(
    ("env_id", "obs", "keys"),
    [("CartPole-v1", A, {"action", "probabilities"}), ("Pendulum-v1", [1.0, 0.0, 0.5], {"action", "mean", "std"})],
)
def test_a_policy_answers_with_its_distribution(env_id: str, obs: list[float], keys: set[str], tmp_path: Path) -> None:
    agent = PPO(env_id, output_dir=tmp_path, eval_episodes=1, hidden_sizes=(8,), num_steps=32)
    checkpoint = agent.learn(40).checkpoint_path
    (answer,) = predict(checkpoint, [obs])
    assert answer.keys() == keys
    np.testing.assert_allclose(answer["action"], agent.predict(obs)[0], rtol=1e-6)
    if "probabilities" in keys:
        assert sum(answer["probabilities"]) == pytest.approx(1) and answer["action"] == int(np.argmax(answer["probabilities"]))
    else:
        assert answer["action"] == pytest.approx(np.clip(answer["mean"], -2, 2)) and answer["std"][0] > 0
    with pytest.raises(UserError, match="no Q-values"):
        load_policy(checkpoint).q_values(obs)


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    small: dict[str, Any] = {"features_dim": 8, "hidden_sizes": [8], "recurrent_hidden_size": 8, "buffer_capacity": 200, "batch_size": 4}
    agent = DRQN("CartPole-v1", output_dir=tmp_path_factory.mktemp("drqn"), eval_episodes=1, learning_starts=40, **small)
    return agent.learn(60).checkpoint_path


def test_recurrent_rows_carry_their_state_from_line_to_line(recurrent: Path) -> None:
    first, second, restarted = predict(recurrent, [A, A, {"obs": A, "episode_start": True}])
    assert first["q_values"] != second["q_values"]  # the second has a past
    assert first["q_values"] == restarted["q_values"]  # a start forgets it
    policy = load_policy(recurrent)
    q_first, state = policy.q_values(A)
    q_second, _ = policy.q_values(A, state)
    assert first["q_values"] == q_first.tolist() and second["q_values"] == q_second.tolist()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[0, 0, 0]", "observation 1 must have shape (4,), got (3,)"),
        ("[[0, 0, 0, 0]]", "observation 1 must have shape (4,), got (1, 4)"),
        ("0", "observation 1 must have shape (4,), got ()"),
        ("[0, [0], 0, 0]", "observation 1 must be a list of numbers of shape (4,)"),
        ('["a", 0, 0, 0]', "observation 1 must be a list of numbers of shape (4,)"),
        ("null", "observation 1 must have shape (4,), got ()"),
        ("[null, 0, 0, 0]", "observation 1 must be finite numbers"),
        ("[NaN, 0, 0, 0]", "observation 1 must be finite numbers"),
        ("[1e999, 0, 0, 0]", "observation 1 must be finite numbers"),
        ("[1e39, 0, 0, 0]", "observation 1 must be finite numbers"),  # finite, but not as float32
        ("[0, 0, 0", "observation 1: not JSON"),
        ('{"observation": [0, 0, 0, 0]}', "observation 1 must hold obs and may hold episode_start, got 'observation'"),
        ('{"episode_start": true}', "observation 1 must hold obs and may hold episode_start, got no obs"),
        ('{"obs": [0, 0, 0, 0], "episode_start": 1}', "observation 1 has an episode_start that is not true or false: 1"),
    ],
)
def test_bad_observations(cli: Cli, trained: Path, text: str, message: str) -> None:
    assert cli.refused("predict", "--checkpoint", str(trained), text).startswith(f"error: {message}")


def test_bad_files(cli: Cli, trained: Path) -> None:
    Path("obs.jsonl").write_text("[0, 0, 0, 0]\n\n[0,\n")
    Path("binary").write_bytes(b"\xff\xfe\x00")
    said = cli.refused("predict", "--checkpoint", str(trained), "--input", "obs.jsonl")
    assert said.startswith("error: obs.jsonl, line 3: not JSON")
    assert cli.refused("predict", "--checkpoint", str(trained), "--input", "gone").startswith("error: gone: cannot be read")
    assert cli.refused("predict", "--checkpoint", str(trained), "--input", "binary").startswith("error: binary: cannot be read")


def test_images_are_whole_bytes() -> None:
    assert read_observation([[0, 255]], (1, 2), "uint8").tolist() == [[0, 255]]
    for wrong in ([[0, 256]], [[0, -1]], [[0, 0.5]]):
        with pytest.raises(UserError, match="whole numbers that uint8 can hold"):
            read_observation(wrong, (1, 2), "uint8")
    assert read_observation([0.1], (1,), "float32").dtype == np.float32  # rounded, as every float32 is


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        (np.zeros(3), r"an observation must have shape \(4,\) \(or a batch of them\), got \(3,\)"),
        (np.zeros((2, 3), np.float32), r"must have shape \(4,\) \(or a batch of them\), got \(2, 3\)"),
        ([[0.0] * 4, [0.0] * 3], r"must be a list of numbers of shape \(4,\)"),
        ({"position": 0.0}, r"must be a list of numbers of shape \(4,\)"),
        ("left", r"must be a list of numbers of shape \(4,\)"),
        (np.array([0, 0, np.nan, 0], np.float32), "must be finite numbers"),
        ([[0, 0, 0, 0], [0, np.inf, 0, 0]], "must be finite numbers"),
        ([1e39, 0, 0, 0], "must be finite numbers"),
    ],
)
def test_bad_observations_in_python(recurrent: Path, obs: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_policy(recurrent).predict(obs)


def test_bad_states_and_starts_in_python(recurrent: Path) -> None:
    policy = load_policy(recurrent)
    one, (_, state) = policy.predict(A), policy.predict([A, B])
    assert policy.predict([A, B], state, [True, False])[0].shape == (2,) and policy.predict([A, B], state, True)[0].shape == (2,)
    for given in (one[1], (), (state[0],), "state"):
        with pytest.raises(UserError, match=r"the state must be one that predict gave for 2 observations, of shapes \[\(1, 2, 8\), "):
            policy.predict([A, B], given)
    for starts in ([True, False, True], [[True, False], [True, False]]):
        with pytest.raises(UserError, match="episode_start must be true or false for each of 2 observations"):
            policy.predict([A, B], None, starts)


def test_a_policy_without_memory_takes_no_state(trained: Path) -> None:
    policy = load_policy(trained)
    assert policy.predict(A, ())[0] == policy.predict(A, None)[0]
    with pytest.raises(UserError, match="the state must be one that predict gave"):
        policy.predict(A, (torch.zeros(1, 1, 8),))
