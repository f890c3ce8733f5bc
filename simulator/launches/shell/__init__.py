"""Shell scripts, read by a parser and followed without running anything.

`syntax` names what a script is made of, `parse` finds it in a text, `expand` gives words their
values, `arithmetic` and `conditions` those of expressions and conditions. `follow` goes through a
script with a `session`, which holds its state and what was found: compound commands branch and
repeat, `simple` ones are assignments, the shell's own (`builtins`) or start others (`programs`).
"""
