"""The planner: the best GPUs, split and policy for a whole run (`planner.plan`).

`question` and `auto` complete the question, `choices` lists choices, `estimate` orders them, `race`
simulates the promising (`measure`, `workers`, `on_ray`, `journal`), `whole_run` extrapolates,
`search` answers.
"""
