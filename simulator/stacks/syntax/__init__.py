"""Texts that several stacks log in: numbers, JSON, Python literals. None of it knows a stack."""
