"""Exports, and what they run inside other stacks, against fakes of those."""
