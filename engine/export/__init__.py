"""``rollcast export``: a scenario's plan as what another training stack needs to carry it out.

Settings where the stack has them, and where it has not a small file for its own hook, which runs
`simulator.stacks` there.
"""
