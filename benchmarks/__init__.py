"""Ours and the peers on the same work, in one run: `make bench`, or `.peers/bin/python -m benchmarks.<name>` from the repository's root."""
