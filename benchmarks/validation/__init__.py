"""The validation suite: what others measured and published, against the simulator's forecast.

One module per source, each with a ``source(data)`` that returns a ``verdict.Source``: the cases,
what was used to calibrate, what was held out, and where the forecast misses. Nothing is tuned to a
case that counts as held out. ``python -m benchmarks.validation`` regenerates all of it.
"""
