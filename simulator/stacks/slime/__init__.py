"""slime (THUDM/slime) and its forks: Megatron trainers and SGLang engines behind a router."""
