"""Where exports of earlier versions find their hooks, which are in `simulator.stacks`."""
