"""Runs whose every decision, segment and phase is kept as a digest: a change of the loop shows."""
