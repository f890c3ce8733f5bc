"""Shell scripts, read by a parser and followed without running anything.

`syntax` names what a script is made of, `parse` finds it in a text, `expand` gives words their
values, `arithmetic` and `tests` those of expressions and conditions, and `follow` goes through a
script, variable by variable, to the commands in it. `pure` knows the few commands whose output
follows from their words alone.
"""
