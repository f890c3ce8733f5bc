"""Every run goes through here: `drive` is the only caller of the loop, `replay` takes the decisions
of a recorded run again."""
