"""ROLL (alibaba/ROLL): RLVR and agentic pipelines, with a device mapping for each role."""
