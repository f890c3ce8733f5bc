"""Tasks for the real engine: prompts, verifiable rewards, and a model small enough to train."""
