"""rollcast from Python: the public face, re-exported from the packages beside it."""
