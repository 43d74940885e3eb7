"""`python -m rl_training`: the command line."""

import sys

from rl_training.cli import main

if __name__ == "__main__":
    sys.exit(main())
