"""The real world of several processes: replicas that iterate by themselves, a trainer beside them,
and the loop in the driver. What starts the processes and carries between them is a
`engine.actors.transport.Transport`; `engine.actors.on_ray` is the one that there is."""
