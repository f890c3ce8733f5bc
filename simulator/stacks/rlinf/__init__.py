"""RLinf (RLinf/RLinf): RL of language models by Hydra, with a placement for each component."""
