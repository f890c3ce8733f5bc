"""Published claims, one module a paper, each against the forecast."""
