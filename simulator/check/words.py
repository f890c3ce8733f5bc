"""An answer in sentences: fits or not first, then time, money and what is odd."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from rollcast.simulator.check.answer import Answer, Priced
from rollcast.simulator.check.forecast import Seconds
from rollcast.simulator.check.question import CAP, MEAN_TOKENS
from rollcast.simulator.check.search import MOST_CHANGES
from rollcast.simulator.costs.memory.ledger import ALWAYS_ON_HOST, ENGINE_SHARE
from rollcast.simulator.launches.parts import HOST_MEMORY
from rollcast.simulator.results.phases import bound_text
from rollcast.simulator.results.text import (
    MEMORY_PHASES,
    gigabytes,
    hours,
    interval,
    room,
    seconds,
    usd,
)

PART_WORDS: Mapping[str, str] = {
    "weights": "weights",
    "master_weights": "master weights",
    "gradients": "gradients",
    "optimizer": "optimiser states",
    "gathered_weights": "gathered weights",
    "activations": "activations",
    "logits": "logits",
    "kv_pool": "the KV pool",
    "graphs": "CUDA graphs",
    "reserve": "the engine's reserve",
    "communication": "communication buffers",
    "context": "CUDA contexts",
    "fragmentation": "fragmentation",
}


HOST_WORDS: Mapping[str, str] = {
    "optimizer": "the optimiser's states",
    "offloaded_states": "the trainer's states between steps",
    "reference": "weights of models that wait for their passes",
    "engine_weights": "weights of engines that sleep",
    "gathered_weights": "weights gathered for the first sync",
    "loading": "whole models while they are loaded",
}


NOTHING = f"No change of up to {MOST_CHANGES} settings that is known here makes it fit."


def headline(answer: Answer) -> str:
    """Whether it fits, with the figure, and the first change where it does not."""
    peak = answer.ledger.peak
    held, of = gigabytes(peak.bytes).removesuffix(" GB"), room(peak._asdict())
    where = MEMORY_PHASES[peak.phase]
    sure = answer.ledger.fits_probability
    on_host = answer.ledger.host_decides
    if answer.fits:
        likely = "" if answer.ledger.sure else f" ({sure:.0%} likely)"
        host = f"; {_host_needs(answer)}" if on_host and likely else ""
        whole = _of_whole(answer) if peak.pool == ENGINE_SHARE else ""
        text = f"Yes{likely}{_unless(answer)}: at most {held} of {of}, {where}{whole}{host}."
        return f"{text} To be surer, add {_first(answer)}." if answer.fixes else text
    likely = "" if sure <= 0.05 else f" ({1 - sure:.0%} likely)"
    part = PART_WORDS.get(peak.part, peak.part)
    why = f"{held} of {of} {where}, at {part}{_at_cap(answer)}"
    text = f"No{likely}{_unless(answer)}: {_host_needs(answer) if on_host else why}."
    if answer.fixes:
        return f"{text} Add {_first(answer)}."
    return f"{text} {NOTHING}" if answer.searched else text


def _of_whole(answer: Answer) -> str:
    """Beside an engine's share that is full: what is held of the GPU, as of changes."""
    peak = answer.ledger.fullest_gpu
    held = gigabytes(peak.bytes).removesuffix(" GB")
    return f", and {held} of all {gigabytes(peak.capacity_bytes)}, {MEMORY_PHASES[peak.phase]}"


def _unless(answer: Answer) -> str:
    """On which mean length of responses it hangs, where nobody says that; '' elsewhere."""
    if answer.fits_below is None:
        return ""
    how = "as long as" if answer.fits else "unless"
    return f", {how} responses have at most {answer.fits_below:,} tokens in the mean"


def _at_cap(answer: Answer) -> str:
    """On which length of the longest response it hangs; '' where on none."""
    if answer.fits_to is None:
        return ""
    cap = answer.question.value(CAP)
    return f", when a response reaches {cap:,} tokens (up to {answer.fits_to:,} fit)"


def _host_needs(answer: Answer) -> str:
    """What a node needs of host memory, and what it may use."""
    ledger = answer.ledger
    most, limit = ledger.most_on_host, ledger.host_capacity_bytes
    part = gigabytes(ledger.host_bytes.get(most, 0.0))
    largest = f" ({part} of it {HOST_WORDS[most]})" if most else ""
    needs = f"a node needs {gigabytes(ledger.host_total)} of host memory{largest}"
    if limit is None:
        return needs
    has = ledger.host_memory_bytes or limit
    ends = f", since Ray ends workers at {limit / has:.0%} of {gigabytes(has)}"
    return f"{needs} and may use {gigabytes(limit)}{ends if limit < has else ''}"


def on_host(answer: Answer) -> str:
    """The sentence on host memory, where what waits there is most of it; '' elsewhere, or where the
    headline has it."""
    ledger = answer.ledger
    told = ledger.host_decides and (not answer.fits or not ledger.sure)
    waits = sum(size for name, size in ledger.host_bytes.items() if name not in ALWAYS_ON_HOST)
    if told or waits < ledger.host_total / 2:
        return ""
    needs = _host_needs(answer)
    text = f"{needs[0].upper()}{needs[1:]}"
    if ledger.host_capacity_bytes is not None:
        return f"{text}."
    flag = HOST_MEMORY if answer.question.read_as == "a scenario" else "--host-memory"
    return f"{text}; give {flag} to have that checked."


def to_fit(answer: Answer) -> str:
    """The heading of the changes that make it fit."""
    return "What would make it surer to fit" if answer.fits else "What would make it fit"


def _first(answer: Answer) -> str:
    """The lines of the first change, and what they do."""
    first = answer.fixes[0]
    lines = " ".join(f"`{line}`" for line in first.change.lines)
    return f"{lines}: {effect(first, answer.forecast.step, host=answer.ledger.host_matters)}"


def effect(priced: Priced, step: Seconds, *, host: bool = False) -> str:
    """What a change leaves of memory, and does to the time of a step. host: of host memory too."""
    parts = [gigabytes(priced.change.ledger.fullest_gpu.bytes)]
    if host:
        parts = [
            f"{gigabytes(priced.change.ledger.host_total)} of host memory",
            f"{parts[0]} of a GPU",
        ]
    if priced.step is not None and step.median > 0:
        ratio = priced.step.median / step.median - 1
        parts.append(
            "as fast"
            if abs(ratio) < 0.005
            else f"{abs(ratio):.0%} {'slower' if ratio > 0 else 'faster'}"
        )
    ledger = priced.change.ledger
    if not ledger.nearly_sure:
        parts.append(f"{ledger.fits_probability:.0%} likely to fit")
    if priced.change.trains_otherwise:
        parts.append("and it changes what is learned")
    return ", ".join(parts)


def sentences(answer: Answer) -> Iterator[str]:
    """The headline, the step's time, the whole run, what bounds it and what is odd."""
    yield headline(answer)
    found = answer.forecast
    ends = found.step.low, found.step.high
    step = f"{seconds(found.step.median, like=ends[1])} ({interval(ends)})"
    gpus = f"{found.gpus} GPU{'s' * (found.gpus > 1)}"
    yield f"A step takes {step}{'' if answer.fits else ' if it fit'}, on {gpus}."
    if found.known_length is not None:
        tokens = round(answer.question.value(MEAN_TOKENS))
        known = interval((found.known_length.low, found.known_length.high))
        yield (
            "The launch does not say how long responses are. If their mean is the assumed "
            f"{tokens:,} tokens, the interval is {known}; give it by --mean-tokens."
        )
    whole = found.hours
    if whole is not None:
        many = found.steps != 1
        text = f"{found.steps:,} step{'s' * many} take{'s' * (not many)} {spread(whole, hours)}"
        cost, price = found.usd, found.result.scenario.usd_per_gpu_hour
        paid = (
            "" if cost is None else f" and cost {spread(cost, usd)} at {usd(price or 0)} a GPU-hour"
        )
        yield f"{text}{paid}."
    else:
        yield "How many steps the run has is not said: give --steps for its hours and cost."
    if host := on_host(answer):
        yield host
    bound = bound_text(found.summary, "simulated runs")
    if bound:
        yield bound
    for one in answer.oddities:
        yield f"{one.sentence[0].upper()}{one.sentence[1:]}."


def spread(value: Seconds, write: Callable[[float], str]) -> str:
    """A median and its interval."""
    return f"{write(value.median)} ({interval((value.low, value.high), write)})"
