"""What a value may be, and the one way to check it; below everything but the errors.

`options` reads sections and policies declared by annotations, `plain` objects from JSON by theirs;
both compile annotations to `readers`, from which the contents of files are declared, too. `words`
has the wording of errors.

Readers are ours: pydantic takes 0.11 s to import and 0.08 s more to build the sections of a plain
scenario, of which ours take 0.01 s; and its errors would have to be rewritten to name key, line and
nearest valid name.
"""

from rollcast.simulator.values.options import Doc as Doc
from rollcast.simulator.values.options import Option as Option
from rollcast.simulator.values.options import Options as Options
from rollcast.simulator.values.options import declared as declared
from rollcast.simulator.values.options import given as given
from rollcast.simulator.values.options import keys as keys
from rollcast.simulator.values.options import read as read
from rollcast.simulator.values.options import reader_of as reader_of
from rollcast.simulator.values.options import tag as tag
from rollcast.simulator.values.options import take as take
from rollcast.simulator.values.readers import ANY as ANY
from rollcast.simulator.values.readers import NOT_NEGATIVE as NOT_NEGATIVE
from rollcast.simulator.values.readers import POSITIVE as POSITIVE
from rollcast.simulator.values.readers import SEED as SEED
from rollcast.simulator.values.readers import SHARE as SHARE
from rollcast.simulator.values.readers import Above as Above
from rollcast.simulator.values.readers import Anything as Anything
from rollcast.simulator.values.readers import AtLeast as AtLeast
from rollcast.simulator.values.readers import Between as Between
from rollcast.simulator.values.readers import Bounds as Bounds
from rollcast.simulator.values.readers import Choice as Choice
from rollcast.simulator.values.readers import Flag as Flag
from rollcast.simulator.values.readers import Nullable as Nullable
from rollcast.simulator.values.readers import Number as Number
from rollcast.simulator.values.readers import choice as choice
from rollcast.simulator.values.readers import flag as flag
from rollcast.simulator.values.readers import mapping as mapping
from rollcast.simulator.values.readers import number as number
from rollcast.simulator.values.readers import whole as whole
from rollcast.simulator.values.words import A_MAPPING as A_MAPPING
from rollcast.simulator.values.words import check_unknown_keys as check_unknown_keys
from rollcast.simulator.values.words import join as join
from rollcast.simulator.values.words import missing as missing
from rollcast.simulator.values.words import nearest as nearest
from rollcast.simulator.values.words import short as short
from rollcast.simulator.values.words import wrong as wrong
