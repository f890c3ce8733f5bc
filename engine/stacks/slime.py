"""Exports of earlier versions import their hooks from here."""

from rollcast.simulator.stacks.slime.hooks import Adapter as Adapter
