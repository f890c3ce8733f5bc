"""What a run leaves: its folder of tables, metrics, pictures and Perfetto traces."""
