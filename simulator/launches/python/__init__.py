"""Scripts of Python, read as text: which calls they make, with which constants, and which commands
they run.

`script` names what an expression may be and what a script does, `expressions` finds its values
(`pure` where plain values suffice, `texts` for those of commands, `arguments` for the script's own
command line), `follow` goes through a script's statements. `settings` turns its calls into a
stack's keys by the stack's own table, `commands` those that run a program into its words. Nothing
is imported or run.
"""
