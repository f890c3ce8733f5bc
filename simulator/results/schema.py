"""The files of a run and the columns of its tables.

`simulator.results.write` writes them, `simulator.results.read` reads them. Columns are in the order
of the file; steps.csv has further ones of policies. Columns are fields of
`simulator.core.spans.StepRecord` or `Segments`, or of `simulator.results.metrics.step_columns` and
`phase_columns`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rollcast.simulator.results import RUN_SCHEMA
from rollcast.simulator.results.columns import LARGEST_TOKENS, Figure, typecode
from rollcast.simulator.results.phases import PHASE_COLUMNS, STEP_PHASES
from rollcast.simulator.values.readers import Choice, Keys, Named, Reader, Text

OUR_SCHEMAS = "rollcast-"  # start of every schema's name
PACKED = ".gz"  # ending of a file that was compressed later
LAYOUTS = ("dense", "shared_prefix")
PREFIX_PASSES = "prefix_passes"
"""What an update tells since prefixes of several groups are computed in one pass."""
OLD_FILES = {"speed_probes.csv": "pulses.csv"}  # names in runs of earlier versions
EVALUATION = "evaluation"  # a column of steps.csv, left out where it would be empty
_ANYTHING = Keys()


@dataclass(frozen=True, slots=True)
class Column:
    """A column. needed: a table without it is not read; others may be absent. unit: ``s``,
    ``tokens``, another, or none for counts and flags."""

    name: str
    shape: Reader
    meaning: str
    unit: str = ""
    needed: bool = False


@dataclass(frozen=True, slots=True)
class File:
    """A file of a run. optional: not of every run."""

    name: str
    meaning: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Table(File):
    """A CSV file with a header."""

    columns: tuple[Column, ...] = ()

    def __getitem__(self, name: str) -> Column:
        """A column. Raises KeyError."""
        return next(column for column in self.columns if column.name == name)

    def __contains__(self, name: object) -> bool:
        return any(column.name == name for column in self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        """Names, in order."""
        return tuple(column.name for column in self.columns)

    def without(self, name: str) -> Table:
        """The same table, but for a column."""
        return replace(self, columns=tuple(c for c in self.columns if c.name != name))

    @property
    def typecodes(self) -> dict[str, str]:
        """`array.array` codes of the number columns, by name."""
        codes = {column.name: typecode(column.shape) for column in self.columns}
        return {name: code for name, code in codes.items() if code is not None}

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of needed columns."""
        return tuple(column.name for column in self.columns if column.needed)


@dataclass(frozen=True, slots=True)
class Document(File):
    """A JSON file. shape: checked when read."""

    shape: Keys = _ANYTHING


@dataclass(frozen=True, slots=True)
class Lines(Document):
    """A file of JSON lines. shape: of each, checked when read."""


def _seconds(name: str, meaning: str, needed: bool = False, least: float = 0.0) -> Column:
    return Column(name, Figure(least), meaning, "s", needed)


def _tokens(name: str, meaning: str, needed: bool = False, most: float | None = None) -> Column:
    shape = Figure(whole=True) if most is None else Figure(whole=True, most=most)
    return Column(name, shape, meaning, "tokens", needed)


def _count(name: str, meaning: str, needed: bool = False, least: float = 0.0) -> Column:
    return Column(name, Figure(least, whole=True), meaning, needed=needed)


def _flag(name: str, meaning: str, needed: bool = False) -> Column:
    return Column(name, Figure(0, 1, whole=True), meaning, needed=needed)


def _mean(name: str, meaning: str, unit: str = "", least: float = 0.0) -> Column:
    """A column that may be empty."""
    return Column(name, Figure(least, null=True), meaning, unit)


_ANY = -1e12  # a reward may be negative
_PAIRS = 1e18  # of tokens: a square of them

SPANS = Table(
    "spans.csv",
    "phases of the steps, then segments of the rollouts, each in the order in which they ended",
    columns=(
        _count("step", "the step in which it ended", needed=True),
        Column(
            "kind",
            Text(),
            "rollout, segment, train, sync, switch, or what the trainer did",
            needed=True,
        ),
        Column(
            "track", Text(), "replica 0, rollout, trainer or sync: where it took place", needed=True
        ),
        _count("group", "of a segment; -1 for a phase", least=-1),
        _count("index", "of a segment, within its group; -1 for a phase", least=-1),
        _seconds("start_s", "when it began, on the run's clock", needed=True),
        _seconds("end_s", "when it ended", needed=True),
        _tokens("tokens", "sampled in it; of trainer work, fed to the model", needed=True),
    ),
)

STEPS = Table(
    "steps.csv",
    "one row a step",
    columns=(
        _count("step", "its number, from 0", needed=True),
        _seconds("start_s", "when its plan was made", needed=True),
        _seconds("rollout_start_s", "first submit", needed=True),
        _seconds("rollout_end_s", "the last rollout's stop", needed=True),
        _seconds("end_s", "when its weights were in the replicas", needed=True),
        _count("group_size", "rollouts of a group"),
        _count("launched_groups", "groups begun"),
        _count("resumed_groups", "groups that an earlier step began"),
        _count("complete_groups", "groups whose last rollout finished"),
        _count("rejected_groups", "groups that the filter rejected"),
        _count("trained_groups", "groups trained on"),
        _count("trained_rollouts", "rollouts trained on", needed=True),
        _count("buffered_groups", "groups that wait for a later step"),
        _tokens("generated_tokens", "sampled", needed=True),
        _tokens("trained_tokens", "trained on"),
        _tokens("masked_tokens", "in the batch, and left out of the loss"),
        _tokens("dropped_tokens", "thrown away"),
        _tokens("resumed_tokens", "that resumed rollouts had already"),
        _count("stragglers", "complete groups with a response longer than 1.25 medians"),
        _mean("mean_reward", "of the rollouts trained on", least=_ANY),
        _seconds("rollout_s", "from the first submit to the last rollout's stop", needed=True),
        _seconds("train_s", "all work of the trainer", needed=True),
        _seconds("sync_s", "weights to the replicas", needed=True),
        _seconds("switch_s", "shared GPUs between rollout and training", needed=True),
        _seconds("step_s", "from the end of the step before to its own", needed=True),
        Column("mean_staleness", Figure(), "of the tokens trained on", "versions", needed=True),
        _mean("truncated_share", "of the responses that finished in the step, those at the cap"),
        _mean(
            "accuracy",
            "mean reward of the rollouts that finished in the step, whether trained on or not",
            least=_ANY,
        ),
        _mean(
            EVALUATION,
            "mean reward of held-out prompts, asked with the weights at the step's end; of real "
            "runs with engine.evaluation alone",
            least=_ANY,
        ),
        *(_seconds(column, STEP_PHASES[name].meaning) for name, column in PHASE_COLUMNS.items()),
    ),
)
ROLLOUTS = Table(
    "rollouts.csv",
    "one row a segment of a rollout on a replica, in the order in which they ended: several for "
    "one that was aborted and resumed",
    columns=(
        _count("step", "the step in which the segment ended", needed=True),
        _count("group", "one prompt's rollouts", needed=True),
        _count("index", "of the rollout within its group", needed=True),
        _tokens("prompt_tokens", "of the prompt", needed=True, most=LARGEST_TOKENS),
        _tokens(
            "new_tokens",
            "sampled in the segment: they add up to the tokens generated",
            needed=True,
            most=LARGEST_TOKENS,
        ),
        _seconds("start_s", "first computed"),
        _seconds("end_s", "finished, or aborted"),
        _flag("finished", "1 where the response was complete", needed=True),
        _flag("trained", "1 where its tokens were trained on", needed=True),
        Column(
            "reward", Figure(_ANY, null=True), "empty until the response is complete", needed=True
        ),
        _count("versions", "of the weights, in the rollout so far"),
        _count(
            "replica",
            "on which it was; -1 where its environment or judge had the rollout",
            least=-1,
        ),
        _tokens("total_tokens", "of the response so far", needed=True, most=LARGEST_TOKENS),
        _count(
            "trained_step", "the step that trained on it; -1 if none did", needed=True, least=-1
        ),
        _count("attempt", "how often the prompt had been tried before", needed=True),
        _count("version", "of the weights that sampled it", needed=True),
        _flag("resumed", "1 where it went on from tokens of an earlier segment"),
        _flag("truncated", "1 where the response was cut at the cap", needed=True),
        _count("preemptions", "times that the engine put it back"),
        _tokens("prefill_tokens", "prefilled in the segment"),
        _tokens("recomputed_tokens", "the part of them that preemptions caused"),
        _tokens(
            "shared_tokens",
            "with which, prompt included, an earlier segment of this version "
            "began as well; 0 where the world knows no tokens",
            most=LARGEST_TOKENS,
        ),
        _count("shared_group", "whose segment that was; -1 if none", least=-1),
        _count("shared_index", "of its rollout within that group; -1 if none", least=-1),
        _seconds("submitted_s", "handed to the replica"),
        _count("prompt", "which prompt it answered: one may come again, as another group"),
        _count("turn", "which of the rollout's turns it is, from 0"),
        _tokens(
            "observation_tokens",
            "of the context so far, that environments added",
            most=LARGEST_TOKENS,
        ),
        Column(
            "ending",
            Text(),
            "stop, length, turns, context, timeout, environment or trial_timeout where "
            "the response is complete; turn, budget or aborted where it is not",
        ),
    ),
)
ENVIRONMENTS = Table(
    "environments.csv",
    "one row a call of a rollout's environment, or of what judges it, in the order in which the "
    "segments after them ended; of runs whose rollouts have turns or judges",
    optional=True,
    columns=(
        _count("step", "the step in which it ended", needed=True),
        _count("group", "of the rollout", needed=True),
        _count("index", "of the rollout within its group", needed=True),
        _count("attempt", "of the rollout", needed=True),
        _count("turn", "after which it was made", needed=True),
        Column("kind", Text(), "environment or reward", needed=True),
        Column(
            "ended",
            Text(),
            "answered, timeout, failed, suspended (it goes on without its rollout) or closed",
            needed=True,
        ),
        _seconds("asked_s", "when the rollout began to wait for a slot", needed=True),
        _seconds("start_s", "when it had one", needed=True),
        _seconds("end_s", "when it was over", needed=True),
    ),
)

DECISIONS = Lines(
    "decisions.jsonl",
    "one line a step: its plan, what was launched, stopped and selected",
    shape=Keys(may={"layout": Choice(LAYOUTS)}),
)
SCENARIO = Document(
    "scenario.json",
    "the scenario that was run, as its file said it",
    shape=Keys({"scenario": Keys()}),
)
SUMMARY = Document(
    "summary.json",
    "the run's metrics",
    shape=Keys(
        {"schema": Choice((RUN_SCHEMA,))},
        may={"seed": Figure(whole=True, most=2**63 - 1), "makespan_s": Figure(null=True)},
    ),
)
TRACE = File("trace.json", "the run on a time line, for Perfetto; written compressed")
TIMELINE = File("timeline.png", "a picture of the run", optional=True)
LEARNING_PICTURE = File(
    "learning.png", "accuracy over hours, where the scenario has a law of learning", optional=True
)

ITERATIONS = Table(
    "iterations.csv",
    "one row an iteration of the engine, in order of time",
    columns=(
        _count("version", "of the weights"),
        _seconds("start_s", "when it began, on the run's clock", needed=True),
        _seconds("seconds", "what it took", needed=True),
        _count("rollouts", "computed in it", needed=True),
        _tokens("context_tokens", "attended to by its decoding rollouts", needed=True),
        _tokens("prefill_tokens", "prefilled", needed=True),
        Column(
            "prefill_pairs",
            Figure(whole=True, most=_PAIRS),
            "pairs of a prefilled token and one that it attends to",
            needed=True,
        ),
        _count("prefill_rollouts", "that prefilled", needed=True),
        _tokens("prefill_context_tokens", "attended to by what was prefilled"),
        _count("waiting", "rollouts left waiting"),
        _count("kv_blocks", "held"),
        _count("preemptions", "of rollouts"),
        _count("replica", "that it was of"),
    ),
)
BEAT = Figure(1e-9, most=1e6)
SPEED_PROBES = Table(
    "speed_probes.csv",
    "the machine's speed: a fixed small computation, timed before the first step and after each",
    optional=True,
    columns=(
        _count("steps_done", "when it was timed", needed=True),
        Column("short_s", BEAT, "what is launched rather than computed", "s", needed=True),
        Column("long_s", BEAT, "what is computed", "s", needed=True),
    ),
)
UPDATES = Lines(
    "updates.jsonl",
    "one line an update: what the trainer reports, and the step's accuracy",
    optional=True,
    shape=Keys(
        {
            "updates": Figure(whole=True),
            "rollouts": Figure(whole=True),
            "log_prob_s": Figure(),
            "computed_tokens": Figure(whole=True),
            "padding_tokens": Figure(whole=True),
            "microbatches": Figure(whole=True),
        },
        may={PREFIX_PASSES: Figure(whole=True)},
    ),
)
BOARD = File(
    "events.out.tfevents.rollcast",
    "curves for TensorBoard: one event a step, of reward, loss, seconds, tokens and the engine",
    optional=True,
)
PROVENANCE = Document(
    "provenance.json",
    "versions, hardware and the date; never names or paths of a machine",
    shape=Keys({"versions": Named(Text())}, may={"date": Text()}),
)

EVENTS = Lines(
    "events.jsonl",
    "one line a verb of the loop: what the world was asked, when and what it answered",
    optional=True,
    shape=Keys({"verb": Text(), "at_s": Figure()}),
)
FAULTS = Table(
    "faults.csv",
    "one row an actor that was lost and replaced while the run went on",
    optional=True,
    columns=(
        _seconds("at_s", "when that was noticed", needed=True),
        Column("actor", Text(), "replica 0, or trainer", needed=True),
        Column("cause", Text(), "why"),
        _count("rollouts", "in flight there, which began again", needed=True),
    ),
)
FAILURES = Table(
    "failures.csv",
    "one row a call of a rollout's environment or reward function that brought no answer",
    optional=True,
    columns=(
        _seconds("at_s", "when it was over", needed=True),
        _count("group", "of the rollout", needed=True),
        _count("index", "of the rollout within its group", needed=True),
        _count("turn", "after which it was made", needed=True),
        Column("reason", Text(), "why", needed=True),
    ),
)
ARRIVALS = Table(
    "arrivals.csv",
    "one row a replica and weight sync, of runs of several processes",
    optional=True,
    columns=(
        _count("version", "of the weights that came", needed=True),
        _count("replica", "that they came to", needed=True),
        _seconds("sent_s", "when the loop had them sent, on the run's clock", needed=True),
        _seconds(
            "start_s", "when they were there, and the replica between two iterations", needed=True
        ),
        _seconds("loaded_s", "when they were in place", needed=True),
        _seconds(
            "end_s",
            "when they had been compared with the trainer's, where the replica was "
            "idle; else the same",
            needed=True,
        ),
    ),
)
TORNADO_CSV = File(
    "tornado.csv",
    "one row an uncertain input: what a step, the run and its cost are at its ends",
    optional=True,
)
TORNADO_PICTURE = File("tornado.png", "the same as bars", optional=True)

EVALUATIONS = Table(
    "evaluations.csv",
    "one row an evaluation: what the weights earned on held-out prompts",
    optional=True,
    columns=(
        _count("steps_done", "when they were asked", needed=True),
        _count("version", "of the weights", needed=True),
        _count("prompts", "asked", needed=True),
        _count("rollouts", "of all of them", needed=True),
        Column("reward", Figure(_ANY), "mean of the rollouts", needed=True),
        Column("tokens", Figure(), "mean of a response", "tokens"),
        Column("truncated_share", Figure(0, 1), "of the responses, those at a cap"),
        _count("failed", "rewards that failed, and rollouts ended by their environment"),
        _seconds(
            "seconds", "that it took; the run's clock stands still where nothing else was under way"
        ),
    ),
)

SAMPLES = Lines(
    "samples.jsonl",
    "some rollouts of each batch: prompt, response, reward, advantage, version of the weights",
    optional=True,
)

RUN: tuple[File, ...] = (
    SPANS,
    STEPS,
    ROLLOUTS,
    ENVIRONMENTS,
    DECISIONS,
    SCENARIO,
    SUMMARY,
    TRACE,
    TIMELINE,
    LEARNING_PICTURE,
    TORNADO_CSV,
    TORNADO_PICTURE,
    ITERATIONS,
    SPEED_PROBES,
    UPDATES,
    BOARD,
    PROVENANCE,
    EVENTS,
    ARRIVALS,
    FAULTS,
    FAILURES,
    SAMPLES,
    EVALUATIONS,
)
"""A run's files; the summary is written last."""

RUN_FOLDERS = frozenset({"model", "checkpoint"})
"""A real run's folders: the trained model, and what it needs to go on."""

COMPARISON_JSON = File("comparison.json", "one entry a policy: metrics, speed-up, its interval")
COMPARISON_CSV = File("comparison.csv", "the same as a table")
COMPARISON_PICTURE = File("comparison.png", "the policies' time lines", optional=True)
REPORT = File("report.html", "all of it as one page that needs no other file", optional=True)
COMPARISON: tuple[File, ...] = (
    COMPARISON_JSON,
    COMPARISON_CSV,
    COMPARISON_PICTURE,
    LEARNING_PICTURE,
    REPORT,
)
"""A comparison's own files."""

PLAN_SCHEMA = "rollcast-plan/1"
PLAN_JSON = File("plan.json", "what is recommended, the runners-up, the front, what cannot be")
PLAN_CSV = File("plan.csv", "one row a choice, best first")
PLAN_SCENARIO = File("recommended.yaml", "the scenario of what is recommended")
PLAN: tuple[File, ...] = (PLAN_JSON, PLAN_CSV, PLAN_SCENARIO, REPORT, TORNADO_CSV, TORNADO_PICTURE)
"""A plan's files."""

CHECK_SCHEMA = "rollcast-check/1"
CHECK_JSON = File("check.json", "whether a launch fits, its times, its ledger of memory, changes")
CHECK_SCENARIO = File("scenario.yaml", "the launch as a scenario, with the place of each value")
CHECK: tuple[File, ...] = (CHECK_JSON, CHECK_SCENARIO, REPORT)
"""A check's files."""
