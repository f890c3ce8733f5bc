"""What other trainers' logs say, brought into tables of our own.

The way of a log, in one direction only (an import contract keeps it):

    opened -> formats -> readers -> scan -> overlay, rollouts -> gather -> draft -> write, show
    files     syntax     words      a file  one run              RunLog    scenario what comes out

- `opened`: files, folders, archives; bytes and lines, bounded, however large or hostile. A `tally`
  counts every line of a file and keeps the first that could not be read.
- `formats`: syntax that several stacks share, knowing no stack: console lines, JSON, TensorBoard
  events, parquet, torch files, SQLite, configurations and command lines.
- `readers`: how the log of each stack is read, from the stack's folder in `simulator.stacks`. A
  `StackLog` is data, almost: which of their keys is which of our columns, which of their settings
  is which of ours, how their records of rollouts look; and a few pure functions for what keys alone
  do not say (overlap, what lies inside what). `readers.table` reads our own tables.
- `recognise`: which stack wrote something, by the keys in it, never by a version.
- `scan`: one file, read once, into rows of metrics, rollouts and settings, each with its line
  (`scanned`); `json_rows` and `console_lines` are its readers of texts.
- `overlay`: rows of several sinks, of resumed parts and of two writers become one row a step; two
  runs are refused. `rollouts`: rollouts and requests as columns, groups numbered.
- `gather`: all files into a `RunLog` (`run_log`), the data that all that follows stands on: tables
  (`columns` declares them), settings (`simulator.stacks.settings` names them) with file and line,
  the level and why it is no higher. `gather.read_log(paths)` is the way in.
- `draft`: a pure function from a `RunLog` to the parts of a scenario, each with where it is from.
  Fits belong beside it: they take a `RunLog` and give parts (`draft.replaced`).
- `write`, `show`: the folder of ``rollcast import``, and the page on the terminal.

For who fits: durations are in `columns.PHASES`; ``step_s`` is what the stack calls a step, and
`RunLog.outside` names the phases that it leaves out; ``generation_s`` is never a wait (``wait_s``
is); ``first`` marks steps that warm up; ``logged_steps`` above 1 makes a maximum a mean of maxima;
``generates`` 0 is an update on earlier rollouts. Rollouts have ``new_tokens`` or, where only their
text was dumped, ``characters``.

A new stack is a folder in `simulator.stacks`. A new key of theirs is one entry in that stack's
mapping. What is not mapped is ignored, and a column that nothing maps to
stays empty: nothing is guessed here.

Formats and traps are those of the trainers' own sources in mid-2026, named in each reader.
"""
