"""What fits: the KV pool of a replica, and the activations of a training step."""
