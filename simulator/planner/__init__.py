"""The planner: which GPUs, split how, under which policy, for a whole run.

`simulator.planner.planner.plan` answers; the modules below it each have one part: what is asked
(`question`) and searched (`search`), what there is to choose (`choices`), what can be said without
simulating (`estimate`), what a simulation says of the
whole run (`measure`, `whole_run`), which choices get a longer one (`race`), who simulates
(`workers`, `on_ray`), what is kept of an interrupted plan (`journal`), and the answer (`answer`).
"""
