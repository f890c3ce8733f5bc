"""From a real run to a calibrated simulator, and from its forecasts to how far they hold."""

if __name__ == "calibration":  # the name of version 0.1, in a checkout
    from rollcast._old_names import again

    again(__name__)
