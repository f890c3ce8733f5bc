"""TRL (huggingface/trl): GRPOTrainer, with vLLM beside or within the training processes."""
