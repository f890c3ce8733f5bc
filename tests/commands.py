"""Hypothesis strategies for what a world may be asked below the loop."""

from hypothesis import strategies as st

from tests.reference.driver import Abort, Command, Submit, Sync, Train, Wait

groups = st.tuples(st.integers(0, 9), st.sampled_from([2, 1, 3, 4, 6]))
places = st.lists(st.integers(0, 20), min_size=1, max_size=8).map(tuple)
allowances = st.sampled_from([None, None, 1, 2, 5, 17])
turn_allowances = st.sampled_from([None, None, 1, 2])
submits = st.builds(
    Submit,
    st.lists(groups, min_size=1, max_size=4).map(tuple),
    st.one_of(st.just(()), places),
    st.booleans(),
    allowances,
    st.booleans(),
    turn_allowances,
)
seconds = st.one_of(
    st.sampled_from([0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 8.0, 13.0]),
    st.sampled_from([0.006, 0.1, 1 / 3, 0.37, 1.7]),
)
waits = st.builds(Wait, st.one_of(st.none(), seconds, seconds))
masks = st.one_of(st.just(-1), st.integers(0, 255))
aborts = st.builds(Abort, waits, masks, st.sampled_from([False, False, False, True]))
resumes = st.builds(
    Submit, st.just(()), places, st.booleans(), allowances, st.booleans(), turn_allowances
)
commands: st.SearchStrategy[list[Command]] = st.lists(
    st.one_of(submits, waits, aborts, resumes, st.just(Train()), st.just(Sync())),
    min_size=4,
    max_size=30,
)
pauses: st.SearchStrategy[list[Command]] = st.lists(
    st.one_of(submits, aborts, aborts, resumes), min_size=6, max_size=30
)
