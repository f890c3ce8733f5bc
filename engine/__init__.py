"""The real world: vLLM samples and torch trains under the simulator's loop and policies.

`engine.world.EngineWorld` is the world, `engine.run` runs a scenario in it.
"""
