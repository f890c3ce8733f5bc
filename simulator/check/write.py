"""The folder that ``rollcast check --out`` leaves."""

from __future__ import annotations

from pathlib import Path

from rollcast.simulator.check.answer import Answer
from rollcast.simulator.check.words import headline
from rollcast.simulator.launches.parts import to_yaml
from rollcast.simulator.results.schema import CHECK_JSON, CHECK_SCENARIO, REPORT
from rollcast.simulator.results.write import write_json


def write_check(folder: Path, answer: Answer, report: str) -> None:
    """Writes the answer, its scenario with the place of every value, and the page."""
    write_json(folder / CHECK_JSON.name, answer.plain())
    question = answer.question
    head = f"{question.name}, as rollcast check read it.\n{headline(answer)}"
    (folder / CHECK_SCENARIO.name).write_text(to_yaml(question.written, head), "utf-8")
    (folder / REPORT.name).write_text(report, "utf-8")
