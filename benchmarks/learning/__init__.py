"""Real learning by small models under every policy, and the law that is fitted to it."""
