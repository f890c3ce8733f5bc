"""Runs whose every decision, stay and phase is kept as a digest: a change of the loop shows."""
