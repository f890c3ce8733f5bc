"""Rows of a trace file, CSV or JSON, by the role of their columns.

Engines, benchmarks and public traces name the same few columns differently. A name is compared
without case, signs and a plural's s: "Response tokens", ``response_tokens`` and ``responseTokens``
are one.
"""

from __future__ import annotations

import csv
import io
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple, NoReturn, cast

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results import parquet
from rollcast.simulator.results.file_starts import UNPACKERS, UTF_16, WHILE_UNPACKING, ZIP, ZSTD
from rollcast.simulator.results.read import NotJsonError, parse_json

FIELD = "workload.lengths.trace"

_MOST_BYTES = 512 << 20
_NOT_UNPACKED = {ZSTD: "zstd", ZIP: "zip"}
_NUMBER = r"[0-9][0-9.]*(?:e[+-]?[0-9]+)?"
_NUMBERS = re.compile(rf"\s*{_NUMBER}(\s+{_NUMBER})*\s*", re.ASCII)
_MOST_ALIKE = 10_000_000
_SEPARATORS = ",;\t|"
_METRICS = re.compile(
    r"^\S*generation_tokens(?:_histogram)?_(sum|count)(?:\{[^}\n]*\})? ([0-9.]+(?:e[+-]?[0-9]+)?)$",
    re.ASCII | re.MULTILINE,
)
"""A histogram of vLLM or SGLang, in Prometheus' text."""

GROUPED = ("group", "index", "prompt_tokens", "new_tokens")
TURNS = ("group", "index", "turn", "observation_tokens", "new_tokens", "environment_s")


def plain(name: str) -> str:
    """The last part of a name, without case, signs, a unit in brackets and a plural's s."""
    bare = re.sub(r"\(.*\)$|[^a-z0-9]", "", name.strip().lower().rpartition(".")[2])
    return bare.removesuffix("s")


# The names of each role; of the lists in a role, the first that a file has holds.
_NAMES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "prompt": (
        (
            *("prompt_tokens", "prompt_length", "prompt_len", "input_tokens", "input_length"),
            *("input_len", "ContextTokens", "Request tokens", "num_prefill_tokens"),
            *("prefill_tokens", "request_num_prefill_tokens", "input_token_count"),
            *("promptTokenCount", "prompt_eval_count", "tokens_evaluated", "tokens_prompt"),
            *("num_prompt_tokens", "num_input_tokens", "number_input_tokens"),
            *("input_sequence_length", "isl"),
        ),
    ),
    "response": (
        (
            *("new_tokens", "response_tokens", "response_length", "response_len"),
            *("completion_tokens", "completion_length", "output_tokens", "output_length"),
            *("output_len", "GeneratedTokens", "num_decode_tokens", "num_generated_tokens"),
            *("generation_tokens", "decode_tokens", "request_num_decode_tokens"),
            *("num_generation_tokens", "output_token_count", "candidatesTokenCount", "eval_count"),
            *("tokens_predicted", "tokens_completion"),
            *("num_output_tokens", "number_output_tokens", "output_sequence_length"),
            *("resp_len", "resp_length", "osl"),
        ),
        ("tokens", "length", "len", "n_tokens", "num_tokens"),
    ),
    "group": (
        (
            *("group", "group_id", "prompt_id", "uid", "question_id", "problem_id"),
            *("prompt_idx", "question_idx", "problem_idx", "group_index", "example_id"),
        ),
    ),
    "reward": (("reward",), ("score",)),
}
_IDS: Mapping[str, tuple[str, ...]] = {
    "prompt": ("prompt_ids", "prompt_token_ids"),
    "response": (
        *("completion_ids", "completion_token_ids", "response_ids", "response_token_ids"),
        *("output_ids", "output_token_ids"),
    ),
}
"""Keys of lists of token ids, which are counted where no key of the role has the length."""
_PERCENTILES = {"percentile", "quantile"}
_COUNTS = {"count", "frequency", "freq"}
_RESPONSES = {plain(name) for names in _NAMES["response"] for name in names}
_TEXTS = {"conversation", "message", "response", "output", "completion", "generatedtext", "text"}
ACCEPTED = (
    "give CSV, JSON lines, JSON or parquet with the length of each response in tokens (new_tokens, "
    "response_length, completion_tokens, output_len or the like), and of its prompt "
    "(prompt_tokens, input_length) and its group if known; docs/lengths.md lists all names"
)


class Row(NamedTuple):
    """One response: cells as text, None where the file has no such column.

    where: the file's name and the line. columns: the file's names for the cells.
    """

    where: str
    columns: Mapping[str, str]
    response: str
    prompt: str | None = None
    group: str | None = None
    reward: str | None = None

    def place(self, role: str) -> str:
        """Where the cell of ``role`` stands: the line and the column's name, if it has one."""
        return f"{self.where}, {self.columns[role]}" if role in self.columns else self.where


def fail(message: str) -> NoReturn:
    """Raises ScenarioError for the trace."""
    raise ScenarioError(FIELD, message)


def shown(text: str) -> str:
    """``text`` in quotes, cut if it is long."""
    text = text.strip()
    return repr(text if len(text) <= 40 else text[:37] + "...") if text else "empty"


def content_of(file: Path) -> bytes:
    """The bytes of ``file``, unpacked. Raises ScenarioError if it cannot be read."""
    try:
        if file.is_dir():
            fail(f"{file} is a folder; give a trace file")
        if not file.exists():
            fail(f"there is no file {file}; give the path of a trace")
        if not file.is_file():
            fail(f"{file} is a device or a pipe; give a trace file")
        with file.open("rb") as opened:
            content = opened.read(_MOST_BYTES + 1)
        for magic, unpack in UNPACKERS.items():
            if content.startswith(magic):
                with cast(IO[bytes], unpack(io.BytesIO(content))) as packed:
                    content = packed.read(_MOST_BYTES + 1)
                break
    except WHILE_UNPACKING as error:
        fail(f"{file} cannot be read ({getattr(error, 'strerror', None) or error})")
    if len(content) > _MOST_BYTES:
        fail(f"{file} holds over {_MOST_BYTES >> 20} MiB; give a sample of its rows")
    return content


def text_of(content: bytes, file: Path) -> str:
    """``content`` as text. Raises ScenarioError if it is none, or empty."""
    for magic, packer in _NOT_UNPACKED.items():
        if content.startswith(magic):
            fail(f"{file} is packed by {packer}; unpack it, or pack it by gzip, bzip2 or xz")
    encoding = "utf-16" if content.startswith(UTF_16) else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        fail(f"{file} is not UTF-8 text (byte {error.start}); {ACCEPTED}")
    if not text.strip():
        fail(f"{file} is empty; {ACCEPTED}")
    return text


def _first_line(text: str) -> str:
    """The first line that is neither blank nor a comment (#), or none."""
    lines = io.StringIO(text, newline="")
    return next((line for line in lines if line.strip() and not _is_comment(line)), "")


def _is_comment(line: str) -> bool:
    """Also Excel's first line, which names the separator."""
    return line.lstrip().startswith("#") or (len(line) < 8 and line.startswith("sep="))


def plain_numbers(text: str, file: Path) -> Iterator[Row] | None:
    """The lengths in a text of nothing but numbers, one or several a line; None for others."""
    if not _NUMBERS.fullmatch(_first_line(text)):
        return None
    return (
        Row(f"{file}, line {number}", {}, cell)
        for number, line in enumerate(text.splitlines(), start=1)
        if not _is_comment(line)
        for cell in line.split()
    )


def csv_table(text: str, file: Path) -> tuple[list[str], Iterator[tuple[str, list[str]]]]:
    """(names of the columns, (where, cells) of each row). Raises ScenarioError, also as rows are
    taken, for rows that are not as long as the header."""
    rows = _csv_rows(text, file)
    _, header = next(rows, ("", []))
    names = [name.strip() for name in header]
    for name in names:
        if names.count(name) > 1:
            fail(f"{file} has the column {name!r} {names.count(name)} times; once is enough")
    return names, rows


def _csv_rows(text: str, file: Path) -> Iterator[tuple[str, list[str]]]:
    separator = max(_SEPARATORS, key=_first_line(text).count)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=separator)
    width = 0
    try:
        for row in reader:
            if not "".join(row).strip() or (not width and _is_comment(row[0])):
                continue
            if width and len(row) != width:
                fail(f"{file}, line {reader.line_num} has {len(row)} cells; the header has {width}")
            width = len(row)
            yield f"{file}, line {reader.line_num}", row
    except csv.Error as error:
        fail(f"{file}, line {reader.line_num} is not valid CSV ({error})")


def of_csv(
    names: Sequence[str], rows: Iterator[tuple[str, list[str]]], file: Path
) -> Iterator[Row]:
    """The responses of a CSV table."""
    roles = roles_of(names, str(file))
    at = {role: names.index(name) for role, name in roles.items()}
    return (
        Row(where, roles, **{role: cells[i] for role, i in at.items()}) for where, cells in rows
    )


def is_histogram(names: Sequence[str]) -> bool:
    """Whether a table has the number of responses of each length."""
    return len(names) == 2 and any(plain(name) in _COUNTS for name in names)


def of_histogram(
    names: Sequence[str], rows: Iterator[tuple[str, list[str]]], file: Path
) -> Iterator[Row]:
    """As many responses of a length as the table counts, shuffled: its order is that of lengths."""
    response = roles_of(names, str(file))["response"]
    at = names.index(response)
    listed: list[Row] = []
    for where, cells in rows:
        count = cells[1 - at].strip()
        if not count.isdecimal() or int(count) > _MOST_ALIKE:
            fail(f"{where}, {names[1 - at]} is {shown(count)}; give a whole number of responses")
        listed += [Row(where, {"response": response}, cells[at])] * int(count)
    random.Random(0).shuffle(listed)
    yield from listed


def of_objects(objects: Iterator[tuple[str, object]]) -> Iterator[Row]:
    """The responses of JSON objects, each one response or, where the response's length is a list,
    several: of one group, or of single requests if the prompts are a list too."""
    roles: Mapping[str, str] | None = None
    for where, item in objects:
        if not isinstance(item, dict):
            fail(f"{where} is not a JSON object; {ACCEPTED}")
        cells = _counted(_flat(item))
        if _failed(item) and not any(plain(name) in _RESPONSES for name in cells):
            yield Row(where, {}, "0")
            continue
        if roles is None:
            _refuse_totals(cells, item, where)
            roles = roles_of(list(cells), where)
        for name in roles.values():
            if name not in cells:
                fail(f"{where} lacks {name}; {ACCEPTED}")
        choices, several = cells.get("choices"), isinstance(cells[roles["response"]], list)
        if isinstance(choices, list) and len(choices) > 1 and not several:
            fail(
                f"{where} has {len(choices)} choices and one {roles['response']} of all of them; "
                "give the length of each response"
            )
        yield from _of_object(where, {role: cells[name] for role, name in roles.items()}, roles)


def is_of_prompts(whole: Mapping[str, object]) -> bool:
    """Whether an object has, of each prompt, the lengths of its responses."""
    known = {plain(name) for lists in _NAMES.values() for names in lists for name in names}
    return len(whole) > 1 and all(
        plain(name) not in known
        and isinstance(lengths, list)
        and lengths
        and all(isinstance(one, int) for one in lengths)
        for name, lengths in whole.items()
    )


def of_lists(entries: Sequence[tuple[str, object]]) -> Iterator[Row]:
    """Lengths of responses: of single ones, or a list for each group."""
    for where, entry in entries:
        if isinstance(entry, list):
            for i, one in enumerate(entry):
                yield Row(f"{where}[{i}]", {}, _text(one), group=where)
        else:
            yield Row(where, {}, _text(entry))


def request(where: str, prompt: object, response: object) -> Row:
    """A single request."""
    return Row(where, {}, _text(response), _text(prompt))


def _counted(cells: dict[str, object]) -> dict[str, object]:
    """With the number of token ids, where nothing else says the length; of several lists, each."""
    for role, keys in _IDS.items():
        lists = [cells.pop(key) for key in keys if isinstance(cells.get(key), list)]
        names = {plain(name) for names in _NAMES[role] for name in names}
        if lists and not any(plain(name) in names for name in cells):
            ids = cast(list[object], lists[0])
            each = [len(one) for one in ids if isinstance(one, list)]
            cells[_NAMES[role][0][0]] = each if each and len(each) == len(ids) else len(ids)
    return cells


def _failed(item: Mapping[str, object]) -> bool:
    """Whether a request, or its answer within it, has an error."""
    return any(
        _failed(value) if isinstance(value, dict) and key != "error" else key == "error" and value
        for key, value in item.items()
    )


def _refuse_totals(cells: Mapping[str, object], item: Mapping[str, object], where: str) -> None:
    """Raises ScenarioError for a benchmark's summary: its totals give a mean."""
    total, requests = cells.get("total_output_tokens"), cells.get("completed")
    alone = not any(plain(name) in _RESPONSES for name in cells)
    if alone and isinstance(total, int) and isinstance(requests, int) and requests > 0:
        fail(
            f"{where} has a benchmark's totals and not the length of each response: let it write "
            "them (vLLM: --save-detailed, SGLang: --output-details), or take its mean, "
            f"workload.lengths: {{mean_tokens: {total / requests:.0f}}}"
        )
    summary = item.get("output_sequence_length")
    mean = summary.get("avg") if isinstance(summary, dict) else None
    if isinstance(mean, int | float) and mean > 0:  # of genai-perf and aiperf
        fail(
            f"{where} has a benchmark's summary and not the length of each response: give the file "
            "of its requests (aiperf: profile_export.jsonl), or take its mean, "
            f"workload.lengths: {{mean_tokens: {mean:.0f}}}"
        )


def refuse_metrics(text: str, file: Path) -> None:
    """Raises ScenarioError for what an engine says at /metrics: its sums give a mean."""
    sums = {"sum": 0.0, "count": 0.0}
    for what, value in _METRICS.findall(text[: 1 << 20]):
        sums[what] += float(value)
    if sums["count"] > 0:
        fail(
            f"{file} has an engine's metrics and not the length of each response: take their mean, "
            f"workload.lengths: {{mean_tokens: {sums['sum'] / sums['count']:.0f}}}"
        )


def _of_object(where: str, cells: Mapping[str, object], roles: Mapping[str, str]) -> Iterator[Row]:
    several = cells["response"]
    if not isinstance(several, list):
        yield Row(where, roles, **{role: _text(value) for role, value in cells.items()})
        return
    of_group = not isinstance(cells.get("prompt"), list)
    columns = {
        role: value if isinstance(value, list) else [value] * len(several)
        for role, value in cells.items()
    }
    if of_group:
        columns.setdefault("group", [where] * len(several))
    for role, values in columns.items():
        if len(values) != len(several):
            fail(
                f"{where} has {len(several)} values of {roles['response']} and {len(values)} of "
                f"{roles[role]}; give each response one"
            )
    for i in range(len(several)):
        at = {role: f"{name}[{i}]" for role, name in roles.items()}
        yield Row(where, at, **{role: _text(values[i]) for role, values in columns.items()})


def _flat(item: Mapping[str, object]) -> dict[str, object]:
    """The entries of an object and of the objects in it, by their last key; the outer ones hold.
    A value with its unit, as aiperf writes it, is the entry of its key."""
    flat = {key: value for key, value in item.items() if not isinstance(value, dict)}
    for key, value in item.items():
        if isinstance(value, dict) and value.keys() == {"value", "unit"}:
            flat.setdefault(key, value["value"])
        elif isinstance(value, dict):
            flat = {**_flat(value), **flat}
    return flat


def benchmarked(whole: Mapping[str, object], file: Path) -> list[tuple[str, object]]:
    """(where, request) of guidellm's report: the requests of each benchmark that succeeded."""
    found: list[tuple[str, object]] = []
    benchmarks = whole.get("benchmarks")
    for i, benchmark in enumerate(benchmarks if isinstance(benchmarks, list) else []):
        requests = benchmark.get("requests") if isinstance(benchmark, dict) else None
        good = requests.get("successful") if isinstance(requests, dict) else None
        where = f"{file}, benchmark {i}, request"
        found += [
            (f"{where} {j}", one) for j, one in enumerate(good if isinstance(good, list) else [])
        ]
    return found


def of_parquet(content: bytes, file: Path) -> Iterator[tuple[str, object]]:
    """(where, row) of each row of a parquet file. Raises ScenarioError."""
    try:
        for number, row in enumerate(parquet.rows(content)):
            yield f"{file}, row {number}", row
    except parquet.CannotReadError as error:
        fail(f"{file} cannot be read: {error}")


def table_of_turns(
    objects: Sequence[tuple[str, object]],
) -> tuple[list[str], Iterator[tuple[str, list[str]]]]:
    """The table, as `csv_table`, of objects of which each is a turn."""
    first = objects[0][1]
    names = list(first) if isinstance(first, dict) else []

    def rows() -> Iterator[tuple[str, list[str]]]:
        for where, item in objects:
            if not isinstance(item, dict) or item.keys() != set(names):
                fail(f"{where} has other keys than the first turn ({', '.join(names)})")
            yield where, ["" if item[name] is None else _text(item[name]) for name in names]

    return names, rows()


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def lines_of(text: str, file: Path) -> Iterator[tuple[str, object]]:
    """(where, value) of each line that is not blank. Raises ScenarioError for no JSON."""
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        where = f"{file}, line {line}"
        try:
            yield where, parse_json(content)
        except NotJsonError:
            fail(f"{where} is not valid JSON; {ACCEPTED}")


def roles_of(names: Sequence[str], where: str) -> dict[str, str]:
    """The file's name for each role that it has. Raises ScenarioError if responses have none, or a
    role has several."""
    if any(plain(name) in _PERCENTILES for name in names):
        fail(
            f"{where} has percentiles and not the length of each response; give them as "
            "workload.lengths: {p50: ..., p90: ...}"
        )
    roles = {}
    for role, lists in _NAMES.items():
        for known in lists:
            wanted = {plain(name) for name in known}
            have = [name for name in names if plain(name) in wanted]
            have = [name for name in have if "." not in name] or have
            if len(have) > 1:
                fail(
                    f"{where} has {len(have)} columns for the {role} ({', '.join(have)}); keep one"
                )
            if have:
                if role == "response" and known is lists[-1] and any("/" in n for n in names):
                    fail(
                        f"{where} is of a trainer's metrics, whose {have[0]} are those of a whole "
                        "step or more; rollcast import reads it"
                    )
                roles[role] = have[0]
                break
    if "response" not in roles:
        if "prompt" in roles or "group" in roles:
            fail(
                f"{where} has {', '.join(roles.values())} and no column of the lengths of "
                f"responses; {ACCEPTED}"
            )
        texts = [name for name in names if plain(name) in _TEXTS]
        if texts:
            fail(
                f"{where} has the text of responses ({texts[0]}) and not their lengths; count its "
                "tokens with the model's tokenizer (of the dumps of verl, TRL and ROLL, rollcast "
                f"import --tokenizer does so); {ACCEPTED}"
            )
        fail(f"{where} has no header that is known ({shown(','.join(names))}); {ACCEPTED}")
    return roles
