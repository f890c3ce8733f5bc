"""Worlds that other training stacks run: the simulator's loop and policies inside slime and verl.

What is written here is imported in those stacks' own processes, and imports them only there.
"""
