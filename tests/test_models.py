"""Networks: shapes, closed forms of every head, dueling and noisy layers."""

from __future__ import annotations

import copy
import inspect
import itertools
import math
from typing import Any

import gymnasium as gym
import pytest
import torch
from torch import Tensor, nn
from typing_extensions import get_protocol_members

from learners import batch_of, one_hot, parameters_of, set_outputs
from rl_training.algorithms import DQN
from rl_training.envs.spaces import describe_action_space
from rl_training.experiment.registry import algorithm_names, get_algorithm_spec
from rl_training.models import (
    NO_DRAWS,
    Categorical,
    CategoricalHead,
    Draws,
    GRUCore,
    ImplicitHead,
    LSTMActorCritic,
    LSTMQNetwork,
    MLPActorCritic,
    MLPC51QNetwork,
    MLPIQNetwork,
    MLPQNetwork,
    MLPQRQNetwork,
    MLPTorso,
    NoisyLinear,
    QNetwork,
    QuantileHead,
    RecurrentQNetwork,
    ScalarHead,
    as_network,
    build_q_network,
    epsilon_greedy,
    make_head,
)
from rl_training.models.flat import flatten_parameters
from rl_training.models.heads import Head
from rl_training.models.layers import Stream, factorised_noise
from rl_training.models.network import Network, _SequenceMethods, _TransitionMethods, is_recurrent_value_network, is_value_network
from rl_training.models.recurrent import recurrent_q_parts

pytestmark = pytest.mark.numeric

KINDS: tuple[Any, ...] = ("scalar", "categorical", "quantile", "implicit")
SMALL: dict[str, Any] = {
    "num_atoms": 7,
    "v_min": -3.0,
    "v_max": 3.0,
    "num_quantiles": 5,
    "num_target_quantiles": 6,
    "num_acting_quantiles": 4,
    "embedding_dim": 8,
}
CPU = torch.device("cpu")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network_of(kind: Any, hidden_sizes: tuple[int, ...] = (16, 16), **keywords: Any) -> QNetwork:
    torch.manual_seed(0)
    return build_q_network((4,), 3, hidden_sizes=hidden_sizes, head=kind, **{**SMALL, **keywords})


# Shapes and acting


@pytest.mark.parametrize("hidden_sizes", [(), (8,), (8, 16, 8)])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_head_with_every_option(kind: str, hidden_sizes: tuple[int, ...], dueling: bool, noisy: bool) -> None:
    network = network_of(kind, hidden_sizes, dueling=dueling, noisy=noisy)
    obs = torch.randn(10, 4, generator=generator())
    outputs = {"scalar": (), "categorical": (7,), "quantile": (5,), "implicit": (4,)}[kind]
    assert network(obs).shape == (10, 3, *outputs)
    assert network.q_values(obs).shape == (10, 3)
    draws = network.draw(generator(), (10,), "acting")
    assert network.q_values(obs, draws).shape == (10, 3)
    assert torch.equal(network.act(obs), network.q_values(obs).argmax(-1))


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (MLPQNetwork(4, 2, (8, 8)), (2,)),
        (MLPQRQNetwork(4, 2, 9, (8, 8)), (2, 9)),
        (MLPQRQNetwork(4, 2, 1, ()), (2, 1)),  # one quantile still is an axis
        (MLPC51QNetwork(4, 2, 11, -1.0, 1.0, (8, 8)), (2, 11)),
        (MLPIQNetwork(4, 2, (8, 8), num_acting_quantiles=6), (2, 6)),
    ],
)
def test_the_named_networks(network: QNetwork, shape: tuple[int, ...]) -> None:
    assert network(torch.zeros(3, 4)).shape == (3, *shape)
    assert network.act(torch.zeros(3, 4), epsilon=1.0, generator=generator()).shape == (3,)
    assert network.act([[0.0] * 4]).shape == (1,)


def test_integer_observations_become_floats() -> None:
    network = MLPQNetwork(4, 2, (8,))
    obs = torch.tensor([[0, 1, 2, 255]], dtype=torch.uint8)
    torch.testing.assert_close(network(obs), network(obs.float()))


def test_epsilon_greedy_draws_for_each_row_on_its_own() -> None:
    q_values = torch.tensor([[0.0, 1.0, 0.0]]).repeat(30_000, 1)
    actions = epsilon_greedy(q_values, 0.3, generator())
    # Greedy with .7 + .3/3 = .8, each other .1; 30,000 draws: σ ≤ .0023
    shares = torch.bincount(actions, minlength=3) / len(actions)
    torch.testing.assert_close(shares, torch.tensor([0.1, 0.8, 0.1]), atol=0.01, rtol=0)
    assert (epsilon_greedy(q_values[:50], 0.0) == 1).all()
    # A rate per row: the first never explores, the second always does.
    rates = torch.tensor([0.0, 1.0]).repeat(500)
    actions = epsilon_greedy(q_values[:1000], rates, generator())
    assert (actions[::2] == 1).all() and (actions[1::2] != 1).any()


# What a head's outputs mean


def test_categorical_q_is_the_mean_of_the_softmax() -> None:
    # Atoms −1, 0, 1. Logits log(1, 2, 5) → p = (1, 2, 5)/8, mean (5 − 1)/8 = .5; equal logits → 0
    network = MLPC51QNetwork(1, 2, 3, -1.0, 1.0, ())
    set_outputs(network, [[[math.log(1), math.log(2), math.log(5)], [7.0, 7.0, 7.0]]])
    torch.testing.assert_close(network.q_values(torch.ones(1, 1)), torch.tensor([[0.5, 0.0]]))


def test_quantile_q_is_the_mean_of_the_quantiles() -> None:
    network = MLPQRQNetwork(1, 2, 3, ())
    set_outputs(network, [[[1.0, 2.0, 9.0], [5.0, 5.0, 5.0]]])
    torch.testing.assert_close(network.q_values(torch.ones(1, 1)), torch.tensor([[4.0, 5.0]]))
    assert network.act(torch.ones(1, 1)).tolist() == [1]


def test_the_cosine_embedding_is_equation_4() -> None:
    """Z_τ = f(ψ ⊙ φ(τ)) written out as loops."""
    torch.manual_seed(0)
    head = ImplicitHead(3, 2, embedding_dim=4)
    psi, taus = torch.randn(5, 3), torch.rand(5, 7)
    out = head(psi, Draws(taus=taus))
    w, b = head.embedding.weight, head.embedding.bias  # [F, n], [F]
    layer = head.advantage.layers[0]
    for row in range(5):
        for k in range(7):
            cosines = torch.tensor([math.cos(math.pi * i * float(taus[row, k])) for i in range(4)])
            phi = torch.relu(w @ cosines + b)
            torch.testing.assert_close(out[row, :, k], layer.weight @ (psi[row] * phi) + layer.bias)


def test_an_implicit_head_without_draws_acts_on_midpoints() -> None:
    torch.manual_seed(0)
    head = ImplicitHead(3, 2, num_acting_quantiles=4)
    psi = torch.randn(5, 3)
    midpoints = torch.tensor([1 / 8, 3 / 8, 5 / 8, 7 / 8]).expand(5, 4)
    torch.testing.assert_close(head(psi), head(psi, Draws(taus=midpoints)))
    assert torch.equal(head(psi), head(psi))


def test_each_role_draws_its_own_number_of_levels() -> None:
    network = network_of("implicit")
    shapes = {role: network.draw(generator(), (10,), role).taus.shape for role in ("online", "target", "acting")}
    assert shapes == {"online": (1, 5), "target": (1, 6), "acting": (1, 4)}  # one draw for the batch
    assert network.draw(generator(), (3, 10), "target").taus.shape == (1, 1, 6)


def test_levels_are_one_from_each_stratum_and_uniform_together() -> None:
    head, g = ImplicitHead(3, 2, num_quantiles=5), generator()
    taus = torch.stack([head.draw_taus((7,), "online", g, CPU)[0] for _ in range(4000)])  # [4000, 5]
    assert torch.equal((taus * 5).floor(), torch.arange(5.0).expand(4000, 5))
    # Within its stratum each is uniform: mean (i + ½)/5, σ of the mean .2/√12/√4000 ≈ .0009
    torch.testing.assert_close(taus.mean(0), (torch.arange(5) + 0.5) / 5, atol=0.005, rtol=0)
    assert len(taus.unique()) > 19_000  # anew each time


def test_independent_levels_are_uniform_each_on_its_own() -> None:
    """As in the paper: a row per sample, and no level says anything about another."""
    head, g = ImplicitHead(3, 2, num_target_quantiles=2, quantile_levels="independent"), generator()
    taus = head.draw_taus((100, 200), "target", g, CPU)
    assert taus.shape == (100, 200, 2) and head.draw_taus((7,), "acting", g, CPU).shape == (7, 32)
    first, second = taus[..., 0].flatten(), taus[..., 1].flatten()
    # 20,000 draws: each decile holds .1, σ = √(.1·.9/20,000) ≈ .002; a correlation has σ ≈ 1/√20,000 ≈ .007
    torch.testing.assert_close(torch.histc(first, 10, 0, 1) / len(first), torch.full((10,), 0.1), atol=0.012, rtol=0)
    assert float(torch.corrcoef(torch.stack([first, second]))[0, 1]) == pytest.approx(0, abs=0.04)
    assert torch.equal(head.draw_taus((7,), "online", generator(3), CPU), head.draw_taus((7,), "online", generator(3), CPU))
    with pytest.raises(ValueError, match="quantile_levels must be stratified or independent, got 'indepndent'"):
        ImplicitHead(3, 2, quantile_levels="indepndent")  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize(
    ("algo", "spaces"),
    [("iqn", {"obs_shape": [4]}), ("iqn", {"obs_shape": [4, 10, 10], "image": {"high": 1}}), ("r2d2", {"obs_shape": [4]})],
    ids=["vector", "image", "recurrent"],
)
def test_how_levels_are_drawn_reaches_every_network(algo: str, spaces: dict[str, Any]) -> None:
    spec = get_algorithm_spec(algo)
    given = {"head": "implicit"} if algo == "r2d2" else {"torso": "minatar"} if "image" in spaces else {}
    for levels, rows in (("stratified", 1), ("independent", 5)):
        network: Any = spec.build_network(spec.parse({**given, "quantile_levels": levels}), {**spaces, "num_actions": 2})
        assert network.draw(generator(), (5,), "online").taus.shape[:-1] == (rows,)


def test_one_draw_for_all_is_the_same_row_for_each() -> None:
    torch.manual_seed(0)
    head, features = ImplicitHead(3, 2, hidden_sizes=(8,)), torch.randn(5, 3)
    taus = head.draw_taus((5,), "online", generator(), CPU)
    torch.testing.assert_close(head(features, Draws(taus=taus)), head(features, Draws(taus=taus.expand(5, -1))))


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_heads_take_sequences_as_they_take_rows(kind: str, dueling: bool, noisy: bool) -> None:
    """[T, B, F] with the same draws equals [T·B, F]."""
    torch.manual_seed(0)
    head = make_head(kind, 6, 3, hidden_sizes=(8,), dueling=dueling, noisy=noisy, **SMALL)
    features = torch.randn(4, 5, 6)
    taus = head.draw_taus((4, 5), "online", generator(), CPU)
    noise = factorised_noise((head.noise_dim,), generator(), CPU) if noisy else None
    flat = head(features.reshape(20, 6), Draws(noise, None if taus is None else taus[0]))
    sequence = head(features, Draws(noise, taus))
    torch.testing.assert_close(sequence.flatten(0, 1), flat)
    torch.testing.assert_close(head.q_values(sequence).flatten(0, 1), head.q_values(flat))


@pytest.mark.parametrize("kind", KINDS)
def test_a_recurrent_network_takes_every_head(kind: Any) -> None:
    network = RecurrentQNetwork(
        *recurrent_q_parts(
            (4,),
            3,
            features_dim=8,
            encoder_hidden_sizes=(8,),
            head_hidden_sizes=(8,),
            hidden_size=8,
            num_layers=1,
            head=kind,
            dueling=True,
            noisy=True,
            **SMALL,
        )
    )
    obs = torch.randn(6, 2, 4)
    draws = network.draw(generator(), (6, 2), "online")
    out, _ = network.unroll(obs, network.initial_state(2), draws=draws)
    assert network.head.q_values(out).shape == (6, 2, 3)
    acting = network.draw(generator(), (2,), "acting")
    q_values, _ = network.step(obs[0], network.initial_state(2), torch.ones(2), acting)
    assert q_values.shape == (2, 3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: CategoricalHead(4, 2, v_min=1.0, v_max=1.0),
        lambda: CategoricalHead(4, 2, num_atoms=1),
        lambda: QuantileHead(4, 2, num_quantiles=0),
        lambda: ImplicitHead(4, 2, num_target_quantiles=0),
        lambda: ImplicitHead(4, 2, embedding_dim=0),
    ],
)
def test_heads_that_mean_nothing_are_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="got"):
        make()


# Dueling


def test_dueling_adds_value_and_centred_advantage() -> None:
    # V = 10, A = (1, 2, 6), mean 3: Q = (8, 9, 13)
    network = MLPQNetwork(1, 3, (), dueling=True)
    head = network.head
    with torch.no_grad():
        head.value.layers[0].weight.fill_(10.0)
        head.advantage.layers[0].weight.copy_(torch.tensor([[1.0], [2.0], [6.0]]))
        head.value.layers[0].bias.zero_(), head.advantage.layers[0].bias.zero_()
    torch.testing.assert_close(network(torch.ones(1, 1)), torch.tensor([[8.0, 9.0, 13.0]]))


def test_dueling_aggregates_each_atom_before_the_softmax() -> None:
    # Two actions, two atoms 0 and 1. V = (1, 2); A(a0) = (0, 4), A(a1) = (2, 0); mean over actions, per atom: (1, 2).
    # Logits: a0 = (1 + 0 − 1, 2 + 4 − 2) = (0, 4); a1 = (1 + 2 − 1, 2 + 0 − 2) = (2, 0). Q = p(1) = σ(4 − 0), σ(0 − 2).
    network = MLPC51QNetwork(1, 2, 2, 0.0, 1.0, (), dueling=True)
    head = network.head
    with torch.no_grad():
        head.value.layers[0].weight.copy_(torch.tensor([[1.0], [2.0]]))
        head.advantage.layers[0].weight.copy_(torch.tensor([[0.0], [4.0], [2.0], [0.0]]))
        head.value.layers[0].bias.zero_(), head.advantage.layers[0].bias.zero_()
    obs = torch.ones(1, 1)
    torch.testing.assert_close(network(obs), torch.tensor([[[0.0, 4.0], [2.0, 0.0]]]))
    expected = torch.tensor([[1 / (1 + math.exp(-4)), 1 / (1 + math.exp(2))]])
    torch.testing.assert_close(network.q_values(obs), expected)


# Noise


def test_the_noisy_layer_is_the_noisy_weight_matrix() -> None:
    """ε_out ⊙ (σ_w (ε_in ⊙ x) + σ_b) against the matrix of arXiv:1706.10295, eq. 9, built out."""
    torch.manual_seed(0)
    layer = NoisyLinear(5, 3)
    nn.init.normal_(layer.weight_sigma), nn.init.normal_(layer.bias_sigma)
    x, eps_in, eps_out = torch.randn(7, 5), torch.randn(5), torch.randn(3)
    weight = layer.weight + layer.weight_sigma * torch.outer(eps_out, eps_in)
    bias = layer.bias + layer.bias_sigma * eps_out
    torch.testing.assert_close(layer(x, eps_in, eps_out), x @ weight.T + bias)
    # A draw per row is each row on its own.
    many_in, many_out = torch.randn(7, 5), torch.randn(7, 3)
    rows = torch.stack([layer(x[i : i + 1], many_in[i], many_out[i])[0] for i in range(7)])
    torch.testing.assert_close(layer(x, many_in, many_out), rows)


@pytest.mark.parametrize("hidden_sizes", [(), (6,), (6, 5)])
def test_one_draw_for_the_batch_is_that_draw_in_every_row(hidden_sizes: tuple[int, ...]) -> None:
    """With one draw a stream builds its noisy weights and biases once; with a draw per row it perturbs layer by layer. Gradients too."""
    torch.manual_seed(0)
    stream = Stream(4, hidden_sizes, 3, noisy_sigma=0.5)
    for parameter in stream.parameters():
        nn.init.normal_(parameter)
    x, noise = torch.randn(5, 4), torch.randn(stream.noise_dim)
    outs = [stream(x, noise), stream(x, noise.expand(5, -1))]
    torch.testing.assert_close(outs[0], outs[1], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(outs[0], stream(x), atol=1e-2)
    wrt, weights = list(stream.parameters()), torch.randn(5, 3)
    for one, many in zip(*[torch.autograd.grad((out * weights).sum(), wrt) for out in outs], strict=True):
        torch.testing.assert_close(one, many, rtol=1e-4, atol=1e-3)


def test_noisy_layers_start_as_the_paper_says() -> None:
    layer = NoisyLinear(100, 7, sigma=0.4)
    assert torch.equal(layer.weight_sigma, torch.full((7, 100), 0.04))  # σ₀/√p
    assert torch.equal(layer.bias_sigma, torch.full((7,), 0.04))
    assert float(layer.weight.detach().abs().max()) <= 0.1


def test_factorised_noise_is_the_signed_root_of_a_normal() -> None:
    z = torch.randn(1000, generator=generator(3))
    torch.testing.assert_close(factorised_noise((1000,), generator(3), CPU), z.sign() * z.abs().sqrt())


@pytest.mark.parametrize("kind", KINDS)
def test_noise_with_sigma_0_is_the_plain_network(kind: Any) -> None:
    noisy, plain = network_of(kind, noisy=True), network_of(kind)
    plain.load_state_dict({name: value for name, value in noisy.state_dict().items() if "sigma" not in name})
    with torch.no_grad():
        for name, parameter in noisy.named_parameters():
            if "sigma" in name:
                parameter.zero_()
    obs = torch.randn(6, 4)
    draws = noisy.draw(generator(), (6,), "acting")
    torch.testing.assert_close(noisy(obs, draws), plain(obs, Draws(taus=draws.taus)))


@pytest.mark.parametrize("kind", KINDS)
def test_no_draws_is_the_mean_and_acting_draws_differ_per_row(kind: Any) -> None:
    network = network_of(kind, noisy=True)
    obs = torch.randn(1, 4).expand(6, 4)
    mean = network.q_values(obs, NO_DRAWS)
    torch.testing.assert_close(mean, mean[:1].expand(6, 3))
    noise = network.draw(generator(), (6,), "acting").noise
    assert noise.shape == (6, network.head.noise_dim)
    noisy = network.q_values(obs, Draws(noise)).detach()
    assert float(torch.pdist(noisy).min()) > 1e-3
    assert network.draw(generator(), (6,), "online").noise.shape == (network.head.noise_dim,)


def test_every_layer_and_stream_has_noise_of_its_own() -> None:
    # Streams of (4 → 8 → out): noise 4 + 8 and 8 + out; advantage out = 3 · 7, value out = 7
    head = make_head("categorical", 4, 3, hidden_sizes=(8,), dueling=True, noisy=True, num_atoms=7)
    assert head.noise_dim == (4 + 8 + 8 + 21) + (4 + 8 + 8 + 7)


def test_a_plain_network_draws_nothing() -> None:
    state = generator().get_state()
    g = generator()
    assert network_of("quantile").draw(g, (5,), "online") is NO_DRAWS
    assert torch.equal(state, g.get_state())


# Mechanics


@pytest.mark.parametrize("kind", KINDS)
def test_flat_parameters_are_the_parameters(kind: Any) -> None:
    network = network_of(kind, dueling=True, noisy=True)
    names, before = list(network.state_dict()), parameters_of(network)
    obs = torch.randn(3, 4)
    out = network(obs).detach()
    flat = flatten_parameters(network)
    assert torch.equal(flat, before) and list(network.state_dict()) == names
    torch.testing.assert_close(network(obs), out)
    flat.zero_()
    assert float(network(obs).detach().abs().sum()) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_buffers_that_settings_determine_are_not_saved(kind: Any) -> None:
    network = network_of(kind)
    assert set(network.state_dict()) == {name for name, _ in network.named_parameters()}


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("activate_last", [False, True])
@pytest.mark.parametrize("depth", [1, 3])
def test_the_hand_written_stack_has_autograd_s_gradients(activation: Any, activate_last: bool, depth: int) -> None:
    from rl_training.models.mlp_layers import ACTIVATIONS, layer_parameters, linear_stack
    from rl_training.speed.tapes import taped_stack

    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(depth))
    x = torch.randn(2, 5, 6, requires_grad=True)

    def plain(x: Tensor) -> Tensor:
        for i, layer in enumerate(layers):
            x = layer(x)
            if activate_last or i + 1 < depth:
                x = getattr(torch, activation)(x)
        return x

    wrt = [x, *layers.parameters()]
    options: Any = {"activation": ACTIVATIONS[activation], "activate_last": activate_last}
    outs = [plain(x), linear_stack(x, layer_parameters(layers), **options)]
    torch.testing.assert_close(outs[1], outs[0])
    weights = torch.randn(2, 5, 6)
    gradients = [torch.autograd.grad((out * weights).sum(), wrt) for out in outs]
    for mine, reference in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, reference)
    flat = x.detach().reshape(10, 6)
    with torch.no_grad():
        out, pullback = taped_stack(flat, layer_parameters(layers), **options)
        _, spared = taped_stack(flat, layer_parameters(layers), **options, input_gradient=False)
        (grads, grad_x), (same, nothing) = pullback(weights.reshape(10, 6)), spared(weights.reshape(10, 6))
    torch.testing.assert_close(out, outs[0].detach().reshape(10, 6))
    torch.testing.assert_close([grad_x.view(2, 5, 6), *grads], list(gradients[0]))
    assert nothing.numel() == 0 and all(torch.equal(a, b) for a, b in zip(same, grads, strict=True))


@pytest.mark.parametrize("name", ["relu", "tanh", "elu", "gelu", "silu"])
def test_a_layer_norm_stands_between_each_layer_and_its_activation(name: Any) -> None:
    """Torso and head of a network with `layer_norm` say what torch's modules in PQN's order say, with the same parameters."""
    torch.manual_seed(0)
    network = MLPQNetwork(4, 2, (8, 6), activation=name, layer_norm=True)
    for parameter in network.parameters():
        nn.init.normal_(parameter)
    activation = {"relu": nn.ReLU, "tanh": nn.Tanh, "elu": nn.ELU, "gelu": nn.GELU, "silu": nn.SiLU}[name]
    plain = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), activation(), nn.Linear(8, 6), nn.LayerNorm(6), activation(), nn.Linear(6, 2))
    torso, head = network.torso, network.head.advantage
    ours = (torso.layers[0], torso.norm_layers[0], head.layers[0], head.norm_layers[0], head.layers[1])
    for mine, theirs in zip(ours, (plain[0], plain[1], plain[3], plain[4], plain[6]), strict=True):
        theirs.load_state_dict(mine.state_dict())
    obs = torch.randn(7, 4)
    torch.testing.assert_close(network(obs), plain(obs))


@pytest.mark.parametrize("name", ["relu", "elu"])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_a_recurrent_networks_encoder_and_head_have_them_too(name: Any, layer_norm: bool) -> None:
    options: Any = {"features_dim": 5, "encoder_hidden_sizes": (6,), "head_hidden_sizes": (7,), "hidden_size": 8, "num_layers": 1}
    encoder, _, head = recurrent_q_parts((3,), 2, **options, activation=name, layer_norm=layer_norm)
    activation = {"relu": torch.relu, "elu": nn.functional.elu}[name]
    assert isinstance(encoder, MLPTorso) and isinstance(head, ScalarHead)
    assert encoder.activation is head.advantage.activation is activation
    assert [norm.normalized_shape for norm in encoder.norm_layers] == [(6,), (5,)] * layer_norm
    assert [norm.normalized_shape for norm in head.advantage.norm_layers] == [(7,)] * layer_norm


def test_a_copy_is_independent() -> None:
    network = network_of("implicit", noisy=True)
    other = copy.deepcopy(network)
    flatten_parameters(other).zero_()
    assert float(parameters_of(network).abs().sum()) > 0
    assert float(other(torch.randn(2, 4)).detach().abs().sum()) == 0


def test_a_stream_without_hidden_layers_is_linear() -> None:
    stream = Stream(3, (), 2)
    assert len(stream.layers) == 1
    torch.testing.assert_close(stream(one_hot(1, size=3)), (stream.layers[0].weight[:, 1] + stream.layers[0].bias)[None])


# A plain module, and what every network states


@pytest.mark.parametrize("double_q", [False, True])
def test_a_plain_module_learns_as_the_network_with_the_same_layers(double_q: bool) -> None:
    network = MLPQNetwork(4, 2, (8,))
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with torch.no_grad():
        for mine, given in zip(module.parameters(), network.parameters(), strict=True):
            mine.copy_(given)
    learners = [DQN(net, 1e-2, 0.9, 2, double_q=double_q) for net in (module, network)]
    for step in range(1, 4):
        for learner in learners:
            learner.update(batch_of(seed=step), global_step=step)
    # Three steps of Adam, each at most 0.01 a weight; the same products in another order of addition.
    torch.testing.assert_close(parameters_of(module), parameters_of(network), atol=1e-5, rtol=0)
    assert not torch.equal(parameters_of(module), parameters_of(MLPQNetwork(4, 2, (8,))))


def test_a_network_is_taken_as_it_is_and_what_is_none_is_refused() -> None:
    network = MLPQNetwork(4, 2, (8,))
    assert as_network(network) is network
    wrapped = as_network(nn.Linear(4, 2))
    assert wrapped.q_values(torch.zeros(3, 4, dtype=torch.uint8)).shape == (3, 2)
    with pytest.raises(TypeError, match="a network is a torch module, got function"):
        as_network(lambda obs: obs)  # type: ignore[call-overload]


def test_a_network_states_its_facts() -> None:
    assert MLPQNetwork(4, 2, (8,)).facts == (4 * 8 + 8 + 8 * 2 + 2, False, False)
    lstm = LSTMQNetwork((4,), 2, 8, (), (), 6, 1)
    # encoder 4·8 + 8, LSTM 4·6·(8 + 6 + 2) (four gates, two biases), head 6·2 + 2
    assert lstm.facts == (40 + 384 + 14, True, False)
    assert LSTMActorCritic((4,), Categorical(2), 8, (), (), 6, 1).facts.recurrent
    assert MLPActorCritic(4, Categorical(2), (8,)).facts == (2 * (4 * 8 + 8) + 8 * 2 + 2 + 8 + 1, False, False)
    image = as_network(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2, 2)))
    assert image.facts == (2 * 9 + 2 + 6, False, True)


def test_flat_parameters_hold_convolutions_cores_and_parametrised_layers() -> None:
    torch.manual_seed(0)
    module = nn.ModuleDict(
        {
            "conv": nn.Conv2d(2, 3, 3),
            "norm": nn.BatchNorm1d(4),
            "gru": GRUCore(4, 5),
            "spectral": nn.utils.parametrizations.spectral_norm(nn.Linear(5, 2)),
        }
    )
    saved = {name: value.clone() for name, value in module.state_dict().items()}
    image, sequence = torch.randn(2, 2, 4, 4), torch.randn(3, 2, 4)
    module.eval()  # a spectral norm's vectors move in training
    conv, core, spectral = module["conv"], module["gru"], module["spectral"]
    before = [conv(image), core(sequence, core.initial_state(2))[0], spectral(torch.ones(5))]
    flat = flatten_parameters(module)
    assert flat.numel() == sum(p.numel() for p in module.parameters()) and "norm.running_mean" in saved
    assert all(torch.equal(value, saved[name]) for name, value in module.state_dict().items())
    after = [conv(image), core(sequence, core.initial_state(2))[0], spectral(torch.ones(5))]
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
    flat.mul_(2)  # every layer computes with the tensor it was moved into
    torch.testing.assert_close(conv(image), 2 * before[0])
    assert not torch.allclose(core(sequence, core.initial_state(2))[0], before[1])
    weight = spectral.parametrizations.weight.original
    torch.testing.assert_close(weight, 2 * saved["spectral.parametrizations.weight.original"])


@pytest.mark.parametrize("algo", algorithm_names())
def test_what_makes_a_network_one_is_found_without_asking_it(algo: str) -> None:
    """As `isinstance` does with a protocol from Python 3.12 on: an attribute that only `nn.Module.__getattr__` finds, a submodule, is not
    there for it."""
    spec = get_algorithm_spec(algo)
    spaces = {"obs_shape": [3], "obs_dtype": "float32", "num_actions": 2, "action": describe_action_space(gym.spaces.Discrete(2))}
    network = spec.build_network(spec.parse({}), spaces)
    recurrent = network.facts.recurrent
    asked: list[type] = [Network]
    if isinstance(getattr(network, "head", None), Head):
        asked.append(_SequenceMethods if recurrent else _TransitionMethods)
        assert (is_recurrent_value_network if recurrent else is_value_network)(network)
        assert not (is_value_network if recurrent else is_recurrent_value_network)(network)
    for name in itertools.chain.from_iterable(get_protocol_members(protocol) for protocol in asked):
        inspect.getattr_static(network, name)  # raises AttributeError where there is none


class SquaredFeatures(MLPTorso):
    def forward(self, obs: Tensor) -> Tensor:
        return super().forward(obs) ** 2


class DoubledOutputs(ScalarHead):
    def forward(self, features: Tensor, *draws: Any) -> Tensor:
        return 2 * super().forward(features, *draws)


@pytest.mark.parametrize(("torso", "head"), [(SquaredFeatures, ScalarHead), (MLPTorso, DoubledOutputs)])
def test_a_network_runs_the_passes_of_a_users_own_parts(torso: type[MLPTorso], head: type[ScalarHead]) -> None:
    network, obs = QNetwork(torso(4, (8,)), head(8, 2)), torch.randn(3, 4)
    torch.testing.assert_close(network(obs), network.head(network.torso(obs)), rtol=0, atol=0)
    assert not torch.equal(network(obs), QNetwork(MLPTorso(4, (8,)), ScalarHead(8, 2))(obs))
