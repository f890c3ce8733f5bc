"""GPUs, models and figures by name, each with its kind and source."""
