"""``rollcast explore``: a local page with sliders for a scenario's settings.

`knobs` has the settings, `work` simulates a choice, `questions` orders simulations, `view` draws,
`app` is the page.
"""
