"""ms-swift's Megatron trainers: ``megatron rlhf``."""
