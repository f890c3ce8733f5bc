"""SkyRL (NovaSky-AI/SkyRL): Ray, FSDP or Megatron; synchronous and fully asynchronous."""
