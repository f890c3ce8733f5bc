"""The vocabulary that policies, the loop and both worlds share, one module for each concept."""
