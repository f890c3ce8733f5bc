"""The page itself, on NiceGUI: sliders on the left, what `view` draws on the right."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool
from itertools import groupby
from typing import Any
from urllib.parse import urlsplit

from nicegui import app, background_tasks, ui
from nicegui.events import GenericEventArguments

from rollcast.simulator.errors import RollcastError
from rollcast.simulator.explore.knobs import (
    APART,
    Knob,
    chosen,
    described,
    knobs,
    price_of,
    starts,
    tried,
)
from rollcast.simulator.explore.questions import Memory, Questions
from rollcast.simulator.explore.view import Asked, placed, sentence, view
from rollcast.simulator.explore.work import Choice
from rollcast.simulator.planner.whole_run import work_of
from rollcast.simulator.policies.registry import SYNCHRONOUS
from rollcast.simulator.report.page import Markup, joined, resource, script, style
from rollcast.simulator.scenario.plan_section import RunSection
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.simulate import from_raw

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_HERE = frozenset({"127.0.0.1", "localhost", "::1"})
_POLICY_VIOLATION = 1008


class SameOriginOnly:
    """An ASGI application that refuses requests and sockets of other sites."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request or socket."""
        kind = scope["type"]
        if kind not in ("http", "websocket") or is_allowed(_texts(scope["headers"])):
            await self._app(scope, receive, send)
        elif kind == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        else:
            head = [(b"content-type", b"text/plain; charset=utf-8")]
            await send({"type": "http.response.start", "status": 403, "headers": head})
            await send({"type": "http.response.body", "body": b"Not for other sites.\n"})


def is_allowed(headers: Mapping[str, str]) -> bool:
    """Whether a request comes from the page itself or the user's navigation.

    headers: by lower-case name. The host must be this machine's, on any port; the origin, if sent,
    the same host. Without an origin, embedding by other sites is refused.
    """
    host = headers.get("host", "")
    if _name(host) not in _HERE:
        return False
    if "origin" in headers:
        return headers["origin"] in (f"http://{host}", f"https://{host}")
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return True
    return headers.get("sec-fetch-dest") == "document"  # a link that somebody follows


def _name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _texts(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}


HOST = "127.0.0.1"
_ELSEWHERE = (0.5, 2.0)
_AWAY_S = 60.0
"""For which a browser may be silent: a page that is given up loads anew, without its settings."""


class Page:
    """One browser's page: settings, questions, answer."""

    def __init__(self, scenario: Scenario, questions: Questions) -> None:
        self._scenario, self._questions = scenario, questions
        self._knobs = knobs(scenario)
        self._values = starts(self._knobs)
        self._sliders: dict[str, ui.element] = {}
        self._shown_at: dict[str, Callable[[int], None]] = {}
        with ui.element("div").classes("explore"):
            self._headline = _text("div", "").classes("said").props("aria-live=polite")
            with ui.element("div").classes("knobs"):
                _text("h1", scenario.name)
                for part, members in groupby(self._knobs, key=lambda knob: knob.part):
                    _text("h2", part)
                    for knob in members:
                        self._control(knob)
            self._answers = _text("div", "").classes("answers")
        self._follow()
        self._refresh()

    def _control(self, knob: Knob) -> None:
        box = ui.element("div").classes("knob").props(f'data-knob="{knob.name}"')
        if knob.meaning:
            box.props["data-tip"] = knob.meaning
        with box:
            _text("span", knob.label).classes("label")
            value = _text("span", knob.write(knob.start)).classes("value")
            with ui.element("div").classes("control"):
                if knob.form == "slider":
                    self._slider(knob, value)
                else:
                    self._select(knob, value)

    def _slider(self, knob: Knob, caption: Any) -> None:
        slider = ui.element("input").props("type=range min=0 step=1")
        slider.props["max"] = len(knob.values) - 1
        # Its value is the browser's: one that we sent back would be late, and undo the next move.
        slider.props["defaultValue"] = knob.position
        slider.props["aria-label"] = knob.label

        def show(position: int) -> None:
            text = knob.write(knob.values[position])
            caption.set_content(joined(text))
            slider.props["aria-valuetext"] = text

        def moved(event: GenericEventArguments) -> None:
            position = min(max(int(event.args), 0), len(knob.values) - 1)
            show(position)
            self._set(knob.name, knob.values[position])

        show(knob.position)
        slider.on("input", moved, throttle=0.05, js_handler="(e) => emit(Number(e.target.value))")
        self._sliders[knob.name] = slider
        self._shown_at[knob.name] = show

    def _select(self, knob: Knob, text: Any) -> None:
        text.set_visibility(False)
        options = {i: knob.write(value) for i, value in enumerate(knob.values)}

        def moved(position: int) -> None:
            self._set(knob.name, knob.values[position])

        make: Callable[..., Any] = ui.toggle if knob.form == "toggle" else ui.select
        control = make(options, value=knob.position, on_change=lambda event: moved(event.value))
        control.props["aria-label"] = knob.label
        if knob.form == "select":
            control.props("dense outlined options-dense").classes("w-full")
        else:
            control.props("dense no-caps unelevated")

    def _set(self, name: str, value: Any) -> None:
        self._values[name] = value
        self._follow()
        if name == "gpu" and "usd_per_hour" in self._sliders:
            price = next(knob for knob in self._knobs if knob.name == "usd_per_hour")
            self._put(price, price_of(value))
        self._refresh()

    def _put(self, knob: Knob, value: Any) -> None:
        """Moves a slider."""
        self._values[knob.name] = value
        position = knob.values.index(value)
        self._shown_at[knob.name](position)
        slider = self._sliders[knob.name]
        ui.run_javascript(f"getHtmlElement({slider.id}).value = {position}")

    def _follow(self) -> None:
        """Disables settings without effect."""
        self._sliders["trainer_share"].props["disabled"] = self._values["placement"] != APART

    def _refresh(self) -> None:
        background_tasks.create(self._answer())

    async def _answer(self) -> None:
        """Asks in waves and shows the answer after each: the chosen policy and sync, other
        policies, the interval of the chosen one, other numbers of GPUs."""
        values = dict(self._values)
        try:
            raw = chosen(self._scenario, values)
            shape = from_raw(raw).shape
            names = tried(self._scenario, values)
        except RollcastError as error:
            self._show(sentence(f"This cannot run. {error}"), joined(None))
            return
        chain = names[values["policy"]]
        first = list(dict.fromkeys((SYNCHRONOUS, chain)))
        others = [name for name in names.values() if name not in first]
        waves = [[Choice(raw, name) for name in names] for names in (first, others)]
        waves.append([Choice(raw, chain, drawn=True)])
        for scale in _ELSEWHERE:
            try:
                scaled = chosen(self._scenario, values, scale)
            except RollcastError:
                continue  # fewer GPUs than a replica has
            waves.append([Choice(scaled, name) for name in (*first, *others)])
        gpu = values.get("gpu") or (self._scenario.gpu.name if self._scenario.gpu else "")
        gpu = "" if self._scenario.trainer_gpu else gpu
        price = values.get("usd_per_hour", 0.0)
        rollouts = self._scenario.plan.batch.groups * values["workload.group_size"]
        work = work_of(RunSection(steps=values["steps"]), rollouts)
        learning = self._scenario.learning
        target = None if learning is None else learning.target
        asked = Asked(chain, work, price, described(shape), gpu, target)
        self._answers.classes("busy").props("aria-busy=true")
        order = list(names.values())
        try:
            async for outcomes in self._questions.ask(waves):
                here = sorted(
                    placed(outcomes, (0, 1)), key=lambda outcome: order.index(outcome.chain)
                )
                elsewhere = placed(outcomes, range(3, len(waves)))
                self._show(*view(asked, here, elsewhere, *placed(outcomes, (2,))))
                if len(outcomes) == sum(map(len, waves)):
                    self._answers.props("aria-busy=false")
        except BrokenProcessPool:
            why = "A simulation was stopped from outside; start rollcast explore again."
            self._show(sentence(why), joined(None))

    def _show(self, headline: Markup, answers: Markup) -> None:
        self._answers.classes(remove="busy")
        self._headline.set_content(headline)
        self._answers.set_content(answers)


def _text(tag: str, text: str) -> ui.html:
    """An element with escaped text."""
    return ui.html(joined(text), sanitize=False, tag=tag)


def serve(scenario: Scenario, pool: Executor, port: int, show: bool) -> None:
    """Serves the page on this machine. pool: simulates. show: whether to open a browser."""
    memory = Memory()
    style_sheet = resource("rollcast.simulator.explore", "explore.css")
    ui.add_head_html(f"<style>{style()}\n{style_sheet}</style>", shared=True)
    ui.add_body_html(f"<script>{script()}</script>", shared=True)

    def index() -> None:
        Page(scenario, Questions(pool, memory))

    app.add_middleware(SameOriginOnly)
    # Waits for running simulations, 0.25 s: a pool that closes while Python exits prints an error.
    app.on_shutdown(lambda: pool.shutdown(cancel_futures=True))
    ui.run(
        index,
        host=HOST,
        port=port,
        title=f"{scenario.name} - rollcast",
        dark=None,
        show=show,
        reload=False,
        reconnect_timeout=_AWAY_S,
        tailwind=False,
        show_welcome_message=False,
        favicon="\N{CHART WITH UPWARDS TREND}",
    )
