"""`rl-training`, and `python -m rl_training`: the first and last moments of the process, around the command line (cli.py)."""

import os
import sys

try:
    import signal

    from rl_training.interrupts import leave
except KeyboardInterrupt:  # `leave` is not there yet
    os.write(2, b"interrupted\n")
    os._exit(130)


def main() -> int:
    """Runs this process's command; its exit code."""
    signal.signal(signal.SIGINT, leave)  # the command line has yet to be imported
    from rl_training import cli

    code = cli.main()
    sys.stdout.flush()
    signal.signal(signal.SIGINT, lambda *_: os._exit(code))  # all is done: a Ctrl-C now only spares the wait for threads
    return code


if __name__ == "__main__":
    sys.exit(main())
