"""What a value may be, and the one way to check it; below everything but the errors.

`options` reads sections and policies declared by annotations, `plain` objects from JSON by theirs;
both compile annotations to `readers`, from which the contents of files are declared, too. `words`
has the wording of errors.

Readers are ours: pydantic takes 0.11 s to import and 0.08 s more to build the sections of a plain
scenario, of which ours take 0.01 s; and its errors would have to be rewritten to name key, line and
nearest valid name.
"""

from rollcast.simulator.values.options import (
    Doc,
    Option,
    Options,
    declared,
    given,
    keys,
    read,
    reader_of,
    tag,
    take,
)
from rollcast.simulator.values.readers import (
    ANY,
    NOT_NEGATIVE,
    POSITIVE,
    SEED,
    SHARE,
    Above,
    Anything,
    AtLeast,
    Between,
    Bounds,
    Choice,
    Flag,
    Nullable,
    Number,
    choice,
    flag,
    mapping,
    number,
    whole,
)
from rollcast.simulator.values.words import (
    A_MAPPING,
    check_unknown_keys,
    join,
    missing,
    nearest,
    short,
    wrong,
)

__all__ = [
    "ANY",
    "A_MAPPING",
    "NOT_NEGATIVE",
    "POSITIVE",
    "SEED",
    "SHARE",
    "Above",
    "Anything",
    "AtLeast",
    "Between",
    "Bounds",
    "Choice",
    "Doc",
    "Flag",
    "Nullable",
    "Number",
    "Option",
    "Options",
    "check_unknown_keys",
    "choice",
    "declared",
    "flag",
    "given",
    "join",
    "keys",
    "mapping",
    "missing",
    "nearest",
    "number",
    "read",
    "reader_of",
    "short",
    "tag",
    "take",
    "whole",
    "wrong",
]
