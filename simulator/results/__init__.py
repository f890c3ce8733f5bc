"""What a run leaves: its folder of tables, metrics, pictures and Perfetto traces."""

RUN_SCHEMA = "rollcast-run/1"
"""The form of the files, as summary.json names it."""
