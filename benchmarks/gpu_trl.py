"""TRL's GRPOTrainer on one H100 80 GB against what ``rollcast check`` said of its launch scripts.

    python -m benchmarks.gpu_trl forecast --work DIR --out forecasts.json     # no GPU
    python benchmarks/gpu_trl.py measure --work DIR --out measured.json       # there; no rollcast
    python -m benchmarks.gpu_trl table forecasts.json measured.json

``forecast`` writes each case as the script that a user would have, and asks ``rollcast check`` of
it. ``measure`` runs the same scripts, each in a process of its own, over random models of the real
shapes, whose responses all reach the cap. Of cases that are marked so (``made``), random tokens
stand for what transformers would generate, so that only log-probabilities and updates are measured.
"""

import argparse
import json
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import Any

PROMPT = 128
"""Tokens of each prompt: characters, as the tokenizer has a token a byte."""
H100_BYTES, CONTEXT_BYTES = 84.92e9, 0.6e9
"""Of an H100 80 GB, to which a larger GPU is limited; what PyTorch's limit does not count."""
LIMIT_S = 30.0
VLLM_LIMIT_S = 110.0
IMPORT_S = 90.0
"""Until a process must have imported its libraries."""
PHASES = {
    "generation": "generation",
    "log_prob": "log_prob",
    "update": "update",
    "optimiser": "optimizer_step",
    "sync": "sync",
}
"""rollcast's names of phases, of seconds and of memory."""

MODELS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "Qwen/Qwen2.5-0.5B": (
        "Qwen2Config",
        {
            **{"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24},
            **{"num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True},
        },
    ),
    "Qwen/Qwen2.5-1.5B": (
        "Qwen2Config",
        {
            **{"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28},
            **{"num_attention_heads": 12, "num_key_value_heads": 2, "tie_word_embeddings": True},
        },
    ),
    "Qwen/Qwen3-1.7B": (
        "Qwen3Config",
        {
            **{"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28},
            **{"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128},
            "tie_word_embeddings": True,
        },
    ),
}
TINY = {
    **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
}


@dataclass(frozen=True, slots=True)
class Case:
    """A launch. settings: arguments of GRPOConfig, as Python text. made: random tokens stand for
    what would be generated. lora: the adapters' rank."""

    name: str
    model: str
    batch: int
    completion: int
    settings: Mapping[str, str]
    made: bool = False
    lora: int | None = None
    steps: int = 3

    @property
    def vllm(self) -> bool:
        """Whether vLLM generates."""
        return self.settings.get("use_vllm") == "True"

    def script(self, tiny: bool = False) -> str:
        """The launch script; tiny: at sizes that run on a CPU within seconds."""
        settings = {
            "output_dir": '"out"',
            "max_steps": str(self.steps),
            "per_device_train_batch_size": str(min(self.batch, 4) if tiny else self.batch),
            "num_generations": "8",
            "max_completion_length": str(min(self.completion, 16) if tiny else self.completion),
            "learning_rate": "1e-6",
            "logging_steps": "1",
            "save_strategy": '"no"',
            "report_to": '"none"',
            **self.settings,
        }
        if tiny:
            settings |= {"num_generations": "4", "bf16": "False"}
        arguments = "".join(f"    {key}={value},\n" for key, value in settings.items())
        lora = "" if self.lora is None else "from peft import LoraConfig\n"
        adapter = (
            ""
            if self.lora is None
            else f"    peft_config=LoraConfig(r={self.lora}, lora_alpha={2 * self.lora}, "
            'target_modules="all-linear", task_type="CAUSAL_LM"),\n'
        )
        return (
            f"from datasets import Dataset\n{lora}from trl import GRPOConfig, GRPOTrainer\n\n\n"
            "def reward(completion_ids, **kwargs):\n"
            "    return [float(ids[0] % 7 + len(ids)) for ids in completion_ids]\n\n\n"
            f'prompts = [f"{{i:04d}}" * {PROMPT // 4} for i in range(512)]\n'
            f"args = GRPOConfig(\n{arguments})\n"
            f'trainer = GRPOTrainer(\n    model="{self.model}",\n    args=args,\n'
            '    reward_funcs=reward,\n    train_dataset=Dataset.from_dict({"prompt": prompts}),\n'
            f"{adapter})\ntrainer.train()\n"
        )


Q05, Q15, Q17 = MODELS
BF16 = {"model_init_kwargs": '{"dtype": "bfloat16"}'}
PLAIN = {"gradient_checkpointing": "False"}

CASES: tuple[Case, ...] = (
    Case("1.5b", Q15, 8, 128, {}),
    Case("1.5b-bf16", Q15, 8, 128, BF16),
    Case("1.5b-no-checkpointing-8x1024", Q15, 8, 1024, PLAIN, made=True),
    Case("1.5b-no-checkpointing-16x1024", Q15, 16, 1024, PLAIN, made=True),
    Case("1.7b-reference-16x4096", Q17, 16, 4096, {"beta": "0.04"}, made=True),
    Case("1.7b-lora-no-checkpointing-24x768", Q17, 24, 768, {**BF16, **PLAIN}, True, lora=16),
    Case(
        "0.5b-accumulated",
        *(Q05, 8, 128),
        {"gradient_accumulation_steps": "8", "num_generations": "16"},
        steps=2,
    ),
    Case("1.7b-bf16-no-checkpointing-16x1024", Q17, 16, 1024, {**BF16, **PLAIN}, made=True),
    Case("0.5b-no-checkpointing-48x1024", Q05, 48, 1024, {**BF16, **PLAIN}, made=True),
    Case("1.5b-two-iterations-32x1024", Q15, 32, 1024, {"num_iterations": "2"}, made=True, steps=4),
    Case("1.7b-wide", Q17, 64, 128, BF16, steps=2),
    Case("1.5b-lora-64x2048", Q15, 64, 2048, BF16, made=True, lora=64, steps=2),
    Case("0.5b-64x2048", Q05, 64, 2048, {}, made=True, steps=2),
)
VLLM = {"use_vllm": "True", "vllm_mode": '"colocate"', "vllm_gpu_memory_utilization": "0.3"}
VLLM_CASES: tuple[Case, ...] = (
    Case("1.5b-vllm", Q15, 32, 512, {**VLLM, **BF16}),
    Case("1.5b-vllm-fp32", Q15, 32, 512, {**VLLM, "vllm_enable_sleep_mode": "True"}),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    read = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    read.add_argument("verb", choices=("forecast", "measure", "table", "models", "case"))
    read.add_argument("files", nargs="*", type=Path)
    read.add_argument("--work", type=Path, default=Path("gpu-trl"), help="scripts and models")
    read.add_argument("--out", type=Path, help="what is kept, as JSON")
    read.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    read.add_argument("--vllm", action="store_true", help="the cases with vLLM, and no others")
    read.add_argument("--only", default="", help="cases by name, comma-separated")
    read.add_argument("--total", type=float, default=230.0, help="seconds after which none begins")
    given = read.parse_args(arguments)
    cases = [
        case
        for case in (VLLM_CASES if given.vllm else CASES)
        if not given.only or case.name in given.only.split(",")
    ]
    if given.verb == "table":
        print(table(*(json.loads(file.read_text()) for file in given.files)))
        return 0
    given.work.mkdir(parents=True, exist_ok=True)
    if given.verb == "forecast":
        forecast(cases, given.work, given.out or given.work / "forecasts.json")
    elif given.verb == "models":
        make_models(given.work, [Path(one).as_posix() for one in MODELS], given.tiny)
    elif given.verb == "case":
        run_case(given.work, next(one for one in cases if one.name == given.files[0].name))
    else:
        measure(cases, given)
    return 0


# Forecasts


def forecast(cases: Sequence[Case], work: Path, out: Path) -> None:
    """What ``rollcast check`` says of each case's script."""
    told: dict[str, Any] = {}
    for case in cases:
        script = work.resolve() / f"{case.name}.py"
        script.write_text(case.script())
        command = [
            *("check", script.name, "--gpu", "h100-sxm", "--gpus", "1", "--stack", "trl-1.16"),
            *("--prompt-tokens", str(PROMPT), "--mean-tokens", str(case.completion - 1)),
            *("--json", "--no-changes"),
        ]
        done = subprocess.run(
            [sys.executable, "-m", "rollcast", *command],
            cwd=script.parent,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
            capture_output=True,
            text=True,
            check=False,
        )
        said: dict[str, Any] = {"command": " ".join(command), "case": asdict(case)}
        if done.returncode not in (0, 3):
            said["error"] = done.stderr.strip()
        else:
            report = json.loads(done.stdout)
            kept = ("fits", "fits_probability", "peak", "step_s", "assumed", "unknown_keys")
            said |= {key: report[key] for key in (*kept, "notes")}
            said["phases"] = [
                {"phase": one["phase"], "role": one["role"], "bytes": one["bytes"]}
                for one in report["phases"]
            ]
        told[case.name] = said
        print(case.name, said.get("error") or _in_short(said), file=sys.stderr, flush=True)
    _write(out, told)


def _in_short(said: Mapping[str, Any]) -> str:
    peak, step = said["peak"], said["step_s"]
    return (
        f"fits {said['fits']} ({said['fits_probability']:.0%}), {peak['bytes'] / 1e9:.1f} GB in "
        f"{peak['phase']}, step {step['median']:.2f} s ({step['low']:.2f} to {step['high']:.2f})"
    )


def _write(out: Path, value: Any) -> None:
    part = out.with_name(out.name + ".part")
    part.write_text(json.dumps(value, indent=1) + "\n")
    part.replace(out)


# Measurements


def measure(cases: Sequence[Case], given: argparse.Namespace) -> None:
    """Each case in a process of its own. All import their libraries at once, while the models are
    made; then one after another is told to go."""
    began = time.monotonic()
    work, out = given.work.resolve(), (given.out or given.work / "measured.json").resolve()
    own = [sys.executable, "-P", str(Path(__file__).resolve())]
    flags = [*(["--tiny"] if given.tiny else []), *(["--vllm"] if given.vllm else [])]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    waiting: dict[str, subprocess.Popen[str]] = {}
    for case in cases:
        for left in ("ready", "json"):
            (work / f"{case.name}.{left}").unlink(missing_ok=True)
        (work / f"{case.name}.py").write_text(case.script(given.tiny))
        with (work / f"{case.name}.log").open("w") as log:
            waiting[case.name] = subprocess.Popen(
                [*own, "case", case.name, "--work", str(work), *flags],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=work,
                env=env,
                text=True,
            )
    try:
        subprocess.run([*own, "models", "--work", str(work), *flags], check=True, env=env)
        print(f"models made after {time.monotonic() - began:.1f} s", flush=True)
        while time.monotonic() - began < IMPORT_S and not all(
            (work / f"{name}.ready").exists() or one.poll() is not None
            for name, one in waiting.items()
        ):
            time.sleep(0.2)
        print(f"libraries imported after {time.monotonic() - began:.1f} s", flush=True)
        seen: dict[str, Any] = {}
        for case in cases:
            if time.monotonic() - began > given.total:
                break
            seen[case.name] = _follow(waiting[case.name], work, case)
            _write(out, seen)
            print(case.name, json.dumps(seen[case.name])[:600], flush=True)
        print(f"done after {time.monotonic() - began:.1f} s", flush=True)
    finally:
        for one in waiting.values():
            one.kill()


def _follow(process: subprocess.Popen[str], work: Path, case: Case) -> dict[str, Any]:
    """Tell a process to go, and read what it left; what it had when its time was up, if so."""
    began = time.monotonic()
    result = work / f"{case.name}.json"
    try:
        process.communicate("go\n", timeout=VLLM_LIMIT_S if case.vllm else LIMIT_S)
        late = False
    except (subprocess.TimeoutExpired, BrokenPipeError):
        process.kill()
        process.wait()
        late = True
    seen = json.loads(result.read_text()) if result.exists() else {}
    if seen.get("outcome") is None:
        log = (work / f"{case.name}.log").read_text(errors="replace")
        seen["outcome"] = "late" if late else "failed"
        seen["log"] = log[-1500:]
    return {**seen, "made": case.made, "process_s": round(time.monotonic() - began, 2)}


class Meter:
    """Seconds and peaks of memory by phase, each without what is measured inside it. keep: told of
    what was measured after each step."""

    def __init__(self, torch: Any, keep: Callable[[dict[str, Any]], None]) -> None:
        self.torch, self.keep = torch, keep
        self.cuda = torch.cuda.is_available()
        self.phase, self.since = "load", time.perf_counter()
        self.step: dict[str, float] = {}
        self.steps: list[dict[str, float]] = []
        self.allocated: dict[str, int] = {}
        self.reserved: dict[str, int] = {}
        self.device = 0
        self.lengths: list[int] = []

    def enter(self, phase: str) -> str:
        """From here on it is this phase; which it was."""
        if self.cuda:
            cuda = self.torch.cuda
            cuda.synchronize()
            self._peak(self.allocated, cuda.max_memory_allocated())
            self._peak(self.reserved, cuda.max_memory_reserved())
            free, total = cuda.mem_get_info()
            self.device = max(self.device, total - free)
            cuda.reset_peak_memory_stats()
        now = time.perf_counter()
        self.step[self.phase] = self.step.get(self.phase, 0.0) + now - self.since
        before, self.phase, self.since = self.phase, phase, now
        return before

    def _peak(self, peaks: dict[str, int], seen: int) -> None:
        peaks[self.phase] = max(peaks.get(self.phase, 0), seen)

    @contextmanager
    def inside(self, phase: str) -> Iterator[None]:
        """A phase until the end; after an error the phase stays."""
        before = self.enter(phase)
        yield
        self.enter(before)

    def end_step(self) -> None:
        """A step is done."""
        self.enter("rest")
        self.steps.append({key: round(value, 5) for key, value in self.step.items()})
        self.step = {}
        self.keep(self.told())

    def told(self) -> dict[str, Any]:
        """What was measured so far. device_bytes: of all that use the GPU, between phases."""
        return {
            "steps": self.steps,
            "allocated_bytes": self.allocated,
            "reserved_bytes": self.reserved,
            "device_bytes": self.device,
            "completion_tokens": self.lengths,
        }


def run_case(work: Path, case: Case) -> None:
    """In a process of its own: the case's script with its trainer's methods measured."""
    import torch
    import transformers
    import trl
    from trl import GRPOConfig, GRPOTrainer  # noqa: F401  (the imports that take seconds)

    if case.lora is not None:
        import peft  # noqa: F401
    result = work / f"{case.name}.json"
    early = torch.cuda.is_initialized()  # then the processes that wait hold memory too
    (work / f"{case.name}.ready").touch()
    sys.stdin.readline()
    os.chdir(work)
    meter = Meter(torch, lambda told: _write(result, told))
    limited = meter.cuda and (total := torch.cuda.mem_get_info()[1]) > 1.1 * H100_BYTES
    if limited:  # a larger GPU of the same chip
        torch.cuda.set_per_process_memory_fraction((H100_BYTES - CONTEXT_BYTES) / total)
    about = {
        "device": torch.cuda.get_device_name() if meter.cuda else "CPU",
        "versions": [torch.__version__, transformers.__version__, trl.__version__],
        "gpu_before_go": early,
        "limited_to_bytes": H100_BYTES if limited else None,
    }
    instrument(GRPOTrainer, transformers.TrainerCallback, meter, case, torch)
    outcome, words = "fits", ""
    try:
        runpy.run_path(f"{case.name}.py", run_name="__main__")
    except RuntimeError as error:  # of PyTorch's allocator, of Triton and of cuBLAS
        if "out of memory" not in (said := str(error).lower()) and "alloc_failed" not in said:
            raise
        outcome, words = "out of memory", str(error)[:400]
    told = meter.told() | about | {"outcome": outcome}
    if words:
        # The peaks of the phase that ran out.
        phase = meter.phase
        told |= {"words": words, "where": phase}
        if meter.cuda:
            told["allocated_bytes"][phase] = torch.cuda.max_memory_allocated()
            told["reserved_bytes"][phase] = torch.cuda.max_memory_reserved()
    _write(result, told)
    sys.stdout.flush()
    os._exit(0)  # an engine's threads do not keep it


def instrument(trainer: Any, callback: Any, meter: Meter, case: Case, torch: Any) -> None:
    """Measure a trainer class's methods; of ``made`` cases replace what generates."""

    def measured(
        owner: Any, name: str, phase: str, when: Callable[[], bool] = lambda: True
    ) -> None:
        method = getattr(owner, name)

        @wraps(method)
        def around(self: Any, *arguments: Any, **named: Any) -> Any:
            if not when():
                return method(self, *arguments, **named)
            with meter.inside(phase):
                return method(self, *arguments, **named)

        setattr(owner, name, around)

    def tokens(self: Any, prompt_ids: list[list[int]], *_: Any, **__: Any) -> Any:
        drawn = torch.randint(300, 1000, (len(prompt_ids), self.max_completion_length))
        return drawn.tolist(), None

    if case.made:
        trainer._generate_single_turn = tokens
    generate = trainer._generate_single_turn

    @wraps(generate)
    def noted(self: Any, *arguments: Any, **named: Any) -> Any:
        done = generate(self, *arguments, **named)
        meter.lengths.append(sum(map(len, done[0])))
        return done

    trainer._generate_single_turn = noted
    measured(trainer, "_generate_single_turn", "generation")
    measured(
        trainer,
        "_get_per_token_logps_and_entropies",
        "log_prob",
        lambda: not torch.is_grad_enabled(),
    )
    measured(trainer, "_prepare_inputs", "rest")
    measured(trainer, "training_step", "update")
    if case.vllm:
        from trl.generation.vllm_generation import VLLMGeneration

        measured(VLLMGeneration, "sync_weights", "sync")

    class Steps(callback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            meter.enter("rest")
            meter.step = {}

        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            meter.enter("optimiser")

        def on_optimizer_step(self, *_: Any, **__: Any) -> None:
            meter.enter("rest")

        def on_step_end(self, *_: Any, **__: Any) -> None:
            meter.end_step()

    made = trainer.__init__

    @wraps(made)
    def init(self: Any, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        self.add_callback(Steps())

    trainer.__init__ = init


def make_models(work: Path, names: Sequence[str], tiny: bool) -> None:
    """Random models of the real shapes in bf16, with a tokenizer of a token a byte."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    size = 1024 if tiny else 151936
    # Each id that a random model draws has a text; the last two are the special tokens'.
    made = [f"<{place}>" for place in range(len(letters), size - 2)]
    vocabulary = {token: place for place, token in enumerate([*letters, *made])}
    bare = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bare,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        model_max_length=32768,
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for name in names:
        kind, shape = MODELS[name]
        config = getattr(transformers, kind)(
            **{**shape, **(TINY if tiny else {})},
            vocab_size=size,
            max_position_embeddings=32768,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
        )
        try:
            with torch.device(device):
                model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        except Exception as error:  # slower, but made
            print(f"{name} is made on the CPU: {error}", flush=True)
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        folder = work / name
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        print(name, f"{sum(one.numel() for one in model.parameters()) / 1e9:.3f}e9", flush=True)
        del model


# The table


def table(told: Mapping[str, Any], seen: Mapping[str, Any]) -> str:
    """Forecast and measurement side by side, as Markdown."""
    lines = [
        "| case | fits: forecast | measured | peak, GB: forecast | measured | by phase, GB | "
        "step, s: forecast | measured | by phase, s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, got in seen.items():
        if "error" in (said := told[name]):
            continue
        memory, times = _memory(said, got), _seconds(said, got)
        where = f" in {got['where']}" if "where" in got else ""
        lines.append(
            f"| {name}{' (tokens made)' if got['made'] else ''} | {said['fits_probability']:.0%} | "
            f"{got['outcome']}{where} | {memory[0]} | {memory[1]} | {memory[2]} | {times[0]} | "
            f"{times[1]} | {times[2]} |"
        )
    return "\n".join(lines)


def _memory(said: Mapping[str, Any], got: Mapping[str, Any]) -> tuple[str, str, str]:
    """Tensors alone, as ``max_memory_allocated`` sees them: without context and fragmentation."""
    unseen = ("context", "fragmentation", "reserve")
    forecast: dict[str, float] = {}
    for one in said["phases"]:
        held = sum(size for part, size in one["bytes"].items() if part not in unseen)
        forecast[one["phase"]] = forecast.get(one["phase"], 0.0) + held / 1e9
    parts = [
        f"{phase} {forecast.get(ledger, 0.0):.1f}/{got['allocated_bytes'][phase] / 1e9:.1f}"
        for phase, ledger in PHASES.items()
        if phase in got.get("allocated_bytes", {}) and not (got["made"] and phase == "generation")
    ]
    reserved = max(got.get("reserved_bytes", {}).values(), default=0)
    device = got.get("device_bytes", 0)
    return (
        f"{said['peak']['bytes'] / 1e9:.1f} ({said['peak']['phase']})",
        f"{reserved / 1e9:.1f} reserved, {device / 1e9:.1f} of the device",
        ", ".join(parts),
    )


def _seconds(said: Mapping[str, Any], got: Mapping[str, Any]) -> tuple[str, str, str]:
    """Of the steps after the first, which compiles and warms up; the first where it is alone."""
    steps = got.get("steps", [])
    steps = steps[1:] or steps
    step = said["step_s"]
    interval = f"{step['median']:.2f} ({step['low']:.2f} to {step['high']:.2f})"
    if not steps:
        return interval, "", ""
    mean = {
        phase: sum(one.get(phase, 0.0) for one in steps) / len(steps) for phase in (*PHASES, "rest")
    }
    forecast = {**step["phases"]}
    forecast["rest"] = forecast.get("other")
    parts = []
    for phase, seconds in mean.items():
        if (got["made"] and phase == "generation") or not seconds:
            continue
        if (one := forecast.get(phase)) is None:
            parts.append(f"{phase} none/{seconds:.3f}")
        else:
            told = f"{one['median']:.3f} ({one['low']:.3f} to {one['high']:.3f})"
            parts.append(f"{phase} {told}/{seconds:.3f}")
    whole = "" if got["made"] else f"{sum(mean.values()):.2f}"
    return interval, whole, ", ".join(parts)


if __name__ == "__main__":
    raise SystemExit(main())
