"""What the validation suite fits to published runs, in the presets' words."""

from benchmarks.validation.runs import ADDED, MEGATRON
from benchmarks.validation.stack_presets import fitted, with_factors

TEXT = (
    "how far off: unknown update 1.00 (sd 0.40), generation 1.00 (sd 0.20); verl generation 1.10 "
    f"(sd 0.30); verl {MEGATRON} update 1.40 (sd 0.25); {ADDED['models'][0]} "
    f"generation 0.50, log_prob 0.60; {ADDED['gpus'][0]} generation 0.20, log_prob 0.30; "
    f"{ADDED['both'][0]} generation 0.70, log_prob 0.80"
)
FILE = """\
presets:
  verl-0.5:
    rest:
      rest_s: 1.1
    phase_factors: &factors
      decode: 1.05
      update: 2.00
      kind: fitted
  verl:
    phase_factors: *factors
"""


def test_effects_become_factors_of_stacks_and_spreads_of_models() -> None:
    stacks, added = fitted(TEXT)
    assert stacks["unknown"] == {"decode_sd": "0.20", "prefill_sd": "0.20", "update_sd": "0.40"}
    keys = ("decode", "decode_sd", "prefill", "prefill_sd")
    on_megatron = {"megatron_update": "1.40", "megatron_update_sd": "0.25"}
    assert stacks["verl"] == dict(zip(keys, ("1.10", "0.30") * 2, strict=True)) | on_megatron
    assert added == {
        "models": {"decode": "0.50", "prefill": "0.50", "log_prob": "0.60"},
        "gpus": {"decode": "0.20", "prefill": "0.20", "log_prob": "0.30"},
        "both": {"decode": "0.70", "prefill": "0.70", "log_prob": "0.80"},
    }


def test_a_stacks_file_keeps_all_but_its_factors() -> None:
    stacks, _ = fitted(TEXT)
    lines = list(with_factors(FILE.split("\n"), stacks["verl"]))
    text = "\n".join(lines)
    for line in ("      rest_s: 1.1", "      kind: fitted", "    phase_factors: *factors"):
        assert line in lines
    assert "decode: 1.10\n      decode_sd: 0.30\n" in text
    assert "  update:" not in text  # of a stack that too few sources measured
    assert list(with_factors(lines, stacks["verl"])) == lines
