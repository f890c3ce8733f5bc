"""The tables of an imported run: the columns that its readers may fill.

Names are those of `simulator.results.schema` where they mean the same. A duration is what the stack
timed under that word; an empty cell is what it did not log.
"""

from __future__ import annotations

from rollcast.simulator.results.columns import Figure
from rollcast.simulator.results.phases import OF_COLUMN
from rollcast.simulator.results.schema import Column, Table
from rollcast.simulator.values.readers import Text

LOG_SCHEMA = "rollcast-log/1"

_ANY = -1e12


def _seconds(name: str, meaning: str) -> Column:
    return Column(name, Figure(null=True), meaning, "s")


def _tokens(name: str, meaning: str) -> Column:
    return Column(name, Figure(null=True), meaning, "tokens")


def _number(name: str, meaning: str, unit: str = "", least: float = 0.0) -> Column:
    return Column(name, Figure(least, null=True), meaning, unit)


def _key(name: str, meaning: str) -> Column:
    return Column(name, Figure(-1e9, whole=True), meaning, needed=True)


def _flag(name: str, meaning: str) -> Column:
    return Column(name, Figure(0, 1, whole=True, null=True), meaning)


STEPS = Table(
    "steps.csv",
    "one row an update of the weights, by the run's own number of it",
    columns=(
        _key("step", "the run's own number of it"),
        _seconds("step_s", "the whole step, as the stack timed it"),
        _seconds("generation_s", "rollouts; empty where the stack timed only the wait for them"),
        _seconds(
            "poll_s",
            "polling interval of the trainer for finished rollouts, of which "
            "generation_s is nearly a multiple",
        ),
        _seconds("engine_s", "of generation_s, the engine's own sampling, where timed apart"),
        _seconds("wait_s", "the trainer's wait for rollouts that were made beside it"),
        _seconds("reward_s", "judging"),
        _seconds("log_prob_s", "log-probabilities under the weights before the update"),
        _seconds("reference_s", "log-probabilities under the reference model"),
        _seconds("values_s", "the critic's values"),
        _seconds("advantage_s", "advantages"),
        _seconds("update_s", "forward, backward and optimiser of the policy"),
        _seconds("critic_update_s", "the same of the critic"),
        _seconds("data_s", "preparing batches"),
        _seconds("sync_s", "weights to the replicas"),
        _seconds("switch_s", "shared GPUs between rollout and training, where timed apart"),
        _seconds("validation_s", "validation"),
        _seconds("checkpoint_s", "writing a checkpoint"),
        _seconds("rest_s", "of step_s, what none of the phases inside it accounts for"),
        _flag("validation_inside", "1 where step_s holds validation_s"),
        _flag("checkpoint_inside", "1 where step_s holds checkpoint_s"),
        _flag("sync_inside_generation", "1 where generation_s holds the weight sync"),
        _flag("overlapped", "1 where rollouts overlapped training"),
        _flag("first", "1 for the first step of a start or of a resumption: it warms up"),
        _flag("generates", "0 for an update on rollouts of an earlier one"),
        _number("logged_steps", "updates that the row is the mean of", "updates"),
        _number("rollouts", "trained on", "rollouts"),
        _number("groups", "trained on", "groups"),
        _tokens("mean_new_tokens", "of the responses"),
        _tokens("max_new_tokens", "of the responses"),
        _tokens("min_new_tokens", "of the responses"),
        _tokens("median_new_tokens", "of the responses"),
        _tokens("mean_finished_tokens", "of the responses that were not cut"),
        _tokens("mean_tool_tokens", "of the responses, what tools and environments wrote"),
        _number("truncated_share", "of the responses, those cut at the cap", "share"),
        _flag("truncated_share_unsure", "1 where it counts the longest of the batch as cut"),
        _tokens("mean_prompt_tokens", "of the prompts"),
        _tokens("max_prompt_tokens", "of the prompts"),
        _tokens("min_prompt_tokens", "of the prompts"),
        _tokens("total_tokens", "prompts and responses trained on"),
        _number("mean_reward", "of the rollouts trained on", least=_ANY),
        _number("reward_sd", "of the rollouts trained on"),
        _number("zero_spread_share", "of the groups, those whose rewards are all equal", "share"),
        _number("mean_turns", "of the model, a rollout", "turns"),
        _number("max_turns", "of the model, a rollout", "turns"),
        _number("mean_staleness", "of what was trained on", "versions"),
        _number("max_staleness", "of what was trained on", "versions"),
        _number("mean_versions", "of the weights, a rollout", "versions"),
        _number("dropped_rollouts", "generated and not trained on", "rollouts"),
        _seconds("mean_request_s", "generation of a rollout"),
        _seconds("max_request_s", "generation of a rollout"),
        _seconds("min_request_s", "generation of a rollout"),
        _seconds("slowest_request_s", "generation of the rollout that ended last"),
        _tokens("slowest_new_tokens", "of the rollout that ended last"),
        _number("slowest_tokens_per_s", "of the longest response", "tokens/s"),
        _seconds("mean_environment_s", "of a rollout in tools and environments"),
        _seconds("max_environment_s", "of a rollout in tools and environments"),
        _seconds("orchestrator_step_s", "the step of the process that makes the rollouts"),
        _seconds("rollout_wait_s", "that process waiting for weights"),
        _number("trainer_idle_share", "of the time, the trainer idle", "share"),
        _number("rollout_idle_share", "of the time, the replicas idle", "share"),
        _number("tokens_per_gpu_s", "throughput, as the stack defines it", "tokens/s/GPU"),
        _number("trainer_flop_share", "model flop utilisation of the update", "share"),
        _seconds("logged_s", "when the row was logged, since the epoch"),
        Column("file", Text(), "that the row was read from"),
        _number("line", "of that file; the number of the record in a binary one"),
    ),
)

ROLLOUTS = Table(
    "rollouts.csv",
    "one row a rollout that the log holds by itself",
    columns=(
        _key("step", "that trained on it"),
        _key("group", "one prompt's rollouts, numbered over the run"),
        _key("index", "within its group"),
        _tokens("prompt_tokens", "of the prompt"),
        _tokens("new_tokens", "of the response, without what tools wrote"),
        _tokens("tool_tokens", "within the response, written by tools and environments"),
        _number("characters", "of the response, where only its text was kept", "characters"),
        _number("reward", "its reward", least=_ANY),
        _flag("truncated", "1 where it was cut at the cap"),
        _number("turns", "of the model", "turns"),
        _number("first_version", "of the weights that sampled it"),
        _number("last_version", "of the weights that sampled it"),
        _seconds("start_s", "first asked for, since the run's first request"),
        _seconds("end_s", "finished, on the same clock"),
        _seconds("environment_s", "in tools and environments"),
        _flag("trained", "1 where it was trained on, 0 where it was not"),
    ),
)

REQUESTS = Table(
    "requests.csv",
    "one row a request to a replica: a turn of a rollout",
    columns=(
        _key("step", "that trained on it"),
        _key("group", "as in rollouts.csv"),
        _key("index", "as in rollouts.csv"),
        _key("turn", "from 0"),
        _seconds("start_s", "sent, since the run's first request"),
        _seconds("end_s", "answered, on the same clock"),
        _seconds("queue_s", "waiting in the engine"),
        _seconds("environment_s", "since the turn before: tools and environment"),
        _tokens("prompt_tokens", "sent, cached ones included"),
        _tokens("cached_tokens", "of them, found in the engine's cache"),
        _tokens("new_tokens", "sampled"),
        _number("version", "of the weights"),
    ),
)

TABLES = (STEPS, ROLLOUTS, REQUESTS)

PHASES = tuple(column for column in OF_COLUMN if column != "rest_s")
"""The parts of a step that its rest is what remains of."""
