"""Config, settings, registry, checkpoints, run directories and metric sinks: what a run is, without the loop that makes it."""
