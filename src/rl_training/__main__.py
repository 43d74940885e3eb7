"""`python -m rl_training`: the command line."""

from rl_training.cli import main

if __name__ == "__main__":
    main()
