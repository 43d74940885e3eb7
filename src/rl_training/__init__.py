"""Deep reinforcement learning in PyTorch: one engine, one row of data per algorithm, exact resume.

    from rl_training import DQN
    agent = DQN.from_config("dqn/cartpole")
    agent.learn()
    agent.evaluate(num_episodes=20)

`rl_training.DQN` is what you train with; `rl_training.algorithms`, `.models` and `.data` hold the parts.
Nothing heavy is loaded before it is used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # which type checkers take for true; whatever is imported here comes before Ctrl-C can be answered (__main__.py)

if TYPE_CHECKING:
    from typing import Any

    from rl_training.api import (
        BTR,
        C51DQN,
        DQN,
        DRQN,
        IQN,
        PPO,
        PQN,
        QRDQN,
        R2D2,
        Callback,
        CheckpointEvery,
        DoubleDQN,
        DuelingDQN,
        ManagedAlgorithm,
        MunchausenDQN,
        MunchausenIQN,
        NoisyDQN,
        NStepDQN,
        PrioritizedDQN,
        RainbowDQN,
        RecurrentPPO,
        RecurrentPQN,
        SaveBest,
        StopAtReturn,
        TrainConfig,
        register_algorithm,
        register_core,
        register_schedule,
        register_torso,
    )

__version__ = "0.1.0"

__all__ = [
    "BTR",
    "C51DQN",
    "DQN",
    "DRQN",
    "IQN",
    "PPO",
    "PQN",
    "QRDQN",
    "R2D2",
    "Callback",
    "CheckpointEvery",
    "DoubleDQN",
    "DuelingDQN",
    "ManagedAlgorithm",
    "MunchausenDQN",
    "MunchausenIQN",
    "NStepDQN",
    "NoisyDQN",
    "PrioritizedDQN",
    "RainbowDQN",
    "RecurrentPPO",
    "RecurrentPQN",
    "SaveBest",
    "StopAtReturn",
    "TrainConfig",
    "__version__",
    "register_algorithm",
    "register_core",
    "register_schedule",
    "register_torso",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from rl_training import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
