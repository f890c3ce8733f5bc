"""Whether a launch fits, how long it takes, and what would make it fit or faster."""
