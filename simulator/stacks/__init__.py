"""What rollcast knows of other training stacks: a folder for each, and what they have in common.

A folder here that holds a ``launch.yaml`` is a stack, and `stack.all_stacks` finds it by itself:

- ``launch.yaml``: its launch settings and ours, in one table that is read in both directions, and
  its words for advice, rules of what settings imply; ``launch.py``: what rules cannot say of that.
- ``costs.yaml``: presets of ``cost.roofline.stack`` and its trainers' defaults, with sources.
- ``log.yaml``: its log's keys, console and dumps; ``log.py``: functions for what data cannot say.
- ``export.py``: a plan in its settings; ``limits.py``: what of a plan it cannot carry out, and why;
  ``hooks.py``: what runs inside the stack's own process after ``rollcast export``.

A folder with a ``costs.yaml`` alone is priced, and neither imported nor exported; that of
``unknown`` is what the others are taken to be where they do not say. Else only ``launch.yaml`` is
needed. In common: `stack` (a stack and its files), `settings` (a run's settings, by the names of
``meanings.yaml``), `launch` (the table), `implied` (its rules of what follows), `log_format`,
`log_file`, `consoles`, `records` and `syntax` (logs), `exporting`, `exported`, `limits` and
`driver` (exports, and the loop inside another stack's process).

Nothing here imports costs, workloads or scenarios: a stack is described by data and pure
functions, and its hooks need the loop and the policies alone.
"""
