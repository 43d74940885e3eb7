"""`compile`: what it resolves to, that a compiled step does what eager code does for every row, and that a run uses it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from resume_harness import FILES
from rl_training.algorithms import DQN
from rl_training.algorithms.q_learner import QLearner
from rl_training.data import ReplayBuffer
from rl_training.errors import ConfigError
from rl_training.models import MLPQNetwork
from rl_training.models.flat import flatten_parameters
from rl_training.runtime.accelerate import BREAK_EVEN_UPDATES, CompilingUpdates, accelerate_learner, missing_toolchain, resolve_compile
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.off_policy import SampledUpdates
from rl_training.runtime.workflows import resume_training, train
from rl_training.speed import ahead_of_time
from rl_training.speed.ahead_of_time import Compiled, compile_learner, trace
from rl_training.speed.parameters import parameters_from, split_like
from rl_training.speed.pure_step import PureStep
from value_rows import LEARNED, ROWS, batches, config_of, parts_of

CLOSE = {"rtol": 1e-4, "atol": 1e-6}
# C51's are small differences of larger numbers (cross-entropy less entropy; means over atoms up to 100): float32's 1e-7 of those, twice.
REPORTED = {"rtol": 1e-4, "atol": 2e-5}
CPU = torch.device("cpu")


# What `auto` means.


def test_auto_compiles_where_the_updates_pay_for_it() -> None:
    enough = BREAK_EVEN_UPDATES
    assert resolve_compile("auto", device=CPU, planned_updates=enough, recurrent=False).on
    few = resolve_compile("auto", device=CPU, planned_updates=enough - 1, recurrent=False)
    assert not few.on and f"{enough - 1:,} updates do not pay" in few.why
    assert resolve_compile(True, device=CPU, planned_updates=1, recurrent=False).on
    assert not resolve_compile("auto", device=CPU, planned_updates=enough, recurrent=True).on
    assert resolve_compile(True, device=CPU, planned_updates=1, recurrent=True).on
    assert not resolve_compile(False, device=CPU, planned_updates=enough, recurrent=False).on
    assert resolve_compile("auto", device=CPU, planned_updates=enough, recurrent=False, num_quantiles=51).on
    assert not resolve_compile("auto", device=CPU, planned_updates=enough, recurrent=False, num_quantiles=200).on
    assert resolve_compile(True, device=CPU, planned_updates=1, recurrent=False, num_quantiles=200).on
    assert resolve_compile("auto", device=torch.device("cuda"), planned_updates=1, recurrent=True).on  # a graph is captured in no time


def test_without_a_compiler_auto_stays_off_and_true_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    decision = resolve_compile("auto", device=CPU, planned_updates=10**9, recurrent=False)
    assert decision == (False, "no C++ compiler (no-such-compiler) is installed")
    with pytest.raises(ConfigError, match=r"compile: true cannot be had: no C\+\+ compiler \(no-such-compiler\) is installed; use"):
        resolve_compile(True, device=CPU, planned_updates=1, recurrent=False)


def test_a_row_without_a_compiled_step_says_so() -> None:
    assert not resolve_compile("auto", device=CPU, planned_updates=None, recurrent=False).on
    with pytest.raises(ConfigError, match="this algorithm has no compiled step"):
        resolve_compile(True, device=CPU, planned_updates=None, recurrent=False)


@pytest.mark.parametrize("recurrent", [False, True])
def test_what_learns_from_rollouts_has_graphs_on_a_gpu_alone(recurrent: bool) -> None:
    made = resolve_compile("auto", device=torch.device("cuda"), planned_updates=None, recurrent=recurrent)
    assert made.on and ("acting pass" if recurrent else "gradient step") in made.why
    assert not resolve_compile("auto", device=torch.device("cpu"), planned_updates=None, recurrent=recurrent).on


# One step, compiled and eager.


def agree(eager: QLearner, compiled: QLearner, replay: Any, count: int) -> None:
    """Both learn from the same `count` batches and end with the same numbers, generator and all."""
    for index, batch in enumerate(batches(replay, count)):
        mine, theirs = (learner.update(batch, global_step=index + 1) for learner in (compiled, eager))
        assert list(mine.metrics) == list(theirs.metrics)
        for name, value in theirs.metrics.items():
            torch.testing.assert_close(mine.metrics[name], value, **REPORTED, msg=lambda text, name=name: f"{name}: {text}")
        torch.testing.assert_close(compiled.last_priorities, eager.last_priorities, **REPORTED)
        torch.testing.assert_close(compiled.last_td_errors, eager.last_td_errors, **REPORTED)
        if "indices" in batch:  # so that the next batch's weights differ
            replay.update_priorities(batch["indices"], eager.last_priorities)
    mine, theirs = compiled.state_dict(), eager.state_dict()
    for part, tolerance in (("q_network", LEARNED), ("target_network", LEARNED), ("optimizer", CLOSE)):
        torch.testing.assert_close(mine[part], theirs[part], **tolerance)
    assert torch.equal(mine["generator"], theirs["generator"])


def interpreted(step: PureStep, inputs: Any) -> Compiled:
    """What is compiled, run operation by operation: the same graph without a compiler's minute."""
    graph = trace(step, inputs)
    return Compiled(lambda given: graph(*given), 0.0, False)


@pytest.mark.numeric
@pytest.mark.parametrize("algo", ROWS)
def test_traced_and_eager_agree_on_100_batches(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead_of_time, "compile_ahead_of_time", interpreted)
    (_, eager, replay, *_), (_, traced, _, *_) = parts_of(algo), parts_of(algo)
    before = {name: x.clone() for name, x in traced.q_network.state_dict().items()}
    compile_learner(traced, next(batches(replay, 1)))
    torch.testing.assert_close(traced.q_network.state_dict(), before, rtol=0, atol=0)  # tracing runs the step, but not on these
    assert torch.equal(traced.generator.get_state(), eager.generator.get_state()), "nor does it draw"
    agree(eager, traced, replay, 100)
    assert traced.gradient_step != traced.eager_step


COMPILED_ALWAYS = ("rainbow_dqn",)  # noise, dueling, double-Q, projection and weights in one; a compilation takes half a minute


@pytest.mark.parametrize("algo", [pytest.param(algo, marks=[] if algo in COMPILED_ALWAYS else pytest.mark.slow) for algo in ROWS])
def test_compiled_and_eager_agree_on_100_batches(algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if missing_toolchain():
        pytest.skip(str(missing_toolchain()))
    monkeypatch.setenv("RL_TRAINING_CACHE", str(tmp_path))
    (_, eager, replay, *_), (_, compiled, _, *_), (_, again, _, *_) = parts_of(algo), parts_of(algo), parts_of(algo)
    example = next(batches(replay, 1))
    assert not compile_learner(compiled, example).from_cache
    agree(eager, compiled, replay, 100)
    assert compile_learner(again, example).from_cache
    compiled.update(example, global_step=101)


class Products(nn.Module):
    """Products of every form, by weights that lie inside one flat tensor."""

    def forward(self, x: torch.Tensor, flat: torch.Tensor) -> list[torch.Tensor]:
        square, wide, narrow = flat[7 : 7 + 4096].view(64, 64), flat[4103 : 4103 + 256].view(64, 4), flat[5000:5128].view(2, 64)
        hidden = torch.relu(torch.addmm(flat[:64], x, wide.t()))
        return [hidden @ square.t(), hidden @ square.t().t(), hidden @ square, hidden @ narrow.t(), narrow @ square.t(), hidden.t() @ x]


def test_compiled_products_are_those_products(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What becomes of a copy and its strides is the compiler's doing: only code that it made can show it.
    if missing_toolchain():
        pytest.skip(str(missing_toolchain()))
    generator = torch.Generator().manual_seed(0)
    x, flat = torch.randn(16, 4, generator=generator), torch.randn(6000, generator=generator)
    graph = make_fx(Products(), decomposition_table=ahead_of_time.plain_products())(x, flat)
    monkeypatch.setenv("RL_TRAINING_CACHE", str(tmp_path))
    package = ahead_of_time._compile(graph, [x, flat], "products")
    made = torch._inductor.aoti_load_package(str(package)).loader.boxed_run([x, flat])
    for mine, theirs in zip(made, Products()(x, flat), strict=True):
        torch.testing.assert_close(mine, theirs, **CLOSE)

    # the same again where loading it ends a process: nothing is left in the cache for the next run to load
    def crash(package: str) -> None:
        raise RuntimeError("does not load")

    monkeypatch.setattr(ahead_of_time, "_require_loadable", crash)
    with pytest.raises(RuntimeError, match="does not load"):
        ahead_of_time._compile(graph, [x, flat], "crashing")
    assert list(package.parent.iterdir()) == [package]

    # what is damaged afterwards is thrown away, not loaded: native code with a flipped bit takes the process down
    assert ahead_of_time._cached("products") == package
    damaged = bytearray(package.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    package.write_bytes(bytes(damaged))
    assert ahead_of_time._cached("products") is None
    assert list(package.parent.iterdir()) == []


def test_a_batch_laid_out_otherwise_is_learned_from_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def counting(step: PureStep, inputs: Any) -> Compiled:
        graph = trace(step, inputs)

        def call(given: list[torch.Tensor]) -> Any:
            nonlocal calls
            calls += 1
            return graph(*given)

        return Compiled(call, 0.0, False)

    monkeypatch.setattr(ahead_of_time, "compile_ahead_of_time", counting)
    _, learner, replay, *_ = parts_of("dqn")
    batch = replay.sample(16)
    compile_learner(learner, batch)
    others = [
        replay.sample(8),
        {**batch, "obs": batch["obs"].contiguous()},  # the example's is a slice of packed rows
        {**batch, "weights": torch.ones(16)},
        {name: value for name, value in batch.items() if name != "discounts"},
        {**batch, "rewards": batch["rewards"].double().float()},
    ]
    for other in others:
        learner.update(other, global_step=1)
    assert calls == 0
    learner.update(batch, global_step=1)
    assert calls == 1


@pytest.mark.parametrize("algo", ["n_step_dqn", "rainbow_dqn"])  # uniform and prioritized
def test_packed_rows_are_learned_from_as_their_fields_are(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead_of_time, "compile_ahead_of_time", interpreted)
    (_, eager, one, *_), (_, compiled, two, *_) = parts_of(algo), parts_of(algo)
    beta = (lambda step: 0.4) if algo == "rainbow_dqn" else None
    said: list[str] = []
    plain = SampledUpdates(eager, one, 16, beta)
    packed = CompilingUpdates(SampledUpdates(compiled, two, 16, beta), lambda what, text: said.append(text))
    for step in range(1, 30):
        plain(step)
        packed(step)
    assert said == ["compiling…", "compiled in 0.0 s"]
    mine, theirs = compiled.state_dict(), eager.state_dict()
    for part, tolerance in (("q_network", LEARNED), ("target_network", LEARNED), ("optimizer", CLOSE)):
        torch.testing.assert_close(mine[part], theirs[part], **tolerance)
    given = two.sample(16)
    assert "obs" in given and "obs" not in two.sample(16, packed=True)
    compiled.update(given, global_step=30)  # a usual batch is learned from eagerly
    eager.update(given, global_step=30)
    torch.testing.assert_close(compiled.q_network.state_dict(), eager.q_network.state_dict(), **LEARNED)


def test_a_replay_that_does_not_pack_is_asked_for_usual_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead_of_time, "compile_ahead_of_time", interpreted)

    class Doubled(ReplayBuffer):
        def sample(self, batch_size: int) -> Any:  # type: ignore[override]  # as users write it
            batch = super().sample(batch_size)
            return {**batch, "rewards": batch["rewards"] * 2}

    (_, eager, made, *_), (_, compiled, _, *_) = parts_of("dqn"), parts_of("dqn")
    state = made.state_dict()
    pair = []
    for learner in (eager, compiled):
        replay = Doubled(made.capacity, (4,))
        replay.load_state_dict(state)
        pair.append(SampledUpdates(learner, replay, 16, None))
    plain, packed = pair[0], CompilingUpdates(pair[1], lambda what, text: None)
    for step in range(1, 10):
        plain(step)
        packed(step)
    torch.testing.assert_close(compiled.q_network.state_dict(), eager.q_network.state_dict(), **LEARNED)


def test_products_have_the_forms_that_compile_best() -> None:
    # Inputs of 4, layers of 64 and 64, 2 actions. Of 11 products seven have a side of 4 or fewer and become sums: both networks' first and
    # last ones, the last layer's two gradients, and the first layer's, as the tape writes it for a narrow input. Of the others the forward
    # ones read the square weight laid out as [in, out].
    network = MLPQNetwork(4, 2, (64, 64))
    learner = DQN(network, learning_rate=1e-3, gamma=0.99, target_update_interval=10)
    accelerate_learner(learner)
    batch = {"obs": torch.randn(16, 4), "next_obs": torch.randn(16, 4), "actions": torch.zeros(16, dtype=torch.int64)}
    batch |= {"rewards": torch.ones(16), "dones": torch.zeros(16)}
    step = PureStep(learner, batch)
    graph = trace(step, step.inputs(batch, 1e-3))
    nodes = list(graph.graph.nodes)
    assert not [node for node in nodes if node.target is torch.ops.aten.addmm.default]
    products = [node.args for node in nodes if node.target is torch.ops.aten.mm.default]
    assert len(products) == 11 - 7
    laid_out = [y for _, y in products if y.target is torch.ops.aten.as_strided.default]
    assert [y.args[1:] for y in laid_out] == [([64, 64], [64, 1])] * 2
    assert [y.args[0].target for y in laid_out] == [torch.ops.aten.clone.default] * 2


@pytest.mark.parametrize(("rows", "inner", "columns"), [(8, 4, 64), (8, 64, 2), (2, 8, 64), (8, 64, 64), (300, 64, 64), (3, 200, 3)])
def test_every_form_of_a_product_is_that_product(rows: int, inner: int, columns: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y, bias = (torch.randn(shape, generator=generator) for shape in ((rows, inner), (columns, inner), (columns,)))

    def products(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor) -> list[torch.Tensor]:
        return [torch.addmm(bias, x, y.t()), x @ y.t(), x @ y.t().contiguous(), x.t().contiguous().t() @ y.t()]

    graph = make_fx(products, decomposition_table=ahead_of_time.plain_products())(x, y, bias)
    for mine, theirs in zip(graph(x, y, bias), products(x, y, bias), strict=True):
        torch.testing.assert_close(mine, theirs, **CLOSE)


def test_parameters_that_the_swap_cannot_find_are_refused() -> None:
    # A graph that had them as constants would never see them change.
    _, learner, replay, *_ = parts_of("dqn")
    batch = replay.sample(16)
    hidden = learner.q_network.torso.layers[0].weight
    original = learner.q_network.forward
    learner.q_network.forward = lambda obs, *draws: original(obs, *draws) + hidden.sum()
    learner.gradient = learner.autograd
    step = PureStep(learner, batch)
    with pytest.raises(RuntimeError, match="cannot be compiled"):
        trace(step, step.inputs(batch, 1e-3))


def test_buffers_that_change_are_refused_and_put_back() -> None:
    _, learner, replay, *_ = parts_of("dqn")
    batch = replay.sample(16)
    learner.q_network.register_buffer("calls", torch.zeros(()))
    original = learner.q_network.forward

    def forward(obs: torch.Tensor, *draws: Any) -> torch.Tensor:
        learner.q_network.calls += 1
        return original(obs, *draws)

    learner.q_network.forward = forward
    learner.gradient = learner.autograd
    step = PureStep(learner, batch)
    counted = learner.q_network.calls.clone()
    with pytest.raises(RuntimeError, match="buffers change"):
        trace(step, step.inputs(batch, 1e-3))
    assert learner.q_network.calls == counted


def test_parameters_from_gives_a_network_other_numbers_and_takes_them_back() -> None:
    lstm = nn.Sequential(nn.LSTM(3, 4))
    flat = flatten_parameters(lstm)
    other = torch.zeros_like(flat)
    x = torch.randn(2, 1, 3)
    before = lstm(x)[0]
    with parameters_from(lstm, split_like(lstm, other)):
        assert torch.equal(lstm(x)[0], torch.zeros_like(before))  # weights of 0: o·tanh(c) with c = 0
    assert torch.equal(lstm(x)[0], before)
    assert [p.data_ptr() for p in lstm[0]._flat_weights] == [p.data_ptr() for p in lstm.parameters()]


# A run.


class Words(Callback):
    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def on_status(self, run: Any, what: str, text: str) -> None:
        self.heard.append((what, text))


def run_of(algo: str, output: Path, **changes: Any) -> Any:
    return config_of(
        algo, output_dir=str(output), compile=True, threads=1, checkpoint_interval=150, eval_interval=0, eval_episodes=1, **changes
    )


@pytest.mark.parametrize("algo", ["rainbow_dqn", pytest.param("r2d2", marks=pytest.mark.slow)])
def test_a_compiled_run_says_so_and_resumes_exactly(algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead_of_time, "compile_ahead_of_time", interpreted)
    words = Words()
    whole = train(run_of(algo, tmp_path / "whole"), callbacks=[words])
    assert words.heard == [("compilation", "compiling…"), ("compilation", "compiled in 0.0 s")]
    metadata = json.loads((whole.run_dir / "metadata.json").read_text())
    assert metadata["compile"] == "on (as configured)" and metadata["compilation"] == "compiled in 0.0 s"
    part = train(run_of(algo, tmp_path / "part", total_timesteps=150, schedule_timesteps=400))
    resumed = resume_training(part.run_dir, total_timesteps=400)
    for name in FILES:
        assert (resumed.checkpoint_path / name).read_bytes() == (whole.checkpoint_path / name).read_bytes(), name


def test_what_does_not_load_is_found_before_it_takes_the_run_down(tmp_path: Path) -> None:
    broken = tmp_path / "step.pt2"
    broken.write_bytes(b"no package")
    with pytest.raises(RuntimeError, match=f"torch {re.escape(torch.__version__)} does not load what it compiled: exit code 1 .*[a-z]"):
        ahead_of_time._require_loadable(str(broken))


def test_a_failing_compiler_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(step: PureStep, inputs: Any) -> Compiled:
        raise RuntimeError("no space\nleft")

    monkeypatch.setattr(ahead_of_time, "compile_ahead_of_time", fail)
    with pytest.warns(RuntimeWarning, match="could not compile, goes on without: no space left"):
        result = train(run_of("dqn", tmp_path))
    assert result.metrics["num_updates"] > 0
    assert "goes on without" in json.loads((result.run_dir / "metadata.json").read_text())["compilation"]
