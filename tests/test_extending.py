"""The worked examples of extending: a row, a network and an environment of one's own, as scripts and on the command line."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from command_line import Cli
from rl_training.algorithms.backups import Backup, Bootstrap, Seen, take_action
from rl_training.api import managed
from rl_training.errors import ConfigError, SpaceError
from rl_training.experiment import network_parts, registry
from rl_training.experiment.checkpointing import open_checkpoint
from rl_training.experiment.config import TrainConfig, callable_env_id
from rl_training.experiment.network_parts import register_core, register_torso
from rl_training.experiment.registry import get_algorithm_spec, register_algorithm
from rl_training.models import Core, CoreState, QNetwork, Torso, make_head
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.policy import Policy
from rl_training.runtime.value_based import head_keywords
from rl_training.runtime.workflows import fresh_policy, load_policy, resume_training, train

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def what_examples_register_ends_with_the_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    tables: list[dict[str, Any]] = [registry._TABLE, managed._CLASSES, gym.registry, network_parts._TORSOS, network_parts._CORES]
    before = [dict(table) for table in tables]
    monkeypatch.syspath_prepend(ROOT)
    yield
    for table, old in zip(tables, before, strict=True):
        table.clear()
        table.update(old)
    for name in [name for name in sys.modules if name.startswith("examples.")]:
        del sys.modules[name]


def run(example: str, folder: Path, steps: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs it as a script, in this process; the run's directory."""
    script = str(ROOT / "examples" / f"{example}.py")
    options = ["--total-timesteps", str(steps), "--eval-episodes", "2", "--output-dir", str(folder / "out")]
    monkeypatch.setattr(sys, "argv", [script, *options])
    runpy.run_path(script, run_name="__main__")
    (made,) = (folder / "out").iterdir()
    return made


SMALL: dict[str, Any] = {"learning_starts": 20, "batch_size": 8, "buffer_capacity": 200}


class Killed(Callback):
    """Ends a run 20 steps after its first checkpoint, as a crash would: nothing more is saved."""

    def on_step(self, run: Any, step: Any) -> None:
        if run.clock.env_steps >= 70:
            raise RuntimeError("killed")


def train_small(folder: Path, row: str, env: str | Callable[..., Any], callbacks: Sequence[Callback] = (), **algo_kwargs: Any) -> Path:
    """The checkpoint that 120 steps of a row end with."""
    base = {"algo": row, "seed": 1, "total_timesteps": 120, "num_envs": 2, "device": "cpu", "threads": 1, "output_dir": str(folder)}
    often = {"eval_interval": 0, "eval_episodes": 1, "checkpoint_interval": 50, "log_interval": 0}
    env_id, made_by = (env, None) if isinstance(env, str) else (callable_env_id(env), env)
    config = TrainConfig(**base, **often, env_id=env_id, algo_kwargs=algo_kwargs)
    return train(config, callbacks=callbacks, env=made_by).checkpoint_path


def same_when_killed_and_resumed(folder: Path, row: str, env: str | Callable[..., Any], **algo_kwargs: Any) -> Policy:
    """Trains the row twice, once undisturbed and once killed between two checkpoints and resumed; the policy it ends with."""
    whole = train_small(folder / "whole", row, env, **algo_kwargs)
    with pytest.raises(RuntimeError, match="killed"):
        train_small(folder / "killed", row, env, callbacks=[Killed()], **algo_kwargs)
    (run_dir,) = (folder / "killed").iterdir()
    assert open_checkpoint(run_dir).step == 50
    resumed = resume_training(run_dir, env=None if isinstance(env, str) else env).checkpoint_path
    for name in ("model.safetensors", "training.safetensors", "replay.safetensors"):
        assert Path(whole, name).read_bytes() == Path(resumed, name).read_bytes()
    return load_policy(resumed)


def test_an_environment_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    made = run("own_environment", tmp_path, 2_000, monkeypatch)
    assert open_checkpoint(made).step == 2_000
    # From places 0, 1 and 2 of 6 the end is 6, 5 and 4 steps away: 1 − 0.01 for each step before the last, 0.95 to 0.97.
    assert 0.95 <= float(capsys.readouterr().out.rsplit("return: ", 1)[1].split()[0]) <= 0.97


def test_it_can_be_named_in_a_config(cli: Cli) -> None:
    done = cli("train", "--config", "small.yaml", "--quiet", "--set", "env_id=examples.own_environment:Corridor-v0")
    assert done.code == 0, done.err
    assert cli("eval", "--checkpoint", done.out.strip(), "--episodes", "1").code == 0


def test_a_network_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = run("own_network", tmp_path, 1_100, monkeypatch)  # learning starts at 1,000
    checkpoint = open_checkpoint(made)
    assert checkpoint.load_training()["run"]["updates"] == 26  # multiples of 4 from 1,000 to 1,100
    assert "torso.inlet.weight" in checkpoint.load_model()


def test_a_plain_module_is_a_network(tmp_path: Path) -> None:
    """From observations to Q-values and nothing else: trained, stopped, resumed, evaluated and asked like any other."""
    register_algorithm(
        "plain_dqn",
        trainer="rl_training.runtime.dqn_trainer:train_dqn",
        network=lambda settings, spaces: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, spaces["num_actions"])),
        summary="DQN with a module of one's own",
    )
    policy = same_when_killed_and_resumed(tmp_path, "plain_dqn", "CartPole-v1", **SMALL)
    assert policy.network.facts == (4 * 8 + 8 + 8 * 2 + 2, False, False)
    assert policy.q_values([0.0, 0.0, 0.0, 0.0])[0].shape == (2,)


@pytest.mark.parametrize(("row", "settings"), [("ppo", {"num_steps": 16}), ("drqn", {})])
def test_a_network_that_the_row_cannot_learn_with_is_refused(tmp_path: Path, row: str, settings: dict[str, Any]) -> None:
    spec = get_algorithm_spec(row)
    register_algorithm(f"plain_{row}", trainer=spec.trainer, settings=spec.settings, network=lambda s, p: nn.Linear(4, 2), summary="no")
    with pytest.raises(ConfigError, match=f"plain_{row} learns with an? .*, and the row's `network` gave a PlainQNetwork"):
        train_small(tmp_path, f"plain_{row}", "CartPole-v1", **settings)
    assert not list(tmp_path.iterdir())


def test_a_module_with_another_number_of_actions_is_refused(tmp_path: Path) -> None:
    register_algorithm(
        "three_actions", trainer="rl_training.runtime.dqn_trainer:train_dqn", network=lambda s, p: nn.Linear(4, 3), summary="no"
    )
    with pytest.raises(ConfigError, match=r"2 actions maps 2 observations to \[2, 2\], and this Linear to \[2, 3\]"):
        train_small(tmp_path, "three_actions", "CartPole-v1")


def test_a_module_for_other_observations_is_refused(tmp_path: Path) -> None:
    register_algorithm("wide_dqn", trainer="rl_training.runtime.dqn_trainer:train_dqn", network=lambda s, p: nn.Linear(9, 2), summary="no")
    with pytest.raises(ConfigError, match=r"this Linear cannot read observations of shape \(4,\): mat1 and mat2"):
        train_small(tmp_path, "wide_dqn", "CartPole-v1")
    assert not list(tmp_path.iterdir())


def test_a_module_in_place_of_what_makes_one_is_refused(tmp_path: Path) -> None:
    register_algorithm("made_dqn", trainer="rl_training.runtime.dqn_trainer:train_dqn", network=nn.Linear(4, 2), summary="no")
    with pytest.raises(ConfigError, match=r"made_dqn: `network` is a function \(settings, spaces\) that makes a module, and not a Linear"):
        train_small(tmp_path, "made_dqn", "CartPole-v1")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("key", "value", "shown"), [("head", "quantile", "quantile"), ("dueling", True, "true"), ("noisy", True, "true")])
def test_a_plain_module_has_no_head_to_choose(tmp_path: Path, key: str, value: Any, shown: str) -> None:
    register_algorithm("bare_dqn", trainer="rl_training.runtime.dqn_trainer:train_dqn", network=lambda s, p: nn.Linear(4, 2), summary="no")
    with pytest.raises(ConfigError, match=f"{key} is {shown}, and bare_dqn's network is a plain module of Q-values"):
        train_small(tmp_path, "bare_dqn", "CartPole-v1", **{key: value})
    assert not list(tmp_path.iterdir())


class Blink(gym.Env[Any, int]):
    """An image of 2 × 8 × 8 with one bright pixel: 1 for naming the half it is in; 10 steps."""

    observation_space = gym.spaces.Box(0, 255, (2, 8, 8), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def _look(self) -> Any:
        image = np.zeros((2, 8, 8), np.uint8)
        row, column = self.np_random.integers(8, size=2)
        image[self.np_random.integers(2), row, column] = 255
        self._half = int(column >= 4)
        return image

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = 10
        return self._look(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        reward = float(action == self._half)
        return self._look(), reward, self._left == 0, False, {}


class SmallConv(Torso):
    """Two convolutions over [C, H, W] bytes."""

    def __init__(self, obs_shape: Sequence[int]) -> None:
        super().__init__()
        channels, height, width = obs_shape
        self.layers = nn.Sequential(nn.Conv2d(channels, 4, 3, stride=2), nn.ReLU(), nn.Conv2d(4, 4, 2), nn.ReLU(), nn.Flatten())
        self.out_dim = self.layers(torch.zeros(1, channels, height, width)).shape[1]

    def forward(self, obs: Tensor) -> Tensor:
        return self.layers(obs.float() / 255)


class OwnGRU(Core):
    """A gated recurrent unit whose state is (h,)."""

    def __init__(self, in_dim: int, hidden_size: int, num_layers: int) -> None:
        super().__init__(hidden_size, num_layers, parts=1)
        self.rnn = nn.GRU(in_dim, hidden_size, num_layers)

    def forward(self, features: Tensor, state: CoreState) -> tuple[Tensor, CoreState]:
        outputs, h = self.rnn(features, state[0])
        return outputs, (h,)


SEQUENCES: dict[str, Any] = {**SMALL, "sequence_length": 6, "features_dim": 8, "hidden_sizes": [8], "recurrent_hidden_size": 8}
ROLLOUTS: dict[str, Any] = {"num_steps": 16, "minibatch_size": 16, "update_epochs": 2, "hidden_sizes": [8]}
MEMORY_ROLLOUTS: dict[str, Any] = {**ROLLOUTS, "features_dim": 8, "recurrent_hidden_size": 8}


@pytest.mark.parametrize(
    ("row", "settings"),
    [
        ("noisy_dqn", {**SMALL, "dueling": True, "double_q": True, "prioritized": True, "hidden_sizes": [8, 8]}),
        ("drqn", SEQUENCES),
        ("ppo", ROLLOUTS),
        ("recurrent_ppo", MEMORY_ROLLOUTS),
    ],
)
def test_a_convolutional_torso_by_name(tmp_path: Path, row: str, settings: dict[str, Any]) -> None:
    register_torso("small_conv", SmallConv)
    policy = same_when_killed_and_resumed(tmp_path, row, Blink, torso="small_conv", **settings)
    assert policy.network.facts.convolutional and policy.network.facts.recurrent == (row in ("drqn", "recurrent_ppo"))
    weights = {name: value for name, value in policy.network.state_dict().items() if name.endswith("layers.0.weight") and value.ndim == 4}
    config = open_checkpoint(next((tmp_path / "whole").iterdir())).config
    untrained = fresh_policy(config, env=Blink).network.state_dict()
    assert weights and all(not torch.equal(value, untrained[name]) for name, value in weights.items())
    assert policy.predict(Blink.observation_space.sample())[0] in (0, 1)
    with pytest.raises(SpaceError, match=r"with torso: small_conv cannot learn from .* it takes images .*; leave torso out"):
        train_small(tmp_path / "vector", row, "CartPole-v1", torso="small_conv", **settings)


def test_a_convolutional_torso_as_an_object(tmp_path: Path) -> None:
    def network(settings: Any, spaces: Any) -> QNetwork:
        torso = SmallConv(spaces["obs_shape"])
        return QNetwork(torso, make_head(settings.head, torso.out_dim, spaces["num_actions"], **head_keywords(settings)))

    trainer = "rl_training.runtime.dqn_trainer:train_dqn"
    register_algorithm("conv_dqn", trainer=trainer, network=network, observations=("image",), summary="DQN with convolutions")
    policy = same_when_killed_and_resumed(tmp_path, "conv_dqn", Blink, head="quantile", num_quantiles=5, **SMALL)
    assert policy.network.facts.convolutional and policy.q_values(Blink.observation_space.sample())[0].shape == (2,)


@pytest.mark.parametrize("core", ["own_gru", "gru"])
@pytest.mark.parametrize(
    ("row", "settings"), [("drqn", SEQUENCES), ("r2d2", {**SEQUENCES, "burn_in": 2}), ("recurrent_ppo", MEMORY_ROLLOUTS)]
)
def test_a_core_of_ones_own_by_name(tmp_path: Path, row: str, settings: dict[str, Any], core: str) -> None:
    register_core("own_gru", OwnGRU)
    policy = same_when_killed_and_resumed(tmp_path, row, "CartPole-v1", core=core, **settings)
    _, state = policy.predict(np.zeros(4, np.float32))
    assert [tuple(part.shape) for part in state] == [(1, 1, 8)] and bool(state[0].any())


def test_what_a_torso_or_core_is_called_and_gives_is_checked(tmp_path: Path) -> None:
    register_torso("small_conv", SmallConv)
    register_torso("no_torso", lambda obs_shape: nn.Flatten(), observations=("vector",))
    with pytest.raises(ConfigError, match=r"algo_kwargs\.torso has no 'small_cov'; did you mean small_conv\?"):
        train_small(tmp_path, "dqn", "CartPole-v1", torso="small_cov")
    with pytest.raises(ConfigError, match=r"algo_kwargs\.core has no 'rnn'; known: .*gru, lstm"):
        train_small(tmp_path, "drqn", "CartPole-v1", core="rnn")
    with pytest.raises(ConfigError, match=r"torso 'no_torso' gave a Flatten, which is no rl_training\.models\.Torso"):
        train_small(tmp_path, "dqn", "CartPole-v1", torso="no_torso")
    for name, register in (("mlp", register_torso), ("small_conv", register_torso), ("lstm", register_core)):
        with pytest.raises(ConfigError, match=f"{name!r} is already registered"):
            register(name, SmallConv)
    assert not list(tmp_path.iterdir())


def test_an_algorithm_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = run("own_algorithm", tmp_path, 1_100, monkeypatch)
    assert open_checkpoint(made).config.algo_kwargs["expectile"] == 0.6


def test_its_rule_in_closed_form() -> None:
    from examples.own_algorithm import ExpectileRule

    # δ = 2 above, weight 0.7: L = 0.7·4 = 2.8, ∂L/∂Q = −2·0.7·2 = −2.8.  δ = −1 below, weight |0.7 − 1| = 0.3: L = 0.3, ∂L/∂Q = 0.6.
    chosen = torch.tensor([1.0, 3.0], requires_grad=True)
    loss = ExpectileRule(0.7).loss(chosen, torch.tensor([3.0, 2.0]))
    torch.testing.assert_close(loss, torch.tensor([2.8, 0.3]))
    torch.testing.assert_close(torch.autograd.grad(loss.sum(), chosen)[0], torch.tensor([-2.8, 0.6]))
    bootstrap = Bootstrap(torch.tensor([2.0]))
    torch.testing.assert_close(ExpectileRule(0.7).target(bootstrap, torch.tensor([1.0]), torch.tensor([0.5])), torch.tensor([2.0]))


@pytest.mark.parametrize("row", ["expectile_dqn", "residual_dqn"])
def test_rows_of_ones_own_on_the_command_line(cli: Cli, row: str) -> None:
    module = {"expectile_dqn": "examples.own_algorithm", "residual_dqn": "examples.own_network"}[row]
    assert f"algo '{row}' is unknown" in cli.refused("train", "--config", "small.yaml", "--set", f"algo={row}")  # not yet imported
    small = ["--import", module, "train", "--config", "small.yaml", "--set", f"algo={row}", "--quiet"]
    whole = cli(*small)
    assert whole.code == 0, whole.err
    checkpoint = whole.out.strip()
    stopped = cli(*small, "--total-timesteps", "60", "--set", "schedule_timesteps=120").out.strip()
    resumed = cli("--import", module, "resume", "--checkpoint", stopped, "--total-timesteps", "120", "--quiet").out.strip()
    for name in ("model.safetensors", "training.safetensors", "replay.safetensors"):
        assert Path(checkpoint, name).read_bytes() == Path(resumed, name).read_bytes()
    for command in (["eval", "--episodes", "1"], ["predict", "[0, 0, 0, 0]"]):
        assert cli("--import", module, *command, "--checkpoint", checkpoint).code == 0
    assert row in cli("--import", module, "algos").out
    assert get_algorithm_spec(row).summary
    # Elsewhere, a checkpoint of a row that was not registered says so.
    del registry._TABLE[row]
    assert f"algorithm '{row}' is not known here (import the module that registers it" in cli.refused("eval", "--checkpoint", checkpoint)


def test_an_own_setting_is_checked_like_any_other(cli: Cli) -> None:
    said = cli.refused(
        *("--import", "examples.own_algorithm", "train", "--config", "small.yaml"),
        *("--set", "algo=expectile_dqn", "--set", "algo_kwargs.expectile=1.5"),
    )
    assert said.endswith("algo_kwargs.expectile must be < 1.0, got 1.5")


class Munchausen(Backup):
    """Munchausen DQN (arXiv:2007.14430, eq. 2): π = softmax(Q/τ); its entropy is bootstrapped from, its log-probability is a reward."""

    needs_current = True

    def __init__(self, alpha: float = 0.9, tau: float = 0.03, low: float = -1.0) -> None:
        self.alpha, self.tau, self.low = alpha, tau, low

    def __call__(self, seen: Seen) -> Bootstrap:
        assert seen.outputs is not None
        log_pi = torch.log_softmax(seen.q_values(seen.outputs) / self.tau, -1)
        next_log_pi = torch.log_softmax(seen.q_values(seen.next_outputs) / self.tau, -1)
        bonus = self.alpha * (self.tau * take_action(log_pi, seen.actions)).clamp(min=self.low)
        return Bootstrap(seen.next_outputs, next_log_pi.exp(), -self.tau * next_log_pi, bonus)


BACKED_UP: dict[str, dict[str, Any]] = {
    "dqn": {"n_step": 3},
    "c51_dqn": {"v_min": 0.0, "v_max": 100.0, "num_atoms": 11},
    "qr_dqn": {"num_quantiles": 5, "prioritized": True},
    "iqn": {"num_quantiles": 4, "num_target_quantiles": 5, "embedding_dim": 8},
    "r2d2": {"sequence_length": 6, "features_dim": 8, "recurrent_hidden_size": 8, "burn_in": 2, "n_step": 2, "value_rescaling": True},
}


@pytest.mark.parametrize("row", BACKED_UP)
def test_a_backup_of_ones_own_in_front_of_every_rule_and_view(tmp_path: Path, row: str) -> None:
    spec = get_algorithm_spec(row)
    seen: list[Bootstrap] = []

    class Watched(Munchausen):
        def __call__(self, *given: Any) -> Bootstrap:
            seen.append(super().__call__(*given))
            return seen[-1]

    def trainer(config: TrainConfig, run_suffix: str | None = None, **options: Any) -> Any:
        return spec.train_fn(config, run_suffix, backup=Watched(), **options)

    register_algorithm(
        f"own_{row}",
        trainer=trainer,
        network=f"{str(spec.trainer).partition(':')[0]}:build_network",
        settings=spec.settings,
        fixed=spec.fixed,
        defaults=spec.defaults,
        summary="Munchausen",
    )
    same_when_killed_and_resumed(tmp_path, f"own_{row}", "CartPole-v1", **{**SMALL, **BACKED_UP[row]})
    assert len(seen) > 20 and all(bool((bootstrap.bonus <= 0).all()) for bootstrap in seen if bootstrap.bonus is not None)
