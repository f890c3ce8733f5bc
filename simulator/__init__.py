"""A discrete-event simulator of LLM reinforcement learning, and the vocabulary it shares with the
real engine.

Start at `simulator.studies.simulate` (load a scenario, run it) and `simulator.studies.compare`; a
policy is a `simulator.policy.Policy`, a plan a `simulator.plan.StepPlan`, a cluster a
`simulator.world.World`.
"""
