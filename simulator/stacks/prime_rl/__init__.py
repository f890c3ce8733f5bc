"""prime-rl (PrimeIntellect-ai/prime-rl): trainer and orchestrator, always asynchronous."""
