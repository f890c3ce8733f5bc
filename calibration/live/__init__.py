"""A run of another trainer, watched while it goes on.

    shifts, ahead -> monitor -> follow -> show
    one series       a RunLog   the edge  what is said

`monitor.state` is a pure function from what a log holds so far to progress, a forecast of the end
and warnings; `follow` looks at the files, reads them when they have grown, at a bounded rate, and
is the only part that waits or knows a clock.
"""
