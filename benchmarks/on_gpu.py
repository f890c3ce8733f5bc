"""The first quarter of an hour on new hardware: does what was built on CPUs hold here?

    python -m benchmarks.on_gpu [--out on-gpu] [--engine vllm] [--model FOLDER_OR_HUB_NAME]
                                [--limit-s 900]

Runs `rollcast doctor`, compares both layouts of the trainer, makes real runs of several policies,
one after the other with one engine that starts once, probes engine and trainer, calibrates on the
synchronous runs, forecasts those of the policies that the calibration has not seen, and compares;
then times vLLM's iterations with and without asynchronous scheduling. Each stage is a process of
its own with a limit on its time; one that fails or is late does not end the others. Without
``--model`` a random model is made, whose responses end by chance: of 0.6M parameters on a CPU, of
150M on a GPU. ``--out`` gets small files: ``summary.json`` (a line a stage), ``provenance.json``,
and what each stage measured.
"""

import json
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from benchmarks.measure import keep
from benchmarks.runner import (
    ROOT,
    fails_in_words,
    first_line,
    parser,
    progress,
    python_path,
    write_json,
)
from rollcast.calibration.fits.machine_speed import MachineSpeed
from rollcast.calibration.folder import RunFolder
from rollcast.engine.doctor import child
from rollcast.engine.doctor.doctor import OWN
from rollcast.simulator.errors import ScenarioError

LIMIT_S = 900.0
"""Of all stages together. On an H200 vLLM alone took 50 to 76 s to start, seven times in all."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A real run. settings: keys of the scenario that it changes."""

    policy: str
    seed: int
    settings: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """What it sets, each as KEY=VALUE."""
        return [f"policy={self.policy}", f"seed={self.seed}", *self.settings]


WORDED = ("engine.task.style=worded", "workload.batch_groups=8", "steps=4")
"""Prompts of some 540 tokens, which the trainer can compute once a group."""
RUNS = {
    "sync-0": Planned("sync", 0),
    "april": Planned("april(over_sampling=2)", 2),
    "sync-1": Planned("sync", 1),
    "pods": Planned("pods(keep=4)", 3),
    "worded-prefix": Planned("prefix_reuse", 5, WORDED),
    "worded-sync": Planned("sync", 4, WORDED),
    "all": Planned("april(over_sampling=2)+sagc(eta=2)+pods(keep=4)", 6),
}
"""The most telling first: time may end."""
CALIBRATED_ON = ("sync-0", "sync-1")
GRADIENT = {"float32": 1e-3, "bfloat16": 5e-2}
"""Allowed relative difference between the gradient norms of the two layouts, by type."""
ENOUGH = 5
"""Updates, and bursts, of a probe that calibrate takes."""

STEADY = 0.1
"""By how much the machine's speed may differ between runs without being told."""
CALIBRATED = {"replay": 0.10, "predict": 0.25}
"""Allowed errors of the forecast of the whole run; short runs, so more than a campaign's."""


STAGES = ("doctor", "layouts", "runs", "probe", "calibrate", *CALIBRATED, "scheduling")

ALIKE = 0.9
"""Least share of responses that are the same with asynchronous scheduling; not all need be, as the
rounding of a batch's products depends on what runs beside a rollout."""


class StageError(Exception):
    """Why a stage failed, in one sentence."""


@dataclass(slots=True)
class Line:
    """A stage's outcome. verdict: ok, off (it ran, but does not hold), failed, or skipped."""

    stage: str
    verdict: str
    seconds: float
    says: str
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass
class Campaign:
    """What the stages share. work: whole run folders. out: what is kept."""

    out: Path
    work: Path
    device: str
    until: float
    scenario: Path = Path()
    only: Sequence[str] = ()
    lines: list[Line] = field(default_factory=list)

    def rollcast(self, *words: object, limit_s: float) -> child.Done:
        """The command line, in a process of its own. Raises StageError where it fails."""
        return self.python("-m", "rollcast", *words, limit_s=limit_s)

    def python(self, *words: object, limit_s: float) -> child.Done:
        """This Python. Raises StageError where it fails, or no time is left."""
        left_s = min(limit_s, self.until - time.monotonic())
        if left_s < 5:
            raise StageError("no time was left for it")
        more = {"PYTHONPATH": python_path()}
        more |= {"OMP_NUM_THREADS": "1"} if self.device == "cpu" else {}
        done = child.python([str(word) for word in words], left_s, more=more)
        if done.code != 0 and not (done.code == 1 and words[2:3] == ("doctor",)):
            raise StageError(done.reason)
        return done

    def kept(self, names: Iterable[str]) -> list[str]:
        """Those of these runs that were made."""
        return [name for name in names if (self.out / name / "summary.json").is_file()]

    def stage(self, name: str, run: Callable[[], Line], after: Sequence[str] = ()) -> None:
        """Runs one and notes its line. after: stages without which it cannot be."""
        if self.only and name not in self.only:
            return
        progress(f"{name} ...")
        began = time.monotonic()
        done = {line.stage for line in self.lines if line.verdict in ("ok", "off")}
        if missing := [other for other in after if other not in done]:
            line = Line(name, "skipped", 0.0, f"needs {missing[0]}")
        else:
            try:
                line = run()
            except StageError as error:
                line = Line(name, "failed", 0.0, str(error))
            except (OSError, ValueError, KeyError, TypeError) as error:
                line = Line(name, "failed", 0.0, f"{type(error).__name__}: {error}")
        line.stage, line.seconds = name, round(time.monotonic() - began, 1)
        self.lines.append(line)
        progress(f"  {line.verdict}, {line.seconds:.0f} s: {line.says}")
        write_json(self.out / "summary.json", [asdict(line) for line in self.lines])


def scenario(device: str, engine: str, model: str, quick: bool) -> dict[str, Any]:
    """What is run: on a GPU more and longer rollouts."""
    gpu = device != "cpu"
    batch = 4 if quick else 16 if gpu else 8
    return {
        "cluster": {"placement": "colocated", "replicas": 1},
        "engine": {
            "name": engine,
            "model": model,
            "device": device,
            "dtype": "bfloat16" if gpu else "float32",
            "max_seqs": 256 if gpu else 64,
            "max_batched_tokens": 8192 if gpu else 1024,
            "kv_tokens": 262_144 if gpu else 16_384,
            "block_tokens": 32,
            "task": {"name": "collatz", "style": "bare"},
            # A random model's rewards are all equal, and dapo would drop every group.
            "trainer": {"loss": {"name": "grpo"}, "learning_rate": 1e-5, "microbatch_tokens": 4096},
            "save": {"every": 1000, "final": False},
        },
        "workload": {
            "batch_groups": batch,
            "group_size": 8,
            "prompt_tokens": 6,
            "max_new_tokens": 512 if gpu else 128,
            "lengths": {
                "family": "lognormal",
                "median_tokens": 60,
                "between_sd": 0.3,
                "within_sd": 0.6,
            },
        },
        "policy": [],
        **({} if gpu else {"cost": OWN["cost"]}),  # of a GPU nothing is known before
        "steps": 2 if quick else 8 if gpu else 5,
        "seed": 0,
    }


def make_model(folder: Path, large: bool) -> None:
    """A random model with the built-in task's tokenizer: so few tokens that responses end by
    chance."""
    code = (
        "import sys, torch; from pathlib import Path;"
        "from transformers import Qwen3Config, Qwen3ForCausalLM;"
        "from rollcast.engine.tasks import tokenizer; from rollcast.engine.doctor import training;"
        "folder, large = Path(sys.argv[1]), sys.argv[2] == 'True';"
        "training.model_in(folder);"
        "torch.manual_seed(0);"
        "large and Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer.VOCABULARY),"
        "hidden_size=1024, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=8,"
        "num_key_value_heads=4, head_dim=128, max_position_embeddings=2048,"
        "tie_word_embeddings=False, bos_token_id=None, eos_token_id=tokenizer.END_ID,"
        "pad_token_id=tokenizer.PAD_ID)).to(torch.bfloat16).save_pretrained(folder)"
    )
    done = child.python(
        ["-c", code, str(folder), str(large)], 120, more={"PYTHONPATH": python_path()}
    )
    if done.code != 0:
        raise ScenarioError("--model", f"no random model could be made: {done.reason}")


def doctor(campaign: Campaign) -> Line:
    """What the machine can do."""
    done = campaign.rollcast("doctor", campaign.scenario, "--json", limit_s=180)
    told = json.loads(done.out)
    write_json(campaign.out / "doctor.json", told)
    found = told["findings"]
    bad = [f"{f['about']}: {f['says']}" for f in found if f["verdict"] in ("fails", "warning")]
    says = "; ".join(bad) or f"{len(found)} findings, nothing to mend"
    return Line("", "failed" if told["fails"] else "ok", 0.0, says, {"findings": len(found)})


def layouts(campaign: Campaign) -> Line:
    """The trainer's two layouts on the same batch: equal gradients, and which is faster."""
    done = campaign.python("-m", "benchmarks.on_gpu", "--layouts", campaign.scenario, limit_s=120)
    told = json.loads(done.out.strip().splitlines()[-1])
    write_json(campaign.out / "layouts.json", told)
    difference, ratio = told["gradient_difference"], told["dense_s"] / told["shared_s"]
    says = f"gradient norms differ by {difference:.1e}; sharing {told['prompt_tokens']} prompt "
    says += f"tokens is {ratio:.1f} times as fast, by {told['kernel']}"
    verdict = "ok" if difference <= GRADIENT[told["dtype"]] else "off"
    return Line("", verdict, 0.0, says, {"gradient_difference": difference, "ratio": ratio})


def compare_layouts(scenario: Path) -> dict[str, Any]:
    """In a process of its own: one batch with a long shared prompt, dense and shared."""
    from random import Random

    import torch

    from rollcast.engine.config import build_run
    from rollcast.engine.edges import SampledGroup, SampledRollout
    from rollcast.engine.engines import prepare_for
    from rollcast.engine.start import start_task, start_trainer
    from rollcast.engine.trainer.kernels import kernel_for
    from rollcast.simulator.scenario.file import read_scenario

    raw = read_scenario(scenario)
    prepare_for(raw.data)
    spec = build_run(raw)
    _, path = start_task(spec)
    trainer: Any = start_trainer(spec, path)
    vocabulary = trainer.vocab_size
    rng, prompt_tokens, response_tokens = Random(0), 768, 64

    def draw(count: int) -> list[int]:
        return [rng.randrange(vocabulary) for _ in range(count)]

    rollouts = [
        SampledRollout(draw(response_tokens), [-4.0] * response_tokens, [0] * response_tokens, r)
        for r in (0.0, 1.0) * 4
    ]
    group = SampledGroup(draw(prompt_tokens), rollouts, [r.reward for r in rollouts])
    norms, seconds = {}, {}
    for shared in (False, True):
        trainer = start_trainer(spec, path)
        for number in range(2):  # the first loads kernels, and has the weights of the other layout
            began = time.perf_counter()
            metrics = trainer.step([group], shared_prefix=shared, version=0)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds[shared] = time.perf_counter() - began
            if number == 0:
                norms[shared] = metrics.grad_norm
    model = trainer.model
    width = getattr(model.config, "head_dim", 64)
    kernel = kernel_for(torch.empty(1, 1, 1, width, dtype=model.dtype, device=model.device))
    return {
        "dtype": str(model.dtype).removeprefix("torch."),
        "prompt_tokens": prompt_tokens,
        "dense_s": seconds[False],
        "shared_s": seconds[True],
        "gradient_norm": norms[False],
        "gradient_difference": abs(norms[True] - norms[False]) / norms[False],
        "kernel": type(kernel).__name__,
        "peak_bytes": metrics.peak_bytes,
    }


def probe(campaign: Campaign, seconds: float) -> Line:
    """Costs of engine and trainer by shape."""
    file = campaign.out / "probe.json"
    words = ("probe", campaign.scenario, "-o", file, "--limit", seconds)
    campaign.rollcast(*words, limit_s=seconds + 60)
    told = json.loads(file.read_text())
    says = f"{len(told['updates'])} updates and {len(told['bursts'])} bursts"
    return Line("", "ok", 0.0, says)


def real_runs(campaign: Campaign) -> Line:
    """All runs that time allows, and what of each is worth keeping."""
    why = ""
    try:
        words = ("-m", "benchmarks.on_gpu", "--runs", campaign.scenario, "--out", campaign.out)
        campaign.python(*words, limit_s=90.0 + 45.0 * len(RUNS))
    except StageError as error:
        why = f"; then: {error}"
    done = campaign.kept(RUNS)
    if not done:
        raise StageError(why.removeprefix("; then: "))
    says, figures = [], {}
    for name in done:
        summary = json.loads((campaign.out / name / "summary.json").read_text())
        worst = summary["sync_log_prob_difference"]
        step_s = summary["makespan_s"] / summary["steps"]
        figures[name] = {"step_s": step_s, "sync_log_prob_difference": worst}
        says.append(f"{name} {step_s:.2f} s a step (log-probabilities differ by {worst:.1e} nats)")
    verdict = "ok" if len(done) == len(RUNS) else "off"
    return Line("", verdict, 0.0, ", ".join(says) + why, figures)


def make_runs(scenario: Path, out: Path) -> None:
    """In a process of its own: every run, one after the other, with one engine; each is kept as
    soon as it is done."""
    from rollcast.engine.config import build_run
    from rollcast.engine.edges import Engine
    from rollcast.engine.engines import prepare_for
    from rollcast.engine.run import run_scenario
    from rollcast.engine.start import start_replica, start_task
    from rollcast.simulator.scenario.file import override, read_scenario

    raw = read_scenario(scenario)
    prepare_for(raw.data)
    engine: Engine | None = None
    with tempfile.TemporaryDirectory() as work:
        for name, planned in RUNS.items():
            spec = build_run(override(raw, planned.words, None))
            if engine is None:
                _, path = start_task(spec)
                engine = start_replica(spec, path)
            run_scenario(spec, Path(work) / name, plot=False, lent=engine)
            keep(Path(work) / name, out / name)
    if engine is not None:
        engine.shutdown()


def calibrate(campaign: Campaign) -> Line:
    """Costs and lengths from the synchronous runs and the probe."""
    runs = [campaign.out / name for name in campaign.kept(CALIBRATED_ON)]
    if not runs:
        raise StageError("no synchronous run was made")
    words: list[object] = ["calibrate", *runs, "-o", campaign.out / "fitted.json"]
    file, says = campaign.out / "probe.json", f"fitted.json, on {len(runs)} synchronous runs"
    told = json.loads(file.read_text()) if file.is_file() else {}
    if min(len(told.get(rows, ())) for rows in ("updates", "bursts")) >= ENOUGH:
        words += ["--probe", file]
    else:
        says += ", without a probe that is long enough"
    campaign.rollcast(*words, limit_s=90)
    return Line("", "ok", 0.0, says)


def forecast(campaign: Campaign, mode: str) -> Line:
    """The runs of unseen policies, forecast by the fit; judged by the worst of them."""
    unseen = [name for name in campaign.kept(RUNS) if name not in CALIBRATED_ON]
    if not unseen:
        raise StageError("no run of an unseen policy was made")
    runs = [campaign.out / name for name in unseen]
    words = ("validate", campaign.out / "fitted.json", *runs, "--mode", mode, "--json")
    told = json.loads(campaign.rollcast(*words, limit_s=90).out)
    write_json(campaign.out / f"{mode}.json", told)
    figures, says, worst = {}, [], 0.0
    for name, error in whole_run_errors(told).items():
        slower = times_slower(campaign, name)
        figures[name] = {"error": error, "times_slower": slower}
        says.append(f"{name} is off by {error:+.1%}")
        if abs(slower - 1) > STEADY:
            says[-1] += f", with the machine {slower:.2f} times as slow as in those calibrated on"
            if mode == "predict":  # a replay is told the speed, a prediction cannot know it
                error = figures[name]["error_at_its_speed"] = (1 + error) * slower - 1
                says[-1] += f", and at that speed by {error:+.1%}"
        worst = max(worst, abs(error))
    verdict = "ok" if worst <= CALIBRATED[mode] else "off"
    return Line("", verdict, 0.0, "; ".join(says), figures)


def times_slower(campaign: Campaign, name: str) -> float:
    """The fixed computation that every run times: of a run over those that were calibrated on; 1
    where one has none. On a machine whose load changes this is no error of a forecast."""
    known = [RunFolder.open(campaign.out / one) for one in campaign.kept(CALIBRATED_ON)]
    speed = MachineSpeed.of_runs(known)
    ratios = None if speed is None else speed.of(RunFolder.open(campaign.out / name))
    return 1.0 if ratios is None else float(ratios.mean())


def whole_run_errors(told: Mapping[str, Any]) -> dict[str, float]:
    """Forecast over measured makespan of each run of a validation, less 1."""
    return {run["name"]: float(run["total"]["error"]) for run in told["runs"]}


def scheduling(campaign: Campaign) -> Line:
    """vLLM's iterations, an iteration scheduled after the other or beside it."""
    told = {}
    for how in SCHEDULED:
        words = ("-m", "benchmarks.on_gpu", f"--{how}", campaign.scenario)
        done = campaign.python(*words, limit_s=180)
        told[how] = json.loads(done.out.strip().splitlines()[-1])
    write_json(campaign.out / "scheduling.json", told)
    after, beside = (told[how] for how in SCHEDULED)
    pairs = list(zip(after["responses"], beside["responses"], strict=True))
    alike = sum(one == other for one, other in pairs) / len(pairs)
    says = f"{after['iteration_s'] * 1e3:.2f} ms an iteration of {len(pairs)} rollouts, "
    says += f"{beside['iteration_s'] * 1e3:.2f} ms with asynchronous scheduling; "
    says += f"{alike:.0%} of the responses are the same"
    figures = {"ratio": beside["iteration_s"] / after["iteration_s"], "alike": alike}
    return Line("", "ok" if alike >= ALIKE else "off", 0.0, says, figures)


SCHEDULED = ("synchronous", "asynchronous")


def sample(scenario: Path, ahead: bool) -> dict[str, Any]:
    """In a process of its own: a full batch of rollouts, twice. iteration_s: the median iteration
    of the second time, prefills left out. responses: a hash of each one's tokens."""
    from statistics import median

    from rollcast.engine.config import build_run
    from rollcast.engine.engines import prepare_for
    from rollcast.engine.start import start_replica, start_task
    from rollcast.simulator.scenario.file import override, read_scenario

    raw = override(read_scenario(scenario), [f"engine.async_scheduling={json.dumps(ahead)}"], None)
    prepare_for(raw.data)
    spec = build_run(raw)
    _, path = start_task(spec)
    replica = start_replica(spec, path)
    try:
        for _ in range(2):
            for index in range(spec.engine.max_seqs):
                prompt = [2 + index % (replica.limits.vocab_size - 2)] * 8
                replica.submit(str(index), prompt, max_new_tokens=64, seed=index, ignore_eos=True)
            seconds: list[float] = []
            made: dict[str, tuple[int, ...]] = {}
            while replica.unfinished:
                made |= {response.request_id: response.token_ids for response in replica.step()}
                done = replica.last_iteration
                if done is not None and not done.work.prefill_tokens:
                    seconds.append(done.seconds)
    finally:
        replica.shutdown()
    hashes = [zlib.crc32(repr(made[str(n)]).encode()) for n in range(len(made))]
    return {"iteration_s": median(seconds), "responses": hashes}


def provenance(device: str) -> dict[str, Any]:
    """What it ran on: versions, GPU, driver, commit; no names or paths of a machine."""
    code = (
        "import json; from rollcast.engine.provenance import provenance;"
        f"print(json.dumps(provenance({device!r})))"
    )
    done = child.python(["-c", code], 120, more={"PYTHONPATH": python_path()})
    found: dict[str, Any] = {}
    if done.code == 0:
        found = json.loads(done.out.strip().splitlines()[-1])
    found["driver"] = first_line(
        "nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"
    )
    found["commit"] = first_line("git", "-C", str(ROOT), "rev-parse", "HEAD")
    return found


def table(lines: Sequence[Line]) -> str:
    """The outcome of each stage."""
    return "\n".join(
        f"{line.stage:10} {line.verdict:8} {line.seconds:5.0f} s  {line.says}" for line in lines
    )


@fails_in_words
def main() -> int:
    """All stages; exit code 0 where all hold, 1 where one does not, 2 for a user's mistake."""
    options = parser(__doc__)
    options.add_argument("--out", type=Path, default=Path("on-gpu"))
    options.add_argument("--engine", default=None, help="vllm or transformers; default: installed")
    options.add_argument("--model", default=None, help="folder, or a name on the hub")
    options.add_argument("--limit-s", type=float, default=LIMIT_S, help="of all stages together")
    options.add_argument("--quick", action="store_true", help="the least of everything")
    options.add_argument("--only", choices=STAGES, action="append", help="default: all stages")
    options.add_argument("--layouts", type=Path, help="(one stage, by itself)")
    options.add_argument("--runs", type=Path, help="(one stage, by itself)")
    for how in SCHEDULED:
        options.add_argument(f"--{how}", type=Path, help="(one stage, by itself)")
    given = options.parse_args()
    for how in SCHEDULED:
        if (path := getattr(given, how)) is not None:
            print(json.dumps(sample(path, how == "asynchronous")))
            return 0
    if given.runs is not None:
        make_runs(given.runs, given.out)
        return 0
    if given.layouts is not None:
        print(json.dumps(compare_layouts(given.layouts)))
        return 0
    from rollcast.engine.doctor.packages import engines_ready

    ready = engines_ready()
    if not ready:
        raise ScenarioError("--engine", "none is installed; see rollcast doctor")
    if given.engine is not None and given.engine not in ready:
        raise ScenarioError("--engine", f"{given.engine} is none of {', '.join(ready)}")
    out = given.out.resolve()
    if out.exists() and any(out.iterdir()):
        raise ScenarioError("--out", f"{given.out} is there already, and not empty")
    out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + given.limit_s
    told = provenance("cpu")
    device = "cuda" if told.get("gpu") else "cpu"
    write_json(out / "provenance.json", {**told, "device": device})
    work = Path(tempfile.mkdtemp())
    try:
        model = given.model
        if model is None:
            model = str(work / "model")
            make_model(work / "model", device != "cpu")
        campaign = Campaign(out, work, device, until, work / "scenario.yaml", given.only or ())
        engine = given.engine or ready[0]
        asked = scenario(device, engine, model, given.quick)
        campaign.scenario.write_text(yaml.safe_dump(asked, sort_keys=False))
        run_all(campaign, engine, 15.0 if given.quick else 30.0 if device == "cuda" else 60.0)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(table(campaign.lines))
    progress(f"wrote {given.out}/")
    return int(any(line.verdict != "ok" for line in campaign.lines))


def run_all(campaign: Campaign, engine: str, probe_s: float) -> None:
    """Every stage, in an order in which the most telling come first."""
    campaign.stage("doctor", lambda: doctor(campaign))
    campaign.stage("layouts", lambda: layouts(campaign))
    campaign.stage("runs", lambda: real_runs(campaign))
    campaign.stage("probe", lambda: probe(campaign, probe_s))
    campaign.stage("calibrate", lambda: calibrate(campaign), after=("runs",))
    for mode in CALIBRATED:
        campaign.stage(mode, lambda mode=mode: forecast(campaign, mode), ("calibrate",))  # type: ignore[misc]
    if engine == "vllm":
        campaign.stage("scheduling", lambda: scheduling(campaign))


if __name__ == "__main__":
    sys.exit(main())
