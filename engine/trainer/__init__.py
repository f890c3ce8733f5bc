"""The real trainer: GRPO, DAPO and GSPO on Hugging Face causal models, dense or with the prompt of
a group computed once."""
