"""Trace files: every format is read, and everything that can be wrong with one is named."""

import bz2
import contextlib
import gzip
import json
import lzma
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values.options import read
from rollcast.simulator.workload import traces
from rollcast.simulator.workload.section import WorkloadSection, build_workload
from rollcast.simulator.workload.traces import TraceGroup, read_trace
from tests.laws import examples, scratch
from tests.refusals import refuses


@pytest.fixture
def write(tmp_path):
    def written(content: str | bytes, name: str = "trace.csv") -> Path:
        file = tmp_path / name
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    return written


FLAT = {
    "requests": "prompt_tokens,new_tokens\n10,5\n20,6\n30,7\n",
    "Mooncake": "timestamp_ms,input_length,output_length,hash\n0,10,5,a\n0,20,6,b\n9,30,7,c\n",
    "Azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023,10,5\n2023,20,6\n2024,30,7\n",
    "Vidur": "num_decode_tokens,num_prefill_tokens,arrived_at\n5,10,0.1\n6.0,20,0.2\n7,30,0.3\n",
    "BurstGPT": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,GPT-4,10,5,15,API log\n9,GPT-4,20,6,26,API log\n9,ChatGPT,30,7,37,API log\n",
    "LMCache": ",prompt_tokens,generation_tokens,ttft\n0,10,5,1\n1,20,6,1\n2,30,7,1\n",
    "Vidur's results": "Request Id,request_num_prefill_tokens,request_num_decode_tokens\n"
    "0,10,5\n1,20,6\n2,30,7\n",
    "a name twice": "prompt_tokens,new_tokens,usage.new_tokens\n10,5,1\n20,6,1\n30,7,1\n",
    "a frame of nested JSON": "id,usage.prompt_tokens,usage.completion_tokens,"
    "usage.completion_tokens_details.reasoning_tokens\n0,10,5,1\n1,20,6,1\n2,30,7,1\n",
}
MOONCAKE_LINES = "\n".join(
    json.dumps({"timestamp": 0, "input_length": p, "output_length": n, "hash_ids": [1, 2]})
    for p, n in [(10, 5), (20, 6), (30, 7)]
)


@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize(
    "dress",
    [
        *("plain", "bom", "crlf", "blank lines", "no last newline", "semicolons", "tabs"),
        *("notes", "gz", "bz2", "xz", "utf-16", "Excel"),
    ],
)
def test_request_formats_are_told_by_their_header(write, name, dress):
    text = FLAT[name]
    dressed = {
        "plain": text,
        "bom": "\ufeff" + text,
        "crlf": text.replace("\n", "\r\n"),
        "blank lines": text.replace("\n", "\n\n"),
        "no last newline": text.rstrip(),
        "semicolons": text.replace(",", ";"),
        "tabs": text.replace(",", "\t"),
        "notes": "# mine, of May\n" + text,
        "gz": gzip.compress(text.encode()),
        "bz2": bz2.compress(text.encode()),
        "xz": lzma.compress(text.encode()),
        "utf-16": text.encode("utf-16"),
        "Excel": "sep=;\r\n" + text.replace(",", ";").replace(";5", ";5,0"),
    }[dress]
    trace = read_trace(write(dressed))
    assert (trace.format, trace.grouped, trace.has_rewards) == ("requests", False, False)
    requests = [(group.prompt_tokens, group.new_tokens) for group in trace.groups]
    assert requests == [(10, (5,)), (20, (6,)), (30, (7,))]


AIPERF = (
    '{"metadata": {"session_num": 1}, "metrics": {"request_latency": {"value": 9.5, "unit": "ms"},'
    '"input_sequence_length": {"value": %d, "unit": "tokens"},'
    '"output_sequence_length": {"value": %d, "unit": "tokens"}}, "error": null}'
)
USAGE = '{"id": 1, "response": {"body": {"usage": {"prompt_tokens": %d, "completion_tokens": %d}}}}'


@pytest.mark.parametrize(
    "text",
    [
        # what ``vllm bench serve --save-detailed`` writes
        '{"date": "1", "input_lens": [10, 20, 30], "output_lens": [5, 6, 7], "ttfts": [0.1]}',
        # SGLang's ``bench_serving --output-details``: one line for each run
        '{"input_lens": [10], "output_lens": [5]}\n{"input_lens": [20, 30], "output_lens": [6, 7]}',
        # the results of a batch of OpenAI's API
        "\n".join(USAGE % pair for pair in ((10, 5), (20, 6), (30, 7))),
        # with one that expired
        '{"id": 0, "response": null, "error": {"code": "batch_expired"}}\n'
        + "\n".join(USAGE % pair for pair in ((10, 5), (20, 6), (30, 7)))
        + '\n{"id": 4, "response": {"body": {"error": {"code": 400}}}}',
        # Gemini's usage, Ollama's and llama.cpp's
        "\n".join(
            f'{{"usageMetadata": {{"promptTokenCount": {p}, "candidatesTokenCount": {n}}}}}'
            for p, n in ((10, 5), (20, 6), (30, 7))
        ),
        "\n".join(
            f'{{"prompt_eval_count": {p}, "eval_count": {n}, "prompt_eval_duration": 1}}'
            for p, n in ((10, 5), (20, 6), (30, 7))
        ),
        "\n".join(
            f'{{"tokens_evaluated": {p}, "tokens_predicted": {n}, "truncated": false}}'
            for p, n in ((10, 5), (20, 6), (30, 7))
        ),
        # Bailian's traces number the turns of a conversation, each of which is a request
        '{"chat_id": 1, "turn": 1, "input_length": 10, "output_length": 5}\n'
        '{"chat_id": 1, "turn": 2, "input_length": 20, "output_length": 6}\n'
        '{"chat_id": 2, "turn": 1, "input_length": 30, "output_length": 7}\n',
        # aiperf's ``profile_export.jsonl``: each value with its unit
        "\n".join(AIPERF % pair for pair in ((10, 5), (20, 6), (30, 7))),
        # llmperf's individual responses
        '[{"number_input_tokens": 10, "number_output_tokens": 5, "number_total_tokens": 15},'
        '{"number_input_tokens": 20, "number_output_tokens": 6, "number_total_tokens": 26},'
        '{"number_input_tokens": 30, "number_output_tokens": 7, "number_total_tokens": 37}]',
        # guidellm's report
        '{"args": {}, "benchmarks": [{"requests": {"successful": ['
        '{"prompt_tokens": 10, "output_tokens": 5}, {"prompt_tokens": 20, "output_tokens": 6}],'
        '"errored": [{"prompt_tokens": 9, "output_tokens": 1}]}}, {"requests": {"successful": ['
        '{"prompt_tokens": 30, "output_tokens": 7}]}}]}',
        '[{"input_len": 10, "output_len": 5}, {"input_len": 20, "output_len": 6},'
        '{"input_len": "30", "output_len": 7.0}]',
    ],
)
def test_json_of_engines_and_their_benchmarks(write, text):
    trace = read_trace(write(text, "trace.json"))
    assert trace.format == "requests"
    requests = [(group.prompt_tokens, group.new_tokens) for group in trace.groups]
    assert requests == [(10, (5,)), (20, (6,)), (30, (7,))]


@pytest.mark.parametrize(
    ("text", "rewards"),
    [
        ("uid,prompt_length,response_length,score\nb,9,5,1\na,8,7,0\nb,9,6,0.5\n", True),
        ("prompt_idx,prompt_len,n_tokens\nb,9,5\na,8,7\nb,9,6\n", False),
        ("group_index,prompt_len,response_length\nb,9,5\na,8,7\nb,9,6\n", False),
        (
            '{"prompt_id": "b", "prompt_len": 9, "tokens": 5}\n'
            '{"prompt_id": "a", "prompt_len": 8, "tokens": 7}\n'
            '{"prompt_id": "b", "prompt_len": 9, "tokens": 6}',
            False,
        ),
        (
            '{"prompt_tokens": 9, "response_lengths": [5, 6], "rewards": [1, 0.5]}\n'
            '{"prompt_tokens": 8, "response_lengths": [7], "rewards": [0]}',
            True,
        ),
        ("[[5, 6], [7]]", False),
        ('{"b": [5, 6], "a": [7]}', False),
        (
            "\n".join(
                json.dumps({"prompt_id": g, "prompt_ids": [0] * p, "completion_ids": [1] * n})
                for g, p, n in (("b", 9, 5), ("a", 8, 7), ("b", 9, 6))
            ),
            False,
        ),
    ],
)
def test_groups_are_kept_wherever_a_file_tells_them(write, text, rewards):
    trace = read_trace(write(text, "trace.txt"))
    if not trace.has_prompts:
        trace = trace.prompted(9)
    first, second = trace.groups
    assert (trace.grouped, first.prompt_tokens, first.new_tokens) == (True, 9, (5, 6))
    assert (second.new_tokens, trace.has_rewards) == ((7,), rewards)
    assert (first.rewards, second.rewards) == (((1.0, 0.5), (0.0,)) if rewards else (None, None))


def test_groups_too_small_for_the_run_are_left_out_and_said(write):
    trace = read_trace(write("[[5, 6], [7], [8, 9, 10]]"))
    left = trace.dealt(2)
    assert [group.new_tokens for group in left.groups] == [(5, 6), (8, 9, 10)]
    (said,) = left.warnings
    assert "1 of 3 groups" in said
    assert "fewer than 2 rollouts" in said
    assert trace.dealt(4) is trace


def test_a_histogram_has_as_many_responses_as_it_counts(write):
    trace = read_trace(write("count,tokens\n2,5\n0,6\n1,7\n"))
    assert sorted(group.new_tokens for group in trace.groups) == [(5,), (5,), (7,)]
    text = "tokens,count\n" + "".join(f"{n},3\n" for n in range(1, 200))
    assert "neighbours" not in read_trace(write(text)).dealt(4).warnings[0]


def test_groups_of_one_response_each_are_requests(write):
    trace = read_trace(write("uid,tokens,reward\na,5,1\nb,6,0\nc,7,1\nd,8,1\n"))
    assert trace.dealt(1).has_rewards
    pairs = trace.prompted(9).dealt(2)
    assert [group.new_tokens for group in pairs.groups] == [(5, 6), (7, 8)]
    assert "its rows (4 in all) were dealt into 2 groups of 2" in pairs.warnings[0]


def test_failed_requests_are_left_out_and_counted(write):
    trace = read_trace(write(FLAT["BurstGPT"] + "9,GPT-4,40,0,40,API log\n"))
    assert len(trace.groups) == 3
    assert "left out 1 response of 0 tokens" in trace.warnings[0]


def test_mooncake_lines_and_plain_json(write):
    for text in (MOONCAKE_LINES, MOONCAKE_LINES.replace("\n", "\n\n") + "\n"):
        trace = read_trace(write(text, "trace.jsonl"))
        assert [group.prompt_tokens for group in trace.groups] == [10, 20, 30]
        assert [group.new_tokens for group in trace.groups] == [(5,), (6,), (7,)]
    single = read_trace(write(MOONCAKE_LINES.split("\n")[0], "one.jsonl"))
    assert len(single.groups) == 1
    plain = read_trace(write('{"prompt": 512,\n "out": [3, 4]}', "plain.json"))
    assert [(g.prompt_tokens, g.new_tokens) for g in plain.groups] == [(512, (3,)), (512, (4,))]


@pytest.mark.parametrize(
    "text",
    [
        *("step,response_length\n1,5\n1,6\n", "new_tokens\n5\n6\n", "[5, 6]"),
        *("len\n5\n6\n", "Response Length (tokens)\n5\n6\n", "osl\n5\n6\n"),
        *("5\n6\n", "# np.savetxt\n5.0\n6.0\n", "5 6", '{"lengths": [5, 6]}'),
        *("5.000000000000000000e+00\n6.000000000000000000e+00\n", "len\n0.5e1\n6E0\n"),
        "response_length\n0\n5\n6\n",  # an empty response is left out
    ],
)
def test_responses_alone_take_their_prompt_from_the_scenario(write, text):
    file = write(text)
    trace = read_trace(file)
    assert (trace.format, trace.grouped, trace.has_prompts) == ("responses", False, False)
    lengths = {"lengths": {"trace": str(file), "repeat": True}, "max_new_tokens": 100}
    section = read(WorkloadSection, {**lengths, "batch_groups": 1, "group_size": 2}, "workload")
    with refuses("workload.prompt_tokens", "lengths of responses alone; give one number"):
        build_workload(section, 0)
    drawn = build_workload(replace(section, prompt_tokens=7), 0).draw(0, 2)
    assert (drawn.prompt_tokens, list(drawn.new_tokens)) == (7, [5, 6])


def test_parquet_is_read_as_json_lines_are(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    def trace(**columns):
        parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
        return read_trace(tmp_path / "t.parquet")

    alone = trace(response_length=[5, 6])
    assert [group.new_tokens for group in alone.groups] == [(5,), (6,)]
    (group,) = trace(uid=["a", "a"], prompt_len=[9, 9], tokens=[5.0, 6.0], score=[1, 0.5]).groups
    assert group == TraceGroup(9, (((9, 5, 0.0),), ((9, 6, 0.0),)), (1.0, 0.5))
    with refuses("workload.lengths.trace", "t.parquet has no rows"):
        trace(response_length=[])
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and no more")
    with refuses("workload.lengths.trace", "t.parquet cannot be read: no parquet file"):
        read_trace(tmp_path / "t.parquet")


def test_turns_in_json_lines_are_those_of_the_table(write):
    names = ["group", "index", "turn", "observation_tokens", "new_tokens", "environment_s"]
    rows = [[0, 0, 0, 9, 5, 1.5], [0, 0, 1, 3, 6, 0.0], [0, 1, 0, 9, 7, 0.0]]
    table = "\n".join(",".join(map(str, row)) for row in [names, *rows])
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    read = read_trace(write("\n".join(lines)))
    assert read == read_trace(write(table))
    assert read.groups[0].rollouts[0] == ((9, 5, 1.5), (3, 6, 0.0))
    with refuses("workload.lengths.trace", "line 2 has other keys than the first turn"):
        read_trace(write("\n".join([lines[0], '{"turn": 1}'])))


def test_groups_come_in_rising_order_with_their_rollouts_by_index(write):
    text = (
        "reward,index,group,new_tokens,prompt_tokens,note\n"
        '0.5,1,7,11,100,"a, b"\n-1,0,7,10,100,\n1e0,0,3,20,200,\n'
    )
    trace = read_trace(write(text))
    assert (trace.format, trace.grouped, trace.has_rewards) == ("rollcast", True, True)
    first, second = trace.groups
    assert (first.prompt_tokens, first.new_tokens, first.rewards) == (200, (20,), (1.0,))
    assert (second.prompt_tokens, second.new_tokens, second.rewards) == (100, (10, 11), (-1.0, 0.5))
    assert trace.dealt(99) is trace


def test_requests_are_dealt_into_consecutive_groups(write):
    trace = read_trace(write(FLAT["Azure"])).dealt(2)
    (group,) = trace.groups
    assert (group.prompt_tokens, group.new_tokens) == (10, (5, 6))
    assert trace.grouped
    assert "1 group of 2 consecutive rows, 1 left over" in trace.warnings[0]
    single = read_trace(write(FLAT["Azure"])).dealt(1)
    assert [group.prompt_tokens for group in single.groups] == [10, 20, 30]
    with pytest.raises(ScenarioError, match="3 requests, too few for one group of 4"):
        read_trace(write(FLAT["Azure"])).dealt(4)


def test_rows_in_an_order_make_groups_of_like_lengths_and_it_is_said(write):
    sizes = [str(7 * n % 101 + 1) for n in range(100)]
    for rows, said in ((sizes, False), (sorted(sizes, key=int), True)):
        (note,) = read_trace(write("\n".join(rows))).dealt(5).warnings
        assert ("neighbours are of like lengths" in note) == said


G = "group,index,prompt_tokens,new_tokens,reward\n"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty"),
        ("  \n \n", "is empty"),
        (G, "a header and no rows"),
        (FLAT["Azure"].split("\n")[0], "a header and no rows"),
        (b"prompt_tokens,new_tokens\n1,\xff\n", "not UTF-8 text .byte 27"),
        (b"\x1f\x8b\x08\x00binary", "cannot be read"),
        (gzip.compress(FLAT["Azure"].encode(), mtime=0)[:-12], "cannot be read"),
        ('{"conversations": [], "id": 1}', "the text of responses .conversations. and not their"),
        ("12,34\n56,78\n", "no header that is known .*"),
        ("len\n5.5e+00\n", "line 2, len is '5.5e.00'; a length is a whole number"),
        ("len\n5e-01\n", "a length is a whole number"),
        ("len\n1e30\n", "a length is a whole number"),
        (
            '{"output_sequence_length": {"unit": "tokens", "avg": 550.1}, "other": {"avg": 9}}',
            "a benchmark's summary and not .*profile_export.jsonl.*{mean_tokens: 550}",
        ),
        ("percentile,tokens\n50,300\n", "has percentiles and not the length of each response; gi"),
        ("tokens,count\n5,x\n", "line 2, count is 'x'; give a whole number of responses"),
        (b"\x28\xb5\x2f\xfdrest", "is packed by zstd; unpack it"),
        (
            '{"choices": [{"index": 0}, {"index": 1}], "usage": {"completion_tokens": 30}}',
            "has 2 choices and one completion_tokens of all of them",
        ),
        (
            "step,num_tokens,completions/mean_length\n1,5000,200\n2,10000,210\n",
            "is of a trainer's metrics, whose num_tokens are .* rollcast import reads it",
        ),
        ("tokens;n\n1,000;2\n", "line 2, tokens is '1,000'"),
        ('{"completed": 4, "total_output_tokens": 30}', "lengths: {mean_tokens: 8}"),
        (
            "# HELP x\n"
            'vllm:request_generation_tokens_bucket{le="1.0"} 0.0\n'
            'vllm:request_generation_tokens_sum{engine="0"} 3e+01\n'
            'vllm:request_generation_tokens_count{engine="0"} 4.0\n',
            "lengths: {mean_tokens: 8}",
        ),
        ("a\x00b\n1\n", "no header that is known"),
        ("prompt_tokens\n5\n", "no column of the lengths of responses; give"),
        ("prompt_tokens,group,index\n5,0,0\n", "lacks the column new_tokens"),
        ("ContextTokens,output\n5,5\n", "ContextTokens and no column of the lengths of responses"),
        (
            "input_length,output_len,output_tokens\n5,5,5\n",
            "2 columns for the response",
        ),
        ("uid,tokens\na,5\na,0\n", "line 3, tokens is '0'"),
        ("uid,prompt_len,tokens\na,5,5\na,6,5\n", "gives group 'a' a prompt of 6 tokens, an ear"),
        ("uid,tokens,reward\na,5,1\na,6,\n", "group 'a' has rewards of 1 of 2 responses"),
        ("uid,tokens,reward\na,5,1\nb,6,\n", "rewards of some responses"),
        ("uid,tokens,reward\na,5,good\n", "reward is 'good'"),
        ("input_len,output_len\n5,0\n", "1 responses, all of 0 tokens"),
        (
            '{"input_lens": [5, 6], "output_lens": [5]}',
            "1 values of output_lens and 2",
        ),
        ('{"input_lens": [5], "output_lens": []}', "0 values of output_lens and 1 of input_lens"),
        ('{"output_lens": [[5]]}', r"output_lens\[0\] is '\[5\]'"),
        ('{"tokens": [5, 6]}\n{"tokens": 7}', "groups of responses beside single requests"),
        ('{"input": "text", "output": "text", "score": 1, "step": 1}', "the text of .* .output."),
        ("[[5], 6]", "groups of responses beside single requests"),
        ('[{"tokens": 5}, 6]', "entry 1 is not a JSON object"),
        ("new_tokens,prompt_tokens,new_tokens\n5,5,5\n", "'new_tokens' 2 times"),
        (G + "0,0,9,9\n", "line 2 has 4 cells; the header has 5"),
        (G + "0,0,9,9,0,1\n", "line 2 has 6 cells"),
        (G + "0,0,9,9.5,0\n", "line 2, new_tokens is '9.5'"),
        (G + "0,0,9,9,1\n\n0,1,9,-3,0\n", "line 4, new_tokens is '-3'"),
        (G + "0,0,0,9,1\n", "line 2, prompt_tokens is '0'"),
        (G + "0,0,9,nan,1\n", "new_tokens is 'nan'"),
        (G + "0,0,9,,1\n", "new_tokens is empty"),
        (G + "0,0,9,1e-3,1\n", "new_tokens is '1e-3'"),
        (G + "0,0,9,1_000,1\n", "new_tokens is '1_000'"),
        (G + "0,0,9,٣,1\n", "new_tokens is"),
        (G + "0,0,9,200000000,1\n", "over 100000000 tokens"),
        (G + "0,0,9," + "9" * 5000 + ",1\n", r"new_tokens is '9+\.\.\.'"),
        (G + "-1,0,9,9,1\n", "group is '-1'"),
        (G + "0,x,9,9,1\n", "index is 'x'"),
        (G + "0,0,9,9,good\n", "reward is 'good'; a reward is a finite number"),
        (G + "0,0,9,9,inf\n", "reward is 'inf'"),
        (G + "0,0,9,9,\n", "reward is empty"),
        (G + "0,0,9,9,1\n0,0,9,8,1\n", "line 3 repeats group 0, index 0"),
        (G + "0,0,9,9,1\n0,2,9,8,1\n", "group 0 has 2 rollouts and none with index 1"),
        (G + "0,0,9,9,1\n0,1,8,8,1\n", "line 3 gives group 0 a prompt of 8 tokens"),
        (G + '0,0,9,"9,1\n', "not valid CSV"),
        (G + "0,0,9," + "x" * 200_000 + ",1\n", "not valid CSV"),
        ('{"prompt": 5}', "no header that is known .'prompt'"),
        ("[]", "holds no response"),
        ("[5, -1]", "entry 1 is '-1'"),
        ("tokens,length\n5,5\n", "2 columns for the response .tokens, length"),
        ("response_length\n-5\n", "line 2, response_length is '-5'"),
        ('{"prompt": 5, "out": []}', '"out" is not a list of lengths'),
        ('{"prompt": 5, "out": 7}', '"out" is not a list of lengths'),
        ('{"prompt": 5, "out": [4, -1]}', r'"out"\[1\] is \'-1\''),
        ('{"prompt": true, "out": [4]}', "is 'true'"),
        ('{"prompt": 5, "out": [null]}', "is 'null'"),
        ('{"prompt": 5, "out": [4,', "not valid JSON"),
        ("[" * 200_000, "not valid JSON"),
        (MOONCAKE_LINES + "\n{oops", "line 4 is not valid JSON"),
        (MOONCAKE_LINES + "\n7", "line 4 is not a JSON object"),
        (MOONCAKE_LINES + '\n{"input_length": 4}', "line 4 lacks output_length"),
        (MOONCAKE_LINES.replace("6", '"six"'), "line 2, output_length is 'six'"),
        (MOONCAKE_LINES.replace("6", "6.5"), "line 2, output_length is '6.5'"),
        (MOONCAKE_LINES.replace("6", "1e999"), "line 2, output_length is 'Infinity'"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_sentence(write, content, says):
    with refuses("workload.lengths.trace", says):
        read_trace(write(content))


def test_a_trace_is_parsed_once_until_it_changes(write):
    file = write(FLAT["Azure"])
    first = read_trace(file)
    assert read_trace(str(file)) is first
    file.write_text(FLAT["Azure"].replace(",5", ",8"))
    assert read_trace(file).groups[0].new_tokens == (8,)


def test_what_is_not_a_file_is_refused(tmp_path):
    for path, says in ((tmp_path, "is a folder"), (tmp_path / "none.csv", "there is no file")):
        with refuses("workload.lengths.trace", says):
            read_trace(path)


@settings(max_examples=examples(120), deadline=None)
@given(content=st.one_of(st.binary(max_size=200), st.text(max_size=200), st.text(',01\n{}"[]ag')))
def test_no_file_makes_the_reader_fail_in_another_way(tmp_path_factory, content):
    file = scratch(tmp_path_factory) / "fuzzed"
    file.write_bytes(content if isinstance(content, bytes) else content.encode(errors="replace"))
    with contextlib.suppress(ScenarioError):
        assert read_trace(file).groups  # numbers alone are lengths


@settings(max_examples=examples(80), deadline=None)
@given(
    header=st.sampled_from([G, *(text.split("\n")[0] + "\n" for text in FLAT.values())]),
    rows=st.text('0123456789.,-"\n e', max_size=60),
)
def test_rows_that_are_read_hold_lengths_and_others_are_refused(tmp_path_factory, header, rows):
    file = scratch(tmp_path_factory) / "fuzzed.csv"
    file.write_text(header + rows, encoding="utf-8")
    try:
        trace = read_trace(file)
    except ScenarioError as error:
        assert error.field == "workload.lengths.trace"  # noqa: PT017
        return
    assert trace.groups
    for group in trace.groups:
        assert group.prompt_tokens >= 1
        assert min(group.new_tokens) >= 1


CELL = st.sampled_from(["0", "1", "2", "7", "7", "7.0", "", "x"])


@given(rows=st.lists(st.tuples(*[CELL] * 5), min_size=1, max_size=6), grouped=st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_columns_are_read_as_rows_are(tmp_path_factory, rows, grouped):
    head = "group,index,prompt_tokens,new_tokens,reward" if grouped else "id,at,isl,osl,x"
    if grouped:  # most of them whole
        rows = [(str(n // 2), str(n % 2), "7", *row[3:]) for n, row in enumerate(rows)]
    file = scratch(tmp_path_factory) / "trace.csv"
    file.write_text("\n".join([head, *(",".join(row) for row in rows)]) + "\n")
    said = []
    for quick in (True, False):
        traces._parsed.cache_clear()
        with pytest.MonkeyPatch.context() as patch:
            if not quick:
                patch.setattr(traces, "_of_columns", lambda *_: None)
            try:
                said.append(read_trace(file))
            except ScenarioError as error:
                said.append(str(error))
    assert said[0] == said[1]


def test_what_never_ends_is_not_read():
    with pytest.raises(ScenarioError, match="is a device or a pipe"):
        read_trace("/dev/zero")
