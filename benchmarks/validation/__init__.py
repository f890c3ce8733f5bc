"""The validation suite: what others measured and published, against the simulator's forecast.

`sources.yaml` declares the sources: tables, texts, checks with their targets, reasons for misses.
One module per source turns its rows into cases (measured and forecast); `suite` judges them all.
Nothing is tuned to a case that counts as held out. ``python -m benchmarks.validation`` computes
all of it again.
"""
