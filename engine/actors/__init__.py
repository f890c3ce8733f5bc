"""The real world in several processes: replicas that iterate by themselves, a trainer beside them,
and the loop in the driver. A `engine.actors.transport.Transport` starts the processes and carries
calls; `engine.actors.on_ray` is the one on Ray, `engine.actors.local` the one within a process."""
