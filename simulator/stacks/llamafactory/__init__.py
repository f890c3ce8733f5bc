"""LLaMA-Factory: of its stages ppo alone is an RL loop."""
