"""The command line: `rl-training train | eval | resume | predict | export | import-sb3 |
algos | configs | doctor | ledger | report | tune`.

Exit codes: 0 done; 2 bad input (one line on stderr, nothing written); 1 a failure while running; 130 and 143 interrupted or terminated,
after a checkpoint was saved. The commands themselves are in commands/.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

import typer

from rl_training.commands.configs import configs_app
from rl_training.commands.exchange import export, import_sb3
from rl_training.commands.following import to_go_on
from rl_training.commands.listing import algos, doctor
from rl_training.commands.measuring import ledger, report, tune
from rl_training.commands.output import say
from rl_training.commands.policies import evaluate, predict
from rl_training.commands.train import resume, train
from rl_training.errors import Interrupted, RunError, UserError, one_line, warning_text
from rl_training.interrupts import importing, leave
from rl_training.runtime import signals

if TYPE_CHECKING:
    from rl_training.experiment.config import load_config

__all__ = ["app", "load_config", "main"]

WELCOME = """Deep reinforcement learning in PyTorch.

Start with: rl-training train dqn --env CartPole-v1
"""
# Plain help: rich would take half of the start-up time. Errors are shown by `main`, in one line.
app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, help=WELCOME)
COMMANDS: dict[str, Callable[..., None]] = {
    "train": train,
    "resume": resume,
    "eval": evaluate,
    "predict": predict,
    "export": export,
    "import-sb3": import_sb3,
    "algos": algos,
    "ledger": ledger,
    "report": report,
    "tune": tune,
    "doctor": doctor,
}
for _name, _command in COMMANDS.items():
    app.command(_name)(_command)
app.add_typer(configs_app, name="configs")


def __getattr__(name: str) -> Any:
    if name == "load_config":
        from rl_training.experiment.config import load_config

        return load_config
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version."),
    imports: list[str] = typer.Option(
        [], "--import", metavar="MODULE", help="Import a module of yours first: it may register algorithms and environments."
    ),
) -> None:
    for module in imports:
        _import(module)
    ctx.ensure_object(list).extend(imports)
    if version:
        import rl_training

        typer.echo(f"rl-training {rl_training.__version__}")
    elif ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def _import(module: str) -> None:
    import importlib

    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a module may raise anything, and `.` is no name of one
        missing = isinstance(error, ModuleNotFoundError) and error.name == module
        raise UserError(f"--import {module}: {error if missing else f'cannot be imported: {one_line(error)}'}") from error


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
) -> None:
    say("warning", warning_text(message))


# typer brings its own copy of click or depends on it, by version: this is the base of its errors either way.
_UsageError: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


@contextlib.contextmanager
def _modules_here() -> Iterator[None]:
    """Modules of the current folder can be named (`--import`, `env_id: module:Id`), after all that is installed: they shadow nothing."""
    here = str(Path.cwd())
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)


class _OneInterrupt:
    """Ctrl-C before and after a run, which has handlers of its own: the first of all ends the command, those after it change nothing.

    Somebody who presses it six times is answered once: without this the last ones would end in a traceback out of the clean-up.
    to_the_end: the process ends with the command, so that an import need not be left in good order, and no Ctrl-C that still comes
    shall change how it ends.
    """

    def __init__(self, *, to_the_end: bool) -> None:
        self.leaving, self._to_the_end = False, to_the_end

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if not self.leaving and not signals.came():
            self.leaving = True
            if self._to_the_end and importing(frame):
                leave(signum, frame)
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # which alone is told of signals
            yield
            return
        old = signal.signal(signal.SIGINT, self)
        try:
            yield
        finally:
            if not (self._to_the_end and (self.leaving or signals.came())):
                signal.signal(signal.SIGINT, old)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; its exit code."""
    signals.forget()
    interrupt = _OneInterrupt(to_the_end=argv is None)
    with interrupt.listening():
        return _run(argv)


def _meant(error: Exception, argv: Sequence[str] | None) -> str:
    """Which option was meant, where its value was given without it: `eval runs/mine`. Not of a command that takes such words."""
    option: Any = getattr(error, "param", None)
    context: Any = getattr(error, "ctx", None)
    if type(error).__name__ != "MissingParameter" or any(part.param_type_name == "argument" for part in context.command.params):
        return ""
    words = list(sys.argv[1:] if argv is None else argv)
    value = next(iter(words[words.index(context.info_name) + 1 :]), "-")
    return "" if value.startswith("-") else f" Did you mean {option.opts[0]} {value}?"


def _run(argv: Sequence[str] | None) -> int:
    imports: list[str] = []  # the modules that `root` was told to import: a context's `obj`
    told = False
    try:
        command = typer.main.get_command(app)
        with warnings.catch_warnings(), _modules_here():
            warnings.showwarning = _show_warning
            code = command.main(args=None if argv is None else list(argv), prog_name="rl-training", standalone_mode=False, obj=imports)
    except _UsageError as error:
        say("error", f"{getattr(error, 'format_message', error.__str__)()}{_meant(error, argv)} (see --help)")
        code = 2
    except UserError as error:
        say("error", error)
        code = 2
    except Interrupted as error:
        go_on = "" if error.run_dir is None else f"; go on with: {to_go_on(error.run_dir, imports)}"
        say("interrupted", f"{str(error).removeprefix('interrupted ')}{go_on}")
        code, told = 128 + error.signum, True
    except RunError as error:
        say("error", error)
        code = 1
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    if code == 130 and not told:  # typer makes an exit code of an interrupt, be it ours or one that a library has raised
        print("interrupted", file=sys.stderr)
    return code if isinstance(code, int) else 0
