"""From files that people launch a training stack with to settings by our names; nothing runs."""
