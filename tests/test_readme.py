"""The examples in the README do what it says."""

import re
from pathlib import Path

import pytest

from rollcast.simulator.scenario.file import parse_scenario
from rollcast.simulator.studies.simulate import from_raw, simulate

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_the_python_example_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    (code,) = blocks("python")
    exec(compile(code, "README.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["sync", "april", "april+pods(keep=4)"]
    seconds = [float(line.split()[1]) for line in lines]
    assert seconds[0] > seconds[1] > seconds[2] > 0


def test_the_scenario_runs() -> None:
    (text,) = blocks("yaml")
    result = simulate(from_raw(parse_scenario(text), "steps=1", "workload.group_size=16"))
    assert result.summary["policy"] == "april"
    assert result.run.steps[0].trained_rollouts == 32 * 16


@pytest.mark.parametrize(
    "page", ["README.md", *(f"docs/{p.name}" for p in (ROOT / "docs").iterdir())]
)
def test_what_a_page_links_to_exists(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    for target in re.findall(r"\]\(([^)]+)\)", text):
        path, _, heading = target.partition("#")
        linked = (ROOT / page).parent / path if path else ROOT / page
        assert linked.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)$", linked.read_text("utf-8"), re.MULTILINE)
            assert heading in [
                re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles
            ]


def test_it_is_one_page() -> None:
    assert len(TEXT.splitlines()) < 165
