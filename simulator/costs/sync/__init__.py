"""What moves between trainer and engines: weights, sleeping engines, states of the trainer."""
