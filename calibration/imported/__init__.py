"""A run fitted from its log: what it will do next, and what would make it faster.

In one direction (an import contract keeps it):

    steps, lengths -> batches -> phases, levels, linear -> model -> hold_out, advice -> outcome
    what is counted               costs from a log         one fit   how good it is

`outcome` puts them together; `page`, `text` and `show` say what came out. Fits know a `RunLog` and
its columns, never a stack's own keys: the words of the advice come from the stack's reader.
"""
