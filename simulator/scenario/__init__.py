"""A scenario file: read, checked, and built into a world, a policy and a plan."""
