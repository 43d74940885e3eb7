"""The commands of the command line, a file for each kind. Heavy modules are imported inside them, so that `--help` answers at once."""
