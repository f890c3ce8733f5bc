"""Questions put to the simulator: one run, a comparison, a plan of capacity, a ranking."""
