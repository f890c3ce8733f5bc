"""Scripts of Python, read as text: which calls they make, with which constants.

`values` names what an expression may be, `follow` goes through a script's statements, `settings`
turns its calls into a stack's keys by the stack's own table. Nothing is imported or run.
"""
