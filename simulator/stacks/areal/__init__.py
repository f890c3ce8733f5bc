"""AReaL (inclusionAI/AReaL): rollouts run ahead of the trainer within a bound on staleness."""
