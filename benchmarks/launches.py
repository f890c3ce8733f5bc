"""How many public launch files are read unaided: ``python -m benchmarks.launches FOLDER``.

FOLDER holds files.csv (stack and path of each launch file) and the files, with those that they
source or inherit from beside them as in their repositories; none of them is kept here. A launch is
read unaided where its stack is recognised, nothing fails, and every setting that a scenario needs
has a value; it has to ask where such a value comes from outside (a variable or an argument that the
launch leaves open) or is not said at all. ``--truth`` compares fields with what was read by eye,
``benchmarks/data/published/launches/truth.yaml``.
"""

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from benchmarks.runner import fails_in_words, markdown_table, parser
from benchmarks.validation.files import PUBLISHED
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.launched import Launched, Unresolved
from rollcast.simulator.launches.one_read import NOT_KNOWN
from rollcast.simulator.launches.read import read_launch
from rollcast.simulator.stacks.settings import Settings, value, whole
from rollcast.simulator.stacks.stack import all_stacks

TRUTH = PUBLISHED / "launches" / "truth.yaml"
Outcome = Literal["unaided", "asks", "failed"]
FACTS = ("model", "prompts", "group", "cap", "GPUs", "tensor parallel", "split")
_IDLE = frozenset(
    {
        *("seed", "run.dataset", "run.samples", "run.steps", "run.epochs", "run.temperature"),
        *("run.save_every", "run.evaluate_every", "run.logging_steps", "run.planned_groups"),
    }
)
"""Settings that neither memory nor a step's time depends on."""
_VARIABLE = re.compile(r"(\w+) (?:has no value|is not in what was read)")
_USED = re.compile(r"\$\{?(\w{2,})(?![\w.]|:[^-])")
_OUTPUT = re.compile(r"is not given|is not run|a placeholder")
_CALLED = re.compile(r"calls another file that is not there: (\S+)")
_ARGUMENT = re.compile(r"\bargs\.(\w+)")


class Judged(NamedTuple):
    """A launch file and what was made of it. launched: None where it failed, for ``failure``.
    asked: what a user would have to say, in words. open: settings without a value that the files
    do say."""

    stack: str
    path: str
    launched: Launched | None
    failure: str
    asked: tuple[str, ...] = ()
    open: tuple[Unresolved, ...] = ()

    @property
    def outcome(self) -> Outcome:
        if self.open or (self.launched is None and not self.asked):
            return "failed"
        return "asks" if self.asked else "unaided"


def listed(folder: Path, names: Path) -> list[tuple[str, str]]:
    """Stack and path of each launch file. Raises ScenarioError where the list is none."""
    with names.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows or not {"stack", "path"} <= rows[0].keys():
        raise ScenarioError(str(names), "must be a table with the columns stack and path")
    missing = [row["path"] for row in rows if not (folder / row["path"]).is_file()]
    if missing:
        raise ScenarioError(str(names), f"{missing[0]} is not there")
    return [(row["stack"], row["path"]) for row in rows]


def judged(folder: Path, stack: str, path: str) -> Judged:
    """One file read."""
    try:
        launched = read_launch(folder / path)
    except ScenarioError as error:
        absent = _absent(folder, path, str(error))
        return Judged(stack, path, None, str(error), (absent,) if absent else ())
    if launched.stack != stack:
        return Judged(stack, path, None, f"is taken for {launched.stack}")
    asked, open_ = [], []
    for one in _needed(launched):
        if _from_outside(one, launched):
            asked.append(f"{one.key} ({one.why})")
        else:
            open_.append(one)
    said = facts(launched.known)
    asked += [fact for fact in FACTS if said[fact] is None and not asked]
    unread = [note for note in launched.notes if " is not read: " in note]
    if unread and asked:
        return Judged(stack, path, None, unread[0])
    return Judged(stack, path, launched, "", tuple(asked), tuple(open_))


def _absent(folder: Path, path: str, failure: str) -> str:
    """The file that a launch calls and nobody has, by the sentence that says so; else empty."""
    if NOT_KNOWN in failure:
        return "the configuration"
    match = _CALLED.search(failure)
    if match is None:
        return ""
    name = Path(match[1])
    repository = folder.joinpath(*Path(path).parts[:2])
    near = (file for file in repository.rglob(name.name) if file.parts[-2:] == name.parts[-2:])
    return "" if next(near, None) else f"the file {name}"


def _needed(launched: Launched) -> Iterator[Unresolved]:
    """What has no value and matters."""
    table = all_stacks()[launched.stack].launch.ours
    for one in launched.unresolved:
        if one.key in table and table[one.key][0] not in _IDLE:
            yield one


def _from_outside(one: Unresolved, launched: Launched) -> bool:
    """Whether a value is none of the files': it depends on what a command prints or a program
    computes, or on a variable or an argument to which no file gives a value."""
    if match := _VARIABLE.search(one.why):
        return not _set(match[1], launched)
    if _OUTPUT.search(one.why):
        return True
    if match := _ARGUMENT.search(one.text):
        name = match[1].replace("_", "[-_]")
        said = re.compile(rf"--{name}\"[^)]*default=(?!None)")
        return not any(said.search(_text(file)) for file in launched.files)
    if match := _USED.search(one.text):
        return not _set(match[1], launched)
    return "in a run" in one.why


def _set(name: str, launched: Launched) -> bool:
    """Whether a file gives a variable a value that is none of its own or of an argument."""
    own = rf"\$\{{?(?:\d|{re.escape(name)}\b(?!:?[-=]))|[\"'\s]"  # an argument, itself, or nothing
    sets = re.compile(rf"(?m)^[^#\n]*(?<![\w.]){re.escape(name)}=[\"']?(?!{own})\S")
    return any(sets.search(_text(file)) for file in launched.files)


def _text(file: Path) -> str:
    return file.read_text("utf-8", errors="replace") if file.is_file() else ""


def facts(known: Settings) -> Mapping[str, Any]:
    """The seven that a scenario cannot do without, of a launch with its stack's defaults; None
    where neither says one."""
    nodes, per_node = whole(known, "run.nodes") or 1, whole(known, "run.gpus_per_node")
    gpus = whole(known, "cluster.trainer_gpus") or (nodes * per_node if per_node else None)
    batch = whole(known, "workload.batch_groups") or whole(known, "run.batch_rollouts")
    split = value(known, "run.strategy")
    values = (
        value(known, "model"),
        batch or whole(known, "run.batch_tokens"),
        whole(known, "workload.group_size"),
        whole(known, "workload.max_new_tokens") or whole(known, "run.max_total_tokens"),
        gpus,
        whole(known, "cluster.tensor_parallel") or 1,
        split if split is not None or gpus != 1 else "none",
    )
    return dict(zip(FACTS, values, strict=True))


def table(cases: Sequence[Judged]) -> str:
    """Counts by stack."""
    rows = []
    stacks = sorted({one.stack for one in cases})
    for name in (*stacks, "all"):
        of = [one for one in cases if name in (one.stack, "all")]
        outcomes = Counter(one.outcome for one in of)
        answered = outcomes["unaided"] + outcomes["asks"]
        said = Counter(
            fact
            for one in of
            if one.launched is not None
            for fact, its in facts(one.launched.known).items()
            if its is not None
        )
        counts = [str(outcomes[name]) for name in ("unaided", "asks", "failed")]
        share = f"{100 * answered / len(of):.1f} %"
        rows.append((name, str(len(of)), *counts, share, *(str(said[fact]) for fact in FACTS)))
    head = ("stack", "files", "unaided", "asks", "failed", "read", *FACTS)
    return markdown_table(head, rows)


# By eye


def compared(folder: Path, truth: Path) -> tuple[int, int, list[str]]:
    """Of launches that were read by eye, how many fields were compared, how many are right, and
    what is wrong. A field whose truth is null must not be found, a launch that cannot run
    must be refused."""
    fields = right = 0
    wrong = []
    for case in yaml.safe_load(truth.read_text("utf-8"))["launches"]:
        repository = case["repository"].replace("/", "+") + case.get("folder", "")
        path = f"{case['stack']}/{repository}/{case['path']}"
        one = judged(folder, case["stack"], path)
        if "refused" in case:
            fields += 1
            right += one.launched is None
            wrong += [] if one.launched is None else [f"{path}: is read, but {case['refused']}"]
            continue
        fields += len(case["settings"])
        if one.launched is None:
            wrong.append(f"{path}: {one.failure}")
            continue
        for ours, wanted in case["settings"].items():
            setting = one.launched.known.get(ours)
            got = None if setting is None else setting.value
            if got == wanted and isinstance(got, bool) is isinstance(wanted, bool):
                right += 1
            else:
                place = f" ({setting.source})" if setting else ""
                wrong.append(f"{path}: {ours} is {wanted!r}, read as {got!r}{place}")
    return fields, right, wrong


# Printed


def show(one: Judged) -> None:
    """All that was read of a launch, each with its place."""
    print(f"{one.path}: {one.outcome}")
    if one.launched is None:
        print(f"  {one.failure}")
        return
    print(f"  {one.launched.stack}, by {one.launched.entry or 'its keys'}")
    for ours, setting in sorted(one.launched.known.items()):
        print(f"  {ours}: {setting.value!r}  # {setting.source}")
    for text in one.asked:
        print(f"  asks: {text}")
    for left in one.launched.unresolved:
        print(f"  open: {left.key} = {left.text} ({left.why}; {left.place})")
    for note in one.launched.notes:
        print(f"  note: {note}")


def unknown(cases: Sequence[Judged], most: int) -> Iterator[str]:
    """Keys that the stacks' tables do not have, the most frequent first."""
    counts: Counter[tuple[str, str]] = Counter()
    for one in cases:
        if one.launched is not None:
            counts.update({(one.stack, item.key) for item in one.launched.unknown})
    for (name, key), number in counts.most_common(most):
        yield f"{number:4} {name}: {key}"


@fails_in_words
def main() -> int:
    options = parser(__doc__)
    options.add_argument("folder", type=Path, help="of the launch files")
    options.add_argument("--list", type=Path, help="table of them; default: FOLDER/files.csv")
    options.add_argument("--stack", choices=sorted(all_stacks()), help="that stack alone")
    options.add_argument("--show", metavar="PATH", help="all that is read of files with this text")
    options.add_argument("--unknown", type=int, default=0, metavar="N", help="list N unknown keys")
    options.add_argument("--truth", action="store_true", help="compare with what was read by eye")
    chosen = options.parse_args()
    if chosen.truth:
        fields, right, wrong = compared(chosen.folder, TRUTH)
        print("\n".join([*wrong, f"{right} of {fields} fields right"]))
        return int(bool(wrong))
    cases = [
        judged(chosen.folder, stack, path)
        for stack, path in listed(chosen.folder, chosen.list or chosen.folder / "files.csv")
        if chosen.stack in (None, stack) and (chosen.show or "") in path
    ]
    if chosen.show:
        for one in cases:
            show(one)
        return 0
    for one in cases:
        if one.outcome != "unaided":
            left = [f"{u.key} = {u.text} ({u.why}; {u.place})" for u in one.open]
            print(f"{one.outcome}: {one.path}: {'; '.join([one.failure, *left, *one.asked])}")
    print("\n".join(unknown(cases, chosen.unknown)))
    print(table(cases))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
