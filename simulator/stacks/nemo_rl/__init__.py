"""NeMo-RL (NVIDIA-NeMo/RL): GRPO on Megatron or FSDP2 with vLLM, in turns or asynchronous."""
