"""``rollcast doctor``: what this machine can do, and what a scenario would meet on it."""
