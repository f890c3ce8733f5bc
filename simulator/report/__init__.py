"""Self-contained HTML reports: pure functions from data to `Markup`, which escapes all else."""
