"""``rollcast explore``: a local page on which the settings of a scenario are moved.

`knobs` says what can be moved and what scenario that makes, `work` simulates one choice,
`questions` decides what is simulated next, `view` draws, and `app` alone knows the library of the
page.
"""
