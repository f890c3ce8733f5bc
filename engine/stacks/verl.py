"""Exports of earlier versions import their hooks from here."""

from rollcast.simulator.stacks.verl.hooks import make_sampler as make_sampler
