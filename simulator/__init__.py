"""A discrete-event simulator of LLM reinforcement learning, and the vocabulary it shares with the
real engine. Start at `simulator.studies.simulate` and `simulator.studies.compare`."""

if __name__ == "simulator":  # the name of version 0.1, in a checkout
    from rollcast._old_names import again

    again(__name__)
