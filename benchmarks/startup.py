"""How long commands that need no torch take to answer, from a fresh interpreter: milliseconds, less is better."""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.common import Contender, arguments, compare, save

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import rl_training": ["-c", "import rl_training"],
    "rl-training --help": ["-m", "rl_training", "--help"],
    "rl-training algos": ["-m", "rl_training", "algos"],
}


def milliseconds(command: list[str]) -> Contender:
    def measure() -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
        return 1e3 * (time.perf_counter() - start)

    return measure


def main() -> None:
    options = arguments(__doc__, rounds=20).parse_args()
    contenders = {name: milliseconds(command) for name, command in COMMANDS.items() if options.only in name}
    save(options.json, options, [compare("Start-up", "milliseconds", contenders, rounds=options.rounds)])


if __name__ == "__main__":
    main()
