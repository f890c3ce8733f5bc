"""Costs from a model and a GPU: the options, the cost model and how sure it is."""
