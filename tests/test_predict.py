"""`predict`: observations as JSON in, actions and Q-values as JSON lines out."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from command_line import Cli
from rl_training import DQN, DRQN, PPO
from rl_training.errors import SpaceError, UserError
from rl_training.runtime.policy import read_observation
from rl_training.runtime.workflows import evaluate_checkpoint, load_policy, predict, resume_training

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
    assert cli("predict", "--checkpoint", str(trained)) == (0, "", "")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)  # a person, who would wait for us
    assert cli("predict", "--checkpoint", str(trained)).err == "predict: type one observation a line, such as [0, 0.1, 0, 0]; Ctrl-D ends\n"


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
        ('{"observation": [0, 0, 0, 0]}', "observation 1 must hold obs, may hold episode_start, action_mask and reward, got 'observation'"),
        ('{"episode_start": true}', "observation 1 must hold obs, may hold episode_start, action_mask and reward, got no obs"),
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
    with pytest.raises(UserError, match=r"^must be whole numbers that uint8 can hold, got array\(\[\[0\.5, 0\.5\], .*\]\)$"):  # in one line
        read_observation(np.full((9, 2), 0.5), (9, 2), "uint8")
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


class Lamps(gym.Env[Any, Any]):
    """A Dict observation: where it is, which of three lamps burns, and two switches."""

    observation_space = gym.spaces.Dict(
        {
            "place": gym.spaces.Box(-1, 1, (2,), np.float32),
            "lamp": gym.spaces.Discrete(3, start=1),
            "switches": gym.spaces.Tuple((gym.spaces.MultiBinary(2), gym.spaces.Box(0, 255, (1,), np.uint8))),
        }
    )
    action_space = gym.spaces.Discrete(2, start=1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(1000)))
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 1.0, bool(self.np_random.random() < 0.2), False, {}


LAMPS = {"place": [0.5, -0.5], "lamp": 2, "switches": [[1, 0], [7]]}


@pytest.fixture(scope="module")
def lamps() -> Iterator[str]:
    gym.register("Lamps-v0", entry_point=Lamps)
    yield "Lamps-v0"
    del gym.registry["Lamps-v0"]


def trained_on(env: Any, folder: Path, *wrappers: Any) -> Path:
    settings: dict[str, Any] = {"hidden_sizes": [8], "batch_size": 8, "buffer_capacity": 200, "learning_starts": 20, "eval_episodes": 1}
    agent = DQN(env, output_dir=folder, total_timesteps=30, env_kwargs={"wrappers": list(wrappers)}, **settings)
    return agent.learn().checkpoint_path


def test_a_dict_observation_is_what_the_wrappers_make_of_it(cli: Cli, lamps: str, tmp_path: Path) -> None:
    checkpoint = trained_on(lamps, tmp_path / "runs", "flatten", {"keep": {"indices": [0, 1, 2, 3, 4]}})
    # Dict sorts its keys: lamp 2 of 1 … 3 is [0, 1, 0], then the place
    (expected,) = predict(checkpoint, [[0, 1, 0, 0.5, -0.5]])
    told = cli("predict", "--checkpoint", str(checkpoint), json.dumps({"obs": LAMPS}))
    assert told.code == 0, told.err
    (answer,) = answers(told.out)
    assert answer == expected and answer["action"] in (1, 2)


def test_frames_are_stacked_from_one_dict_to_the_next(lamps: str, tmp_path: Path) -> None:
    checkpoint = trained_on(lamps, tmp_path, "flatten", {"keep": {"indices": [3, 4]}}, {"frame_stack": {"size": 2}})
    second = {**LAMPS, "place": [0.0, 1.0]}
    stacked = list(predict(checkpoint, [{"obs": LAMPS}, {"obs": second}, {"obs": second, "episode_start": True}]))
    plain = list(predict(checkpoint, [[0.5, -0.5, 0.5, -0.5], [0.5, -0.5, 0.0, 1.0], [0.0, 1.0, 0.0, 1.0]]))
    assert stacked == plain


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lamp": 0}, r"observation 1 has an obs\.lamp that is not in Discrete\(3, start=1\): 0"),
        ({"lamp": 1.5}, r"observation 1 has an obs\.lamp that must be whole numbers"),
        ({"place": [0.5]}, r"observation 1 has an obs\.place that must have shape \(2,\), got \(1,\)"),
        ({"place": [0.5, float("nan")]}, r"observation 1 has an obs\.place that must be finite numbers"),
        ({"switches": [[1, 0]]}, r"observation 1 has an obs\.switches that must be a list of 2"),
        ({"switches": [[1, 2], [7]]}, r"observation 1 has an obs\.switches\.0 that is not in MultiBinary"),
        ({"lamps": 1}, r"observation 1 has an obs that must hold the keys 'lamp', 'place', 'switches', got the keys 'place', 'lamp', "),
    ],
)
def test_bad_dict_observations(lamps: str, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    checkpoint = trained_on(lamps, tmp_path, "flatten")
    with pytest.raises(UserError, match=message):
        list(predict(checkpoint, [{"obs": {**LAMPS, **changes}}]))


def test_of_a_selected_entry_nothing_else_is_looked_at(lamps: str, tmp_path: Path) -> None:
    """What is beside it may be missing, or be nothing that JSON or an array holds, as MiniGrid's mission."""
    checkpoint = trained_on(lamps, tmp_path, {"time_limit": {"max_steps": 50}}, {"select": {"key": "place"}})
    expected = list(predict(checkpoint, [LAMPS["place"]]))
    assert list(predict(checkpoint, [{"obs": {"place": LAMPS["place"], "lamp": "green"}}])) == expected
    assert DQN.load(checkpoint).predict({"place": LAMPS["place"]})[0] == expected[0]["action"]
    for obs, message in (
        ({"lamp": 1}, r"observation 1 has an obs that must hold the key 'place', got the keys 'lamp'"),
        ({"place": [0.5]}, r"observation 1 has an obs\.place that must have shape \(2,\), got \(1,\)"),
    ):
        with pytest.raises(UserError, match=message):
            list(predict(checkpoint, [{"obs": obs}]))


def test_what_the_environment_gives_is_taken_where_its_shape_tells(tmp_path: Path) -> None:
    checkpoint = trained_on("CartPole-v1", tmp_path / "keep", {"keep": {"indices": [3, 0]}})
    assert list(predict(checkpoint, [[0.1, 0.2, 0.3, 0.4]])) == list(predict(checkpoint, [[0.4, 0.1]]))
    with pytest.raises(UserError, match=r"observation 1 has an obs that must have shape \(4,\), got \(3,\)"):
        list(predict(checkpoint, [[0.1, 0.2, 0.3]]))
    checkpoint = trained_on("FrozenLake-v1", tmp_path / "flatten", "flatten")
    assert list(predict(checkpoint, [{"obs": 5}])) == list(predict(checkpoint, [np.eye(16)[5].tolist()]))
    with pytest.raises(UserError, match=r"observation 1 has an obs that is not in Discrete\(16\): 16"):
        list(predict(checkpoint, [16]))


def test_what_cannot_be_wrapped_says_so(cli: Cli, trained: Path, lamps: str, tmp_path: Path) -> None:
    said = cli.refused("predict", "--checkpoint", str(trained), json.dumps({"obs": LAMPS}))
    assert said.startswith("error: observation 1 has an obs that must be a list of numbers of shape (4,), got {'lamp'")
    checkpoint = trained_on(lamps, tmp_path / "more", "flatten", "append_action_reward")
    with pytest.raises(UserError, match="the observation is not enough: append_action_reward needs the reward too"):
        list(predict(checkpoint, [{"obs": LAMPS}]))
    checkpoint = trained_on(Lamps, tmp_path / "callable", "flatten")
    with pytest.raises(UserError, match="environment is a callable"):
        list(predict(checkpoint, [{"obs": LAMPS}]))
    assert len(list(predict(checkpoint, [{"obs": LAMPS}], env=Lamps))) == 1


def test_another_environment_is_refused_wherever_it_is_given(cli: Cli, tmp_path: Path) -> None:
    checkpoint = trained_on(lambda: gym.make("CartPole-v1"), tmp_path / "runs")
    message = (
        r"step_30: was trained with observations of shape \(4,\) \(float32\) and actions \{'kind': 'discrete', 'n': 2, 'start': 0\}; "
        r"this environment has observations of shape \(6,\) \(float32\) and actions \{'kind': 'discrete', 'n': 3, 'start': 0\}"
    )

    def acrobot() -> Any:
        return gym.make("Acrobot-v1")

    for ask in (
        lambda: DQN.load(checkpoint, env=acrobot),
        lambda: DQN.resume(checkpoint, env=acrobot),
        lambda: evaluate_checkpoint(checkpoint, env=acrobot),
        lambda: resume_training(checkpoint, total_timesteps=40, env=acrobot),
    ):
        with pytest.raises(SpaceError, match=message):
            ask()
    loaded = DQN.load(checkpoint, env=lambda: gym.make("CartPole-v1"))
    assert loaded.evaluate(1)["eval_episodes"] == 1
