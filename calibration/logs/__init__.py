"""What other trainers' logs say, brought into tables of our own.

The way of a log, in one direction only (an import contract keeps it):

    opened -> formats -> readers -> gather -> run_log -> draft -> write, table
    files     syntax     words      one run   the data   scenario   what comes out

- `opened`: files, folders, archives; bytes and lines, bounded, however large or hostile. The
  `Tally` counts every line and keeps the first that could not be read.
- `formats`: syntax that several stacks share, knowing no stack: console lines, JSON lines,
  TensorBoard events, parquet, torch files, SQLite, configurations, command lines. Each gives
  plain records with the line that they came from.
- `readers`: one small module a stack. A `Stack` is data, almost: which of their keys is which of
  our columns, which of their settings is which of ours, how their records of rollouts look; and a
  few pure functions for what keys alone do not say (overlap, what lies inside what).
- `recognise`: which stack wrote a file, by the keys that it holds, never by a version.
- `gather`: the records of all files become one run: several sinks of one run are laid over each
  other, resumed parts replace what they repeat, two runs are refused.
- `run_log`: the data that all that follows stands on: tables (`columns` declares them), settings
  with their file and line, the level and why it is no higher, what could not be read.
- `draft`: a pure function from a `RunLog` to the parts of a scenario, each with where it is from.
  Fits belong beside it: they take a `RunLog` and replace parts (`draft.replaced`).
- `write`, `show`: the folder of `rollcast import`, and the page on the terminal.

A new stack is one module in `readers` and one line in `readers.STACKS`. A new key of theirs is
one entry in that stack's mapping. What is not mapped is ignored, and a column that nothing maps to
stays empty: nothing is guessed here.

Formats and traps are those of the trainers' own sources in mid-2026, named in each reader.
"""
