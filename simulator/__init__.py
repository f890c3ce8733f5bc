"""A discrete-event simulator of LLM reinforcement learning, and the vocabulary it shares with the
real engine.

Start at `simulator.studies.simulate` (load a scenario, run it) and `simulator.studies.compare`; a
policy is a `simulator.policy.Policy`, a plan a `simulator.plan.StepPlan`, a cluster a
`simulator.world.World`.
"""

if __name__ == "simulator":  # the name of version 0.1, in a checkout
    from rollcast._old_names import again

    again(__name__)
