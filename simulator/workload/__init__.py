"""What rollouts are made of: prompt and response lengths, rewards, traces, measured groups."""
