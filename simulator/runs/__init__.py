"""Every run goes through here: `drive` calls the loop, `replay` takes the decisions of a recorded
run again. Only another stack's process calls the loop itself (`simulator.stacks.driver`)."""
