"""Exact resume, at length: every row, one environment and four, killed with SIGKILL at random moments and resumed through the command line.

The final model, training and replay files must be byte-identical to those of an uninterrupted run, and so must the records be.
Exit code 1 on any difference. The core is tests/resume_harness.py, which CI runs with fewer kills.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from rl_training.experiment.registry import algorithm_names
from tests.resume_harness import Outcome, killed_and_resumed, run_config


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algos", nargs="+", default=list(algorithm_names()), metavar="ROW", help="rows to run (default: all)")
    parser.add_argument("--num-envs", nargs="+", type=int, default=[1, 4], metavar="N")
    parser.add_argument("--kills", type=int, default=5, help="of each run (default: %(default)s)")
    parser.add_argument("--total-timesteps", type=int, default=2_400)
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    options = parser.parse_args()
    failures = 0
    print(f"{'row':<18}{'envs':>5}  {'killed at steps':<40}result")
    for number, (algo, num_envs) in enumerate((algo, num_envs) for algo in options.algos for num_envs in options.num_envs):
        config = run_config(algo, num_envs=num_envs, total_timesteps=options.total_timesteps)
        with tempfile.TemporaryDirectory() as workspace:
            try:
                outcome = killed_and_resumed(config, Path(workspace), kills=options.kills, seed=options.seed + number)
            except (AssertionError, subprocess.TimeoutExpired) as error:  # a run that failed or hung: say it, go on with the next
                outcome = Outcome((), (str(error).strip().splitlines()[-1],))
        failures += bool(outcome.differences)
        verdict = "differs: " + ", ".join(outcome.differences) if outcome.differences else "identical"
        print(f"{algo:<18}{num_envs:>5}  {' '.join(map(str, outcome.kills)):<40}{verdict}", flush=True)
    print("every run identical" if not failures else f"{failures} runs differ")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
