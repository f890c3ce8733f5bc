"""What an update takes: the trainer's passes, its parallelism, packing and other roles."""
