"""The keywords of a managed class, from the config's and its row's settings: for `help()`, for completion, and for who writes another
package's words."""

from __future__ import annotations

import inspect
import textwrap
import types
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, row_values
from rl_training.experiment.explain import did_you_mean
from rl_training.experiment.meanings import meaning
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.schedules import Schedule

POSITIONAL = ("algo", "env_id")  # what the class itself and its first argument say
REQUIRED: Any = inspect.Parameter.empty


class Keyword(NamedTuple):
    """One key. `type` is as Python writes it."""

    name: str
    type: str
    default: Any
    meaning: str
    of_row: bool


def keywords_of(row: str) -> Iterator[Keyword]:
    """Every key that a class of this row takes: the row's own first."""
    spec, unsaid = get_algorithm_spec(row), row_values(row, "")
    for key, field in spec.settings.model_fields.items():
        default = spec.fixed.get(key, spec.defaults.get(key, field.get_default(call_default_factory=True)))
        always = " What the row is." if key in spec.fixed else ""
        needs = "".join(f" Needs {need}." for need in spec.settings.needs(key))
        yield Keyword(key, type_text(field.annotation), default, f"{meaning(key, field)}{needs}{always}".strip(), True)
    for key, field in TrainConfig.model_fields.items():
        if key not in POSITIONAL:
            default = unsaid[key] if field.is_required() else field.get_default(call_default_factory=True)
            yield Keyword(key, type_text(field.annotation), default, meaning(key, field), False)


def type_text(annotation: Any) -> str:
    """What may be given for a key, shorter and wider than what it is parsed into: a list serves as a tuple, text as a path."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is None or annotation is type(None):
        return "None"
    if annotation is Any:
        return "Any"
    if annotation is Path:
        return "str | Path"
    if annotation is Schedule:
        return "Mapping[str, Any] | Callable[[int], float]"
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(type_text(each) for each in arguments))
    if origin is tuple:
        return f"Sequence[{type_text(arguments[0])}]"
    if origin is dict:
        return "Mapping[str, Any]"
    if hasattr(annotation, "__metadata__"):  # Annotated
        return type_text(annotation.__origin__)
    return str(annotation.__name__)


class RowSignature:
    """`inspect.signature(DQN)`: every key with its type and default. Read when asked, so that the row may be registered after its class."""

    def __get__(self, instance: object, owner: Any) -> inspect.Signature | None:
        try:
            found = list(keywords_of(owner.row))
        except (AttributeError, ConfigError):  # the base class, or a row that is not registered (yet)
            return None
        first = inspect.Parameter("config", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation="TrainConfig | str | Callable[..., Any]")
        rest = [inspect.Parameter(key.name, inspect.Parameter.KEYWORD_ONLY, default=key.default, annotation=key.type) for key in found]
        return inspect.Signature([first, *rest])


def documentation(row: str, width: int = 110) -> str:
    """The keys of a class as its docstring lists them."""
    lines = []
    found = list(keywords_of(row))
    for title, of_row in ((f"Keys of {row}", True), ("Keys of every run", False)):
        lines += [f"{title}:"]
        for key in (each for each in found if each.of_row == of_row):
            lines += textwrap.wrap(f"{key.name}: {key.type} = {key.default!r}", width, initial_indent="  ", subsequent_indent="      ")
            lines += textwrap.wrap(key.meaning, width, initial_indent="      ", subsequent_indent="      ")
        lines.append("")
    return "\n".join(lines).rstrip()


# Words of other packages

ELSEWHERE = {
    "lr": "learning_rate",
    "buffer_size": "buffer_capacity",
    "replay_size": "buffer_capacity",
    "target_network_frequency": "target_update_interval",
    "exploration_initial_eps": "epsilon_start",
    "exploration_final_eps": "epsilon_end",
    "start_e": "epsilon_start",
    "end_e": "epsilon_end",
    "n_steps": "num_steps",
    "n_epochs": "update_epochs",
    "batch_size": "minibatch_size",
    "clip_range": "clip_coef",
    "clip_range_vf": "vf_clip",
    "n_quantiles": "num_quantiles",
    "n_envs": "num_envs",
    "n_timesteps": "total_timesteps",
    "total_steps": "total_timesteps",
    "net_arch": "hidden_sizes",
    "activation_fn": "activation",
    "tensorboard_log": "output_dir",
    "train_freq": "train_frequency",
}
"""What others call a key, by their word."""

SAID_OTHERWISE = {
    "policy_kwargs": "the network's keys stand beside the others: hidden_sizes, torso and more",
    "policy": "a row has one kind of network, and hidden_sizes and torso say which",
    "deterministic": "evaluate() is greedy, and predict takes it",
    "n_eval_episodes": "eval_episodes says how many a run's own evaluations play, and evaluate(num_episodes=...) those that you ask for",
    "render": "evaluate(record=...) writes a video",
    "verbose": "learn(quiet=False) shows progress",
    "env": "the environment is the first argument: its id, or a callable that makes it",
    "callback": "learn(callbacks=...) takes them",
    "progress_bar": "learn(quiet=False) shows it",
    "reset_num_timesteps": "learn() goes on where it stopped, and a new object begins anew",
    "tb_log_name": "output_dir is a key of the class",
}
"""What others ask for by a word that is not the name of anything here."""

OF_EVALUATE = {
    "n_eval_episodes": "num_episodes says how many it plays",
    "deterministic": "it is always greedy",
    "env": "an agent plays the environment it was trained in; load(path, env=...) gives it the callable that makes that",
    "model": "it is the agent's own method",
    "render": "record='play.mp4' writes a video",
    "callback": "the dict it returns says how the episodes went",
    "return_episode_rewards": "the dict it returns has their mean, deviation, minimum and maximum",
    "reward_threshold": "compare eval_return_mean of the dict it returns",
    "verbose": "it prints nothing",
    "warn": "it warns of nothing that could be switched off",
}
"""The same for `evaluate`: SB3's evaluate_policy takes these."""


def unknown_keyword(name: str, known: Collection[str], *, owner: str) -> str:
    """What to say of a keyword that `owner` does not take."""
    said = OF_EVALUATE if owner == "evaluate" else SAID_OTHERWISE
    if name in said:
        return f"{name} is not a key of {owner}; {said[name]}"
    if (here := ELSEWHERE.get(name)) in known:
        return f"{name} is not a key of {owner}; here it is {here}"
    return f"{name} is not a key of {owner}{did_you_mean(name, known)}"
