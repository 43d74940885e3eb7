"""`eval` and `predict`: what a checkpoint's policy does."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import typer

from rl_training.commands.options import CHECKPOINT, DEVICE
from rl_training.commands.output import say
from rl_training.errors import UserError
from rl_training.runtime.figures import figure, spread


def evaluate(
    checkpoint: str = CHECKPOINT,
    episodes: int | None = typer.Option(
        None, "--episodes", "--num-episodes", min=1, metavar="N", help="Episodes to play: 20, or 1 where they are watched."
    ),
    seed: int | None = typer.Option(None, "--seed", min=0, help="Play other episodes than the run's own evaluations."),
    render: bool = typer.Option(False, "--render", help="Show the episodes in a window."),
    record: str | None = typer.Option(None, "--record", metavar="FILE", help="Record the episodes as an .mp4 file (extra `video`)."),
    device: str | None = typer.Option(None, "--device", help=f"{DEVICE.help} By default what the run was trained on."),
    as_json: bool = typer.Option(False, "--json", help="Print the figures as one JSON object, for programs."),
) -> None:
    """Play greedy episodes with a checkpoint's policy."""
    from rl_training.runtime import workflows

    if episodes is None:
        episodes = 1 if render or record is not None else 20
    figures = workflows.evaluate_checkpoint(checkpoint, num_episodes=episodes, seed=seed, render=render, record=record, device=device)
    if as_json:
        import json

        typer.echo(json.dumps(figures if record is None else {**figures, "recorded": record}))
        return
    _show_evaluation(checkpoint, figures)
    if record is not None:
        typer.echo(f"recorded  {record}")


def _show_evaluation(checkpoint: str, figures: dict[str, float]) -> None:
    """A short table of what was played, and how it went."""
    from rl_training.experiment.checkpointing import open_checkpoint

    opened = open_checkpoint(checkpoint)
    config, episodes, cut = opened.config, figures["eval_episodes"], figures["eval_cut_episodes"]
    lines = {
        "policy": f"{config.algo} on {config.env_id}, seed {config.seed}, step {opened.step:,}",
        "episodes": f"{episodes}, greedy" + (f"; {cut} cut after {config.eval_max_steps:,} steps" if cut else ""),
        "return": f"{spread(figures['eval_return_mean'], figures['eval_return_std'])} "
        f"({figure(figures['eval_return_min'])} to {figure(figures['eval_return_max'])})",
        "length": figure(figures["eval_length_mean"]),
    }
    for name, text in lines.items():
        typer.echo(f"{name:<10}{text}")


def predict(
    checkpoint: str | None = typer.Option(None, "--checkpoint", metavar="PATH", help=CHECKPOINT.help),
    onnx: str | None = typer.Option(None, "--onnx", metavar="FILE", help="Instead: a policy that `export` wrote (extra `export`)."),
    observations: list[str] = typer.Argument(None, metavar="OBSERVATION", help="Observations as JSON, such as '[0, 0.1, 0, 0]'."),
    source: str | None = typer.Option(None, "--input", metavar="FILE", help="Read them from a file, one per line (- or none: stdin)."),
) -> None:
    """Give actions and Q-values for observations, as JSON lines.

    An observation is a list of numbers, or {"obs": [...], "episode_start": true, "action_mask": [1, 0], "reward": 1.0}.
    Recurrent policies keep their state from one to the next.
    """
    import json

    if observations and source is not None:
        raise UserError("--input and observations as arguments: give one of them")
    if (checkpoint is None) == (onnx is None):
        raise UserError("predict asks one policy: give --checkpoint or --onnx")
    read = _parsed(((f"observation {i}", text) for i, text in enumerate(observations, 1)) if observations else _lines(source))
    for answer in _answers(checkpoint, onnx, read):
        print(json.dumps(answer), flush=True)  # whoever feeds observations one by one waits for each answer


def _answers(checkpoint: str | None, onnx: str | None, observations: Iterator[Any]) -> Iterator[dict[str, Any]]:
    if onnx is not None:
        from rl_training.exchange.onnx_policy import predict_onnx

        return predict_onnx(onnx, observations)
    from rl_training.runtime import workflows

    return workflows.predict(str(checkpoint), observations)


def _lines(source: str | None) -> Iterator[tuple[str, str]]:
    """The lines that hold something, each with what an error calls it."""
    name = "standard input" if source in (None, "-") else str(source)
    if source is None and sys.stdin.isatty():  # somebody who forgot them would wait for us, as we for them
        say("predict", "type one observation a line, such as [0, 0.1, 0, 0]; Ctrl-D ends")
    try:
        with contextlib.nullcontext(sys.stdin) if source in (None, "-") else open(str(source), encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"{name}, line {number}", line
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{name}: cannot be read ({error})") from None


def _parsed(texts: Iterator[tuple[str, str]]) -> Iterator[Any]:
    import json

    for name, text in texts:
        try:
            yield json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{name}: not JSON ({error})") from None
