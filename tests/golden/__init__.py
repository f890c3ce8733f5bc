"""Runs whose every decision, stay and phase is kept as a digest, so that a change of the loop shows."""
