"""Updates per second of R2D2: sample prioritized sequences, loss, gradient, Adam, priorities. No environment, no compilation.

Beside it the least that such an update can be: forward, target forward, backward and Adam of the same network, without a loss worth the
name, and the same with the LSTM stepped in a loop that resets the state where an episode starts, as recurrent code commonly does: through
`nn.LSTM` a step at a time, or through its cell. All on a batch of 32 sequences of 40 steps, hidden size 128.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import arguments, compare, prepare, repeat_for, save

BATCH, TIME, HIDDEN, FEATURES, OBS_DIM, ACTIONS = 32, 40, 128, 64, 4, 2
CHUNKS = 500
Work = Callable[[int], None]
Unroll = Callable[[Any, Tensor, Tensor], Tensor]


def network() -> Any:
    from rl_training.models import LSTMQNetwork

    torch.manual_seed(0)
    return LSTMQNetwork((OBS_DIM,), ACTIONS, FEATURES, (), (), HIDDEN, 1)


def ours(**options: Any) -> Work:
    """The whole update, replay included."""
    from rl_training.algorithms import R2D2
    from rl_training.data import PrioritizedRecurrentReplayBuffer

    length = TIME + options.get("burn_in", 0)
    replay = PrioritizedRecurrentReplayBuffer(CHUNKS * length, 1, (OBS_DIM,), length, HIDDEN, burn_in=options.get("burn_in", 0))
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn(CHUNKS * length + 1, OBS_DIM, generator=generator)
    state = (torch.zeros(1, HIDDEN), torch.zeros(1, HIDDEN))
    for t in range(CHUNKS * length):
        step = {"obs": obs[t], "next_obs": obs[t + 1], "actions": t % ACTIONS, "rewards": 1.0, "dones": False}
        replay.add(env_index=0, **step, episode_start=t == 0, initial_state=state)
    learner = R2D2(network(), 1e-3, 0.99, 1_000, n_step=5, max_grad_norm=10.0, **options)
    step = 0

    def work(n: int) -> None:
        nonlocal step
        for _ in range(n):
            step += 1
            batch = replay.sample(BATCH, beta=0.6)
            learner.update(batch, global_step=step)
            replay.update_priorities(batch["indices"], learner.last_priorities)

    return work


def one_call(net: Any, obs: Tensor, starts: Tensor) -> Tensor:
    out: Tensor = net(obs)
    return out


def stepped_lstm(net: Any, obs: Tensor, starts: Tensor) -> Tensor:
    """As CleanRL's recurrent PPO: `nn.LSTM` on one step, the state masked before each."""
    features = net.encoder(obs)
    h, c = net.initial_state(BATCH)
    cores = []
    for x, start in zip(features, starts, strict=True):
        keep = (1.0 - start)[None, :, None]
        core, (h, c) = net.core.lstm(x[None], (keep * h, keep * c))
        cores.append(core)
    out: Tensor = net.head(torch.cat(cores))
    return out


def stepped_cell(net: Any, obs: Tensor, starts: Tensor) -> Tensor:
    """The same through the LSTM's cell, which has less to do around each step."""
    features = net.encoder(obs)
    weights = (net.core.lstm.weight_ih_l0, net.core.lstm.weight_hh_l0, net.core.lstm.bias_ih_l0, net.core.lstm.bias_hh_l0)
    h, c = (part[0] for part in net.initial_state(BATCH))
    cores = []
    for x, start in zip(features, starts, strict=True):
        keep = (1.0 - start)[:, None]
        h, c = torch.lstm_cell(x, (keep * h, keep * c), *weights)
        cores.append(h)
    out: Tensor = net.head(torch.stack(cores))
    return out


def bare(unroll: Unroll, burn_in: int = 0) -> Work:
    """Forward, target forward, backward, Adam; with `burn_in` more steps of both networks without gradient."""
    online = network()
    target = copy.deepcopy(online).requires_grad_(False)
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-3, fused=True)
    obs, starts, prefix = torch.randn(TIME, BATCH, OBS_DIM), torch.zeros(TIME, BATCH), torch.randn(burn_in, BATCH, OBS_DIM)

    def work(n: int) -> None:
        for _ in range(n):
            with torch.no_grad():
                if burn_in:
                    unroll(online, prefix, starts), unroll(target, prefix, starts)
                value = unroll(target, obs, starts)
            loss = (unroll(online, obs, starts) - value).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return work


CASES: dict[str, dict[str, Callable[[], Work]]] = {
    "against the bare network": {"ours": ours, "bare, one nn.LSTM call": lambda: bare(one_call)},
    "against a masked loop": {
        "ours": ours,
        "bare, nn.LSTM step by step": lambda: bare(stepped_lstm),
        "bare, LSTM cell step by step": lambda: bare(stepped_cell),
    },
    "with a burn-in of 20 more steps": {"ours": lambda: ours(burn_in=20), "bare, nn.LSTM calls": lambda: bare(one_call, burn_in=20)},
}


def main() -> None:
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement (default: %(default)s)")
    options = parser.parse_args()
    prepare(options)
    results = []
    for case, makers in CASES.items():
        if options.only not in case:
            continue
        contenders = {name: repeat_for(make(), options.seconds) for name, make in makers.items()}
        title = f"R2D2 {case}, {BATCH} sequences of {TIME} steps, LSTM {HIDDEN}"
        results.append(compare(title, "updates/s", contenders, rounds=options.rounds))
    save(options.json, options, results)


if __name__ == "__main__":
    main()
