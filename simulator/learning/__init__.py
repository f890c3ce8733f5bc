"""What a policy does to learning: the signals of each update, and a law of progress over them."""
