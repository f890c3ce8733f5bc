"""Scripts: words, expansions, arithmetic and paths through them, beside bash where it is there."""

import shlex
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.pieces import maybe, place_of, plain, shown, why
from rollcast.simulator.launches.shell.arithmetic import UndecidedError, value
from rollcast.simulator.launches.shell.follow import follow
from rollcast.simulator.launches.shell.parse import ShellSyntaxError, parse
from rollcast.simulator.launches.shell.session import Called, Found
from rollcast.simulator.launches.sources import Sources
from tests.laws import scratch

WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=12)


def followed(folder: Path, script: str, **environment: str) -> Found:
    path = folder / "run.sh"
    path.write_text(script, encoding="utf-8", newline="")
    return follow(Sources(path), path, environment)


def words(folder: Path, script: str, **environment: str) -> list[str]:
    """The words of the one command ``launch`` in a script, all of them known."""
    [call] = called(folder, script, **environment)
    texts = [plain(word) for word in call.words[1:]]
    assert None not in texts, [why(word) for word in call.words]
    return [text or "" for text in texts]


def called(folder: Path, script: str, **environment: str) -> list[Called]:
    calls = followed(folder, script, **environment).calls
    return [call for call in calls if shown(call.words[0]) == "launch"]


@given(st.lists(WORDS, min_size=1, max_size=4))
def test_quoted_words_are_read_as_they_are(
    tmp_path_factory: pytest.TempPathFactory, items: list[str]
) -> None:
    folder = scratch(tmp_path_factory)
    quoted = " ".join(map(shlex.quote, items))
    assert words(folder, f"launch {quoted}\n") == items
    assert words(folder, f'A=({quoted})\nB=("${{A[@]}}")\nlaunch "${{B[@]}}"\n') == items


NUMBERS = st.integers(0, 99).map(str)
SUMS = st.recursive(
    NUMBERS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "&", "|", "^"]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        st.tuples(inner, st.sampled_from(["<", ">", "==", "!=", "<=", ">="]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        inner.map(lambda x: f"(- {x})"),
        inner.map(lambda x: f"(~ {x})"),
    ),
    max_leaves=8,
)


def _none(name: str, index: int | None) -> str:
    raise UndecidedError(name)


def _no(name: str, index: int | None, number: int) -> None:
    raise UndecidedError(name)


@given(SUMS)
def test_arithmetic_is_that_of_whole_numbers(text: str) -> None:
    assert value(text, _none, _no) == int(eval(text, {}))  # of digits and operators alone


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2**10", 1024),
        ("2 ** 3 ** 2", 512),
        ("7 / 2", 3),
        ("-7 / 2", -3),
        ("-7 % 3", -1),
        ("1 ? 2 : 0 / 0", 2),
        ("0 && 1 / 0", 0),
        ("010", 8),
        ("0x1F", 31),
        ("2#101", 5),
        ("9**9**9", pow(9, 9**9, 2**64) - 2**64 * (pow(9, 9**9, 2**64) >= 2**63)),
        ("(1, 2)", 2),
        ("!0 + ~0", 0),
        ("1 << 70 | 3 >> 1", 65),
        ("-(1 << (1 << 34))", -1),
    ],
)
def test_arithmetic_as_bash_has_it(text: str, expected: int) -> None:
    assert value(text, _none, _no) == expected


@pytest.mark.parametrize("text", ["1/0", "(1", "1 2", "x", "2**-1", "1 ?", "@", "(" * 500])
def test_arithmetic_without_a_value_says_so(text: str) -> None:
    with pytest.raises(UndecidedError):
        value(text, _none, _no)


CASES = yaml.safe_load(Path(__file__).with_name("scripts.yaml").read_text("utf-8"))


@pytest.mark.parametrize("name", CASES)
def test_a_script_is_followed_as_bash_would(tmp_path: Path, name: str) -> None:
    script, expected = CASES[name]["script"], CASES[name]["words"]
    assert words(tmp_path, script) == expected
    if shutil.which("bash"):
        told = "launch() { printf '%s\\0' \"$@\"; }\nexport -f launch\n"
        run = subprocess.run(
            ["bash", "-c", told + script], capture_output=True, cwd=tmp_path, timeout=60
        )
        assert run.stdout.decode().split("\0")[:-1] == expected


LETTERS = st.text("ab/-. ", max_size=6)
CHANGED = ":-x :+x #a ##*a %b %%b* /a/x //a/x /#a/x /%b/x :1 :1:2 ^^ #*/ %/* //[ab]/-"
CHANGES = st.sampled_from(["", *CHANGED.split()])


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
@given(st.lists(st.tuples(LETTERS, CHANGES, st.booleans()), min_size=8, max_size=8))
def test_expansions_are_those_of_bash(
    tmp_path_factory: pytest.TempPathFactory, items: list[tuple[str, str, bool]]
) -> None:
    lines, shows = [], []
    for number, (text, change, quoted) in enumerate(items):
        lines.append(f"A{number}={shlex.quote(text)}")
        expansion = f"${{A{number}{change}}}"
        shows.append(f'"{expansion}"' if quoted else expansion)
    script = "\n".join([*lines, f"launch {' '.join(shows)} end", ""])
    told = "set -f\nlaunch() { printf '%s\\0' \"$@\"; }\n"
    run = subprocess.run(["bash", "-c", told + script], capture_output=True, timeout=60)
    assert words(scratch(tmp_path_factory), script) == run.stdout.decode().split("\0")[:-1]


# What a script does not decide


@pytest.mark.parametrize("program", ["s/a**/b/", "s/\\(a\\)/\\1/", "s/b*/x/", "p", "s/[z-a]/b/"])
def test_what_sed_would_do_with_other_programs_is_not_known(tmp_path: Path, program: str) -> None:
    [call] = called(tmp_path, f"launch $(echo aab | sed '{program}')\n")
    assert plain(call.words[1]) is None


def test_what_has_no_value_is_not_known(tmp_path: Path) -> None:
    [call] = called(tmp_path, 'launch "$MODEL" x=$N $EMPTY\n')
    assert [plain(word) for word in call.words[1:]] == [None, None, None]
    assert "MODEL has no value" in why(call.words[1])
    assert words(tmp_path, "launch $MODEL\n", MODEL="m") == ["m"]


def test_nothing_is_run(tmp_path: Path) -> None:
    there = tmp_path / "there"
    [call] = called(tmp_path, f"A=$(touch {there}; nproc)\ntouch {there}\nlaunch $A\n")
    assert "not run" in why(call.words[1])
    assert not there.exists()


@pytest.mark.parametrize(
    "script",
    [
        "J=$(cat <<EOF\ncd x\nlaunch $1 \\\n $HOSTNAME 4\nEOF\n)\n"
        "echo \"$J\" | tr -d '\\r' | kubectl exec -i $POD -c head -- /bin/bash\n",
        "ssh $POD 'bash -s' <<EOF\nlaunch $1 $HOSTNAME 4\nEOF\n",
    ],
)
def test_what_another_machine_reads_is_followed(tmp_path: Path, script: str) -> None:
    [call] = called(tmp_path, f"set -- 2\n{script}")
    assert [plain(word) for word in call.words[1:]] == ["2", None, "4"]
    assert not called(tmp_path, script.replace("bash", "less"))


def test_what_is_typed_into_a_terminal_is_followed_in_its_own_state(tmp_path: Path) -> None:
    script = (
        "B=9\ntmux new-session -d -s a\n"
        "tmux send-keys -t a 'export A=1' C-m\ntmux send-keys -t b 'A=2' Enter\n"
        'tmux send-keys -t a "launch \\$A \\\\\n $B" C-m\ntmux send-keys -t a C-c\nlaunch $A\n'
    )
    here, there = sorted(called(tmp_path, script), key=lambda call: -call.place.line)
    assert [plain(word) for word in there.words[1:]] == ["1", "9"]
    assert plain(here.words[1]) is None


def test_an_undecided_condition_leaves_what_its_branches_agree_on(tmp_path: Path) -> None:
    script = "A=1\nif [ -f /x ]; then A=2; B=3; C=4; else B=3; C=5; fi\nlaunch $A $B $C\n"
    [call] = called(tmp_path, script)
    assert [plain(word) for word in call.words[1:]] == [None, "3", None]
    assert "line 2" in why(call.words[1])
    [call] = called(tmp_path, "A=1\nif [ -f /x ]; then A=2; exit 1; fi\nlaunch $A\n")
    assert plain(call.words[1]) == "1"


@pytest.mark.parametrize(
    "test", ['-z "$X"', "! -n $X", '"$X" = ""', "-z $1", '-z "$X" -a "" == $2']
)
def test_what_nobody_gave_is_empty_in_a_question_whether_it_is(tmp_path: Path, test: str) -> None:
    script = f"A=1\nif [ {test} ]; then A=2; else A=$X; fi\nlaunch $A $X\n"
    found = followed(tmp_path, script)
    [call] = found.calls
    assert [plain(word) for word in call.words[1:]] == ["2", None]
    assert any("line 2" in note and "is taken to have no value" in note for note in found.notes)
    [call] = followed(tmp_path, script, X="7").calls if "$X" in test else found.calls
    assert plain(call.words[1]) == ("7" if "$X" in test else "2")
    [call] = followed(tmp_path, "A=1\nif [ -z $HOME ]; then A=2; fi\nlaunch $A\n").calls
    assert plain(call.words[1]) is None  # the machine gives it
    [call] = followed(tmp_path, "A=1\nif [ -z $X ]; then A=2; exit 1; fi\nlaunch $A\n").calls
    assert plain(call.words[1]) == "1"  # somebody else's case


def test_what_a_branch_may_add_is_doubted_and_the_rest_known(tmp_path: Path) -> None:
    script = "A=(--x 1)\nif nvidia-smi; then A+=(--y 2); fi\nlaunch ${A[@]}\n"
    [call] = called(tmp_path, script)
    assert [shown(word) for word in call.words[1:]] == ["--x", "1", "--y", "2"]
    assert [bool(maybe(word)) for word in call.words[1:]] == [False, False, True, True]


def test_an_early_exit_is_for_another_case(tmp_path: Path) -> None:
    found = followed(tmp_path, "if [ $# -lt 1 ]; then exit 1; fi\nlaunch a\n")
    assert [shown(word) for word in found.calls[0].words] == ["launch", "a"]
    assert "would end here" in found.notes[0]


def test_a_loop_whose_rounds_are_alike_is_followed_once(tmp_path: Path) -> None:
    script = "while true; do x=$(date); curl a; sleep 1; done\nlaunch a\n"
    calls = called(tmp_path, script)
    assert [shown(one.words[0]) for one in calls].count("curl") <= 2
    assert shown(calls[-1].words[0]) == "launch"


@pytest.mark.parametrize(
    ("ends", "launched"), [("exit 1", True), ("exit", False), ("exit 0", False)]
)
def test_an_exit_that_fails_after_python_is_for_another_case(
    tmp_path: Path, ends: str, launched: bool
) -> None:
    script = f"python -m pip install x\nif [ $# -lt 1 ]; then {ends}; fi\nlaunch a\n"
    found = followed(tmp_path, script)
    assert ("launch" in {shown(call.words[0]) for call in found.calls}) is launched


def test_a_script_has_the_variables_that_are_said_before_it(tmp_path: Path) -> None:
    (tmp_path / "one.sh").write_text("launch ${A:-1} ${B:-1}\n")
    script = "A=2 B=$((1 + 2)) bash one.sh\nenv B=4 bash one.sh\nbash one.sh\n"
    calls = called(tmp_path, script)
    assert [[plain(word) for word in call.words[1:]] for call in calls] == [
        ["2", "3"],
        ["1", "4"],
        ["1", "1"],
    ]


def test_files_that_a_script_calls_are_read_with_their_own_lines(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "m.sh").write_text("\nARGS=(\n  --layers 36\n)\n")
    script = (
        'DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"\n'
        'source "$DIR/models/m.sh"\nlaunch "${ARGS[@]}"\n'
    )
    [call] = called(tmp_path, script)
    assert [plain(word) for word in call.words[1:]] == ["--layers", "36"]
    assert str(place_of(call.words[1], call.place)) == "models/m.sh, line 3"


@pytest.mark.parametrize(
    ("script", "line"),
    [("A='\n", 1), ("\nif true; then\n", 2), ("a\n)\n", 2), ("A=(1 2\n", 1), ("\n${\n", 2)],
)
def test_what_is_no_script_is_said_with_its_line(tmp_path: Path, script: str, line: int) -> None:
    with pytest.raises(ShellSyntaxError) as caught:
        parse(script)
    assert caught.value.line >= line


@given(st.text(max_size=80) | st.text("a=$(){}[]<>|&;'\"`\\\n #!*?~-+/:%@", max_size=60))
def test_any_text_is_followed_or_refused(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    with suppress(ScenarioError, UnicodeEncodeError):
        followed(scratch(tmp_path_factory), text)


def test_a_loop_that_only_a_run_leaves_is_followed_once(tmp_path: Path) -> None:
    waits = "while true; do N=$(ray status); launch wait; {}; done\nlaunch $N\n"
    for leaves in ("if [ $N = 8 ]; then break; fi", "[ $N = 8 ] && exit"):
        calls = called(tmp_path, waits.format(leaves))
        assert [shown(call.words[1]) for call in calls] == ["wait", "$(ray status)"]
    goes_on = waits.format("[ $N = 8 ] && continue; I=x$I; [ $I = xxx ] && break")
    assert len(called(tmp_path, goes_on)) == 2  # the same call counts once
