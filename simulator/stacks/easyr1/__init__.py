"""EasyR1, a fork of verl 0.3 whose keys are its own."""
