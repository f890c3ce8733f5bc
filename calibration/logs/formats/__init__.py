"""Syntax that several stacks share; nothing here knows what a key means."""
