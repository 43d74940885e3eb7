"""What configs learn: config × seeds, one record per run, a table of all. A suite of one's own for one command line.

    python -m benchmarks.learning configs/dqn/cartpole.yaml configs/qr_dqn/cartpole.yaml --seeds 1,2,3,4,5 --threshold 475

The records are the ledger's (`rl-training ledger SUITE` runs whole suites): a run whose record exists is not repeated.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from rl_training.errors import RunError, UserError
from rl_training.ledger import RESULTS
from rl_training.ledger.display import Display
from rl_training.ledger.runner import look, run_plans
from rl_training.ledger.suites import plan_config
from rl_training.ledger.text import records_table
from rl_training.runtime.seeds import parse_seeds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="+")
    parser.add_argument("--seeds", default="1,2,3,4,5")
    parser.add_argument("--episodes", type=int, default=100, help="fresh evaluation episodes")
    parser.add_argument("--threshold", type=float)
    parser.add_argument("--label", default="", help="names a variant made with --set")
    parser.add_argument("--set", action="append", default=[], help="key=value, as rl-training train --set")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    try:
        seeds = parse_seeds(options.seeds)
        about = {"label": options.label, "episodes": options.episodes}
        plans = [plan for config in options.configs for plan in plan_config(config, options.set, seeds, **about)]
        state = look(plans, options.results)
        for name, keys in state.stale.items():
            print(f"{name} was made with another {', '.join(keys)} (kept)", file=sys.stderr)
        steps = sum(plan.config.total_timesteps for plan in state.missing)
        outcome = run_plans(state.missing, options.results, jobs=options.jobs, display=Display(len(state.missing), steps))
    except (UserError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    print(records_table([*state.done, *outcome.records], options.threshold))
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
