"""The real world: vLLM samples and torch trains under the simulator's loop and policies.

`engine.world.EngineWorld` is the world, `engine.run` runs a scenario in it.
"""

if __name__ == "engine":  # the name of version 0.1, in a checkout
    from rollcast._old_names import again

    again(__name__)
