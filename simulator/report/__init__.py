"""Reports as one page of HTML each, which needs no other file and no network.

Components are pure functions from plain data to `Markup`; nothing else can stand on a page
unescaped. `simulator.explore` puts the same components on a page that answers.
"""
