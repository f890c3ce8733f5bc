"""No test measures time: a busy machine fails none.

The gate runs the same examples each time, so that it answers for the change and not for its luck;
`make laws` looks for new ones.
"""

import os

from hypothesis import settings

settings.register_profile("gate", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))
