"""Atari 2600 games (extra `atari`): protocols by name, single games, and ALE's own vector environment."""
