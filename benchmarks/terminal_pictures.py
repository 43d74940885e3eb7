"""The documentation's pictures of a terminal: real commands in a real terminal of 80 columns, `python -m benchmarks.terminal_pictures`.

It trains DQN on CartPole with the shipped settings (a minute or two), evaluates it and lists configs and algorithms. What the terminal
held is written as SVG under docs/images, but for the folder of the repository, which becomes ~/rl_training; the run is thrown away.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import pty
import re
import struct
import sys
import tempfile
import termios
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from benchmarks.publish import ROOT

IMAGES = ROOT / "docs" / "images"
COLUMNS, LINES = 80, 24


def played(command: list[str], folder: Path) -> list[str]:
    """What the command wrote to its terminal, piece by piece."""
    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        os.chdir(folder)
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
        os.execvpe(sys.executable, [sys.executable, "-m", "rl_training", *command], environment)
    pieces = []
    while True:
        try:
            piece = os.read(terminal, 1 << 16)
        except OSError:  # Linux says so when the child has gone
            break
        if not piece:
            break
        pieces.append(piece)
    _, status = os.waitpid(child, 0)
    text = b"".join(pieces).decode().replace(str(ROOT), "~/rl_training")
    if status != 0:
        raise SystemExit(f"rl-training {' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}:\n{text[-2000:]}")
    return re.split(r"(?=\r)", text)


def screen(written: str) -> list[str]:
    """The lines that a terminal shows after `written`: what was overwritten is gone, colours stay."""
    lines, row = [""], 0
    for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r\n|\r|\n|[^\r\n\x1b]+", written):
        if token in ("\n", "\r\n"):
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif token == "\r" or token.endswith("K"):
            lines[row] = ""  # whoever goes back to a line's start here writes it anew
        elif token.endswith("A"):
            row = max(0, row - int(token[2:-1] or 1))
        elif token.startswith("\x1b") and not token.endswith("m"):
            pass  # the cursor hidden and shown
        else:
            lines[row] += token
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def picture(name: str, command: list[str], lines: list[str]) -> Path:
    """The lines under their command, as an SVG that asks for nothing on the network."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for text in (Text("$ rl-training " + " ".join(command), style="bold"), *map(Text.from_ansi, lines)):
        for part in text.divide(range(COLUMNS, len(text), COLUMNS)):  # a terminal breaks lines anywhere
            console.print(part, soft_wrap=True)
    svg = console.export_svg(title="", unique_id=name)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace("Fira Code", "Menlo, Consolas, DejaVu Sans Mono")
    target = IMAGES / f"terminal_{name}.svg"
    target.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", encoding="utf-8")
    print(target.relative_to(ROOT), f"{target.stat().st_size / 1000:.0f} kB")
    return target


def halfway(pieces: list[str]) -> str:
    """What had been written when the bar stood in the middle and an evaluation was seen."""
    bars = [at for at, piece in enumerate(pieces) if "━" in piece and "eval" in piece]
    return "".join(pieces[: bars[len(bars) // 2] + 1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--total-timesteps", type=int, help="a shorter run, to try this script")
    args = parser.parse_args()
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        show: Callable[[list[str]], list[str]] = lambda command: screen("".join(played(command, folder)))  # noqa: E731
        train = ["train", "dqn", "--env", "CartPole-v1"]
        pieces = played([*train, *([] if args.total_timesteps is None else ["--total-timesteps", str(args.total_timesteps)])], folder)
        picture("progress", train, screen(halfway(pieces)))
        picture("train", train, screen("".join(pieces)))
        (run,) = (path.relative_to(folder) for path in (folder / "runs").iterdir())
        evaluate = ["eval", "--checkpoint", f"{run}/checkpoints/best", "--seed", "2026"]
        picture("eval", evaluate, show(evaluate))
        picture("algos", ["algos"], [*show(["algos"])[: LINES - 2], "..."])
        listed = show(["configs"])
        at = listed.index("CartPole-v1")
        picture("configs", ["configs"], [*listed[:2], "...", *listed[at : at + LINES - 5], "..."])
    return 0


if __name__ == "__main__":
    sys.exit(main())
