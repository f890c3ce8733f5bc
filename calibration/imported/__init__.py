"""A run of another trainer, fitted from its log: what it will do next, and what would change it.

In one direction (an import contract keeps it):

    steps, tokens -> lengths, generation -> shape, levels, linear -> model -> hold_out, advice
    what counts      from few figures       costs from a log         one fit   what it is good for

and `workshop` puts them together, `page` and `written` say what came out. Fits know a `RunLog`
and its columns, never a stack's own keys: the words of the advice come from the stack's reader.
"""
