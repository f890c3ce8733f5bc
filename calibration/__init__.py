"""From a real run to a calibrated simulator, and from its forecasts to how far they hold."""
