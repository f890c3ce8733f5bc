"""Simulated engines on the virtual clock: any loop on them gets what `simulate` says."""

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rollcast.simulator import virtual
from rollcast.simulator.core.spans import Run
from rollcast.simulator.costs.clock import to_ticks
from rollcast.simulator.errors import RunError
from rollcast.simulator.results.metrics import run_summary
from rollcast.simulator.runs.drive import drive
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.simulate import load, simulate
from rollcast.simulator.virtual.ask import Answer, EngineError
from rollcast.simulator.virtual.engine import PauseMode
from rollcast.simulator.virtual.faults import Fault
from rollcast.simulator.virtual.fleet import Fleet
from rollcast.simulator.virtual.prompts import Prompt, Reply
from rollcast.simulator.virtual.trial import Client, try_control
from tests.virtual.guest import GuestWorld

EXAMPLES = Path(__file__).parents[2] / "examples"


def small(*settings: str, name: str = "fully_async") -> Scenario:
    return load(EXAMPLES / f"{name}.yaml", "steps=3", "workload.batch_groups=4", *settings)


def _tables(run: Run) -> list[Any]:
    return [
        repr(list(run.segments.rows())),
        list(run.calls.rows()),
        list(run.spans()),
        run.decisions,
        run.steps,
        run.ledger,
    ]


@pytest.mark.parametrize(
    "name",
    [
        "april",
        "sagc",
        "fully_async",
        "pipeline_rl",
        "tail_batching",
        "engine_agent",
        "overlap",
        "dapo",
    ],
)
def test_our_own_loop_on_virtual_engines_is_the_simulation_to_the_tick(name: str) -> None:
    scenario = small(name=name)
    with virtual.clock():
        virtually = drive(scenario, GuestWorld(Fleet(scenario)), scenario.steps)
    assert _tables(virtually) == _tables(simulate(scenario).run)


def test_a_synchronous_control_plane_is_the_synchronous_policy_to_the_tick() -> None:
    scenario = small("policy=sync", name="april")
    groups, size = scenario.plan.batch.groups, scenario.plan.batch.group_size
    with virtual.clock() as clock:
        fleet = Fleet(scenario)

        async def main() -> None:
            for step in range(scenario.steps):
                asks = [
                    [fleet.ask(Prompt(step * groups + g)) for _ in range(size)]
                    for g in range(groups)
                ]
                await fleet.train([[await ask.pending for ask in group] for group in asks])
                await fleet.sync()

        asyncio.run(main())
        run = fleet.close()
        ticks = clock.ticks
    expected = simulate(scenario)
    assert run.makespan_s == expected.run.makespan_s == ticks / 2**80
    summary = run_summary(run, scenario.name, "sync", scenario.seed)
    differ = {key for key in summary if summary[key] != expected.summary.get(key)}
    assert differ <= {"world", "scenario", "straggler_rate"}


def run(
    main: Callable[[Fleet], Awaitable[Any]], *settings: str, fleet: dict[str, Any] | None = None
) -> Any:
    with virtual.clock():

        async def body() -> Any:
            return await main(Fleet(small(*settings), **(fleet or {})))

        return asyncio.run(body())


def constant(tokens: int) -> Callable[[int, int, int], Reply]:
    return lambda number, place, turn: Reply(tokens, 1.0)


def test_an_answer_has_the_scenario_s_lengths_and_rewards() -> None:
    scenario = small()
    draw = scenario.workload.draw(7, scenario.plan.batch.group_size, prompt=7)

    async def main(fleet: Fleet) -> list[Answer]:
        return [await fleet.engines[0].generate(Prompt(7)) for _ in range(2)]

    answers = run(main)
    assert [a.new_tokens for a in answers] == list(draw.new_tokens[:2])
    assert [a.reward for a in answers] == list(draw.rewards[:2])
    assert answers[0].prompt_tokens == draw.prompt_tokens
    assert len(answers[0].token_ids) == answers[0].new_tokens
    assert len(answers[0].text.split()) == answers[0].new_tokens


def test_max_tokens_cuts_and_a_caller_that_leaves_aborts() -> None:
    async def main(fleet: Fleet) -> None:
        [engine, *_] = fleet.engines
        cut = await engine.generate(Prompt(0), 20)
        assert (cut.new_tokens, cut.finish) == (20, "length")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.generate(Prompt(1)), 0.5)
        await asyncio.sleep(1.0)
        assert engine.load == 0
        assert fleet.record.run.ledger.generated_tokens > 20

    run(main, fleet={"replies": constant(500)})


@pytest.mark.parametrize("mode", ["abort", "wait", "keep", "in_place", "retract"])
def test_modes_of_pausing(mode: PauseMode) -> None:
    async def main(fleet: Fleet) -> None:
        [engine, *_] = fleet.engines
        first = asyncio.create_task(engine.generate(Prompt(0)))
        await asyncio.sleep(2.0)
        await engine.pause(mode)
        paused_s = fleet.now_s
        late = asyncio.create_task(engine.generate(Prompt(1), 10))
        assert (mode == "wait") == (paused_s > 3.0)
        await asyncio.sleep(50.0)
        assert first.done() == (mode in ("abort", "wait"))
        assert not late.done()
        await engine.update_weights(5)
        await engine.resume()
        answer = await first
        assert (await late).version == 5
        assert answer.finish == ("abort" if mode == "abort" else "stop")
        if mode in ("keep", "in_place", "retract"):
            assert [part.version for part in answer.versions] == [0, 5]
            assert answer.new_tokens == 1000
        assert answer.preemptions == 0

    run(main, fleet={"replies": constant(1000)})


def test_paused_engines_share_what_comes_meanwhile() -> None:
    async def main(fleet: Fleet) -> None:
        before = [asyncio.create_task(ask(fleet, number)) for number in range(8)]
        await asyncio.sleep(1.0)
        for engine in fleet.engines:
            await engine.pause("retract")
        assert [engine.load for engine in fleet.engines] == [1] * 8
        for number in range(16):
            before.append(asyncio.create_task(ask(fleet, 8 + number)))
            await asyncio.sleep(0.1)
        assert [engine.load for engine in fleet.engines] == [3] * 8
        for engine in fleet.engines:
            await engine.resume()
        answers = await asyncio.gather(*before)
        assert [answer.new_tokens for answer in answers] == [1000] * 24
        assert len(list(fleet.journal.of("dispatched"))) == 24

    def ask(fleet: Fleet, number: int) -> Any:
        return Client(fleet).generate(Prompt(number))

    run(main, fleet={"replies": constant(1000)})


def test_whoever_has_its_last_token_at_a_retraction_is_answered() -> None:
    async def main(fleet: Fleet) -> float:
        [engine, *_] = fleet.engines
        asked = asyncio.create_task(engine.generate(Prompt(0)))
        if ends_s:
            await asyncio.sleep(ends_s[0] - 1e-4)  # within its last iteration
            await engine.pause("retract")
            await asyncio.sleep(5.0)
            assert asked.done()
            await engine.resume()
        assert (await asked).new_tokens == 20
        return fleet.now_s

    ends_s: list[float] = []
    for _ in range(2):
        ends_s.append(run(main, fleet={"replies": constant(20)}))
    assert ends_s[0] < ends_s[1]


def test_orders_to_the_engine() -> None:
    async def main(fleet: Fleet) -> None:
        [engine, *_] = fleet.engines
        task = asyncio.create_task(engine.generate(Prompt(0), request_id="a"))
        other = asyncio.create_task(engine.generate(Prompt(0), request_id="b"))
        await asyncio.sleep(1.0)
        assert engine.load == 2
        assert not engine.flush_cache()
        with pytest.raises(EngineError, match="2 requests are in flight"):
            await engine.sleep()
        assert [ask.request_id for ask in engine.abort(["b"])] == ["b"]
        assert (await other).finish == "abort"
        assert (await task).finish == "stop"
        assert engine.flush_cache()
        await engine.sleep()
        late = asyncio.create_task(engine.generate(Prompt(1), 5))
        await asyncio.sleep(100.0)
        assert not late.done()
        await engine.wake_up()
        assert (await late).new_tokens == 5

    run(main, fleet={"replies": constant(600)})


def test_faults_at_their_instants() -> None:
    faults = [Fault(1.0, "dies", 0, until_s=50.0), Fault(1.0, "hangs", 1), Fault(2.0, "errors", 2)]

    async def main(fleet: Fleet) -> None:
        asks = [asyncio.ensure_future(e.generate(Prompt(e.number))) for e in fleet.engines]
        with pytest.raises(EngineError, match="replica 0 died") as died:
            await asks[0]
        assert died.value.status == 503
        assert fleet.now_s == 1.0
        with pytest.raises(EngineError, match="replica 0 is dead"):
            await fleet.engines[0].generate(Prompt(9))
        with pytest.raises(EngineError, match="replica 2 failed"):
            await asks[2]
        await asyncio.sleep(1.0)
        elsewhere = [await fleet.ask(Prompt(n), 5).pending for n in range(20, 24)]
        assert all(answer.replica != 0 for answer in elsewhere)
        await asyncio.sleep(100.0)
        assert not asks[1].done()
        assert (await fleet.engines[0].generate(Prompt(9), 5)).new_tokens == 5
        asks[1].cancel()

    run(main, "cluster.replicas=3", "cluster.trainer_gpus=3", fleet={"faults": faults})


def test_turns_reuse_the_cache_by_token_ids_and_by_messages() -> None:
    async def main(fleet: Fleet) -> None:
        for prompt in (list(range(500)), [{"role": "user", "content": "what is 2 + 2"}]):
            first = await fleet.engines[0].generate(prompt)  # type: ignore[arg-type]
            said = (
                first.token_ids
                if isinstance(prompt[0], int)
                else [{"role": "assistant", "content": first.text}]
            )
            more = [7] * 40 if isinstance(prompt[0], int) else [{"role": "tool", "content": "4"}]
            second = await fleet.engines[0].generate([*prompt, *said, *more])  # type: ignore[misc]
            assert (second.group, second.index) == (first.group, first.index)
            known = first.prompt_tokens + first.new_tokens
            assert second.prompt_tokens > known
            assert second.cached_tokens >= known // 16 * 16 - 16
            assert second.ask.turn == 1

    run(main, fleet={"replies": constant(300)})


def test_streams_count_the_tokens_of_each_instant() -> None:
    async def main(fleet: Fleet) -> None:
        [engine, *_] = fleet.engines
        ask = fleet.ask(Prompt(0), replica=0)
        seen = [made async for made in engine.stream(ask, 0.25)]
        answer = await ask.pending
        assert seen == sorted(set(seen))
        assert len(seen) > 3
        assert seen[-1] < answer.new_tokens == 800
        pace = (answer.end_s - answer.start_s) / answer.new_tokens
        assert seen[1] - seen[0] == pytest.approx(0.25 / pace, rel=0.1)

    run(main, fleet={"replies": constant(800)})


def test_threads_wait_for_answers_too() -> None:
    answers = []
    with virtual.clock():
        fleet = Fleet(small(), replies=constant(100))
        threads = [
            threading.Thread(target=lambda n=n: answers.append(fleet.ask(Prompt(n)).pending.wait()))
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        fleet.train(answers).wait()
        assert fleet.sync().wait() == 1
    assert [answer.new_tokens for answer in answers] == [100] * 4


def test_what_the_engines_and_the_trainer_refuse() -> None:
    async def main(fleet: Fleet) -> None:
        with pytest.raises(EngineError, match="longer than the KV pool"):
            await fleet.engines[0].generate(Prompt(0, 10**9))
        answer = await fleet.engines[0].generate(Prompt(0), 5)
        fleet.train([answer])
        with pytest.raises(RunError, match="train is under way"):
            fleet.train([answer])
        with pytest.raises(virtual.VirtualError, match="one fleet a run"):
            Fleet(fleet.scenario)

    run(main)
    with pytest.raises(virtual.VirtualError, match="needs a clock"):
        Fleet(small())


def test_an_engine_that_never_answers_is_a_deadlock_with_the_line() -> None:
    async def main(fleet: Fleet) -> None:
        await fleet.engines[0].generate(Prompt(0))

    with pytest.raises(virtual.DeadlockError, match=r"engines.py:\d+ in main: await fleet"):
        run(main, fleet={"faults": [Fault(0.5, "hangs")]})


def test_an_answer_says_when_it_came_and_the_journal_when_it_failed() -> None:
    async def answered(fleet: Fleet) -> None:
        answer = await fleet.engines[0].generate(Prompt(0))
        assert answer.end_s == fleet.clock.now_s > answer.start_s

    async def failed(fleet: Fleet) -> None:
        with pytest.raises(EngineError):
            await fleet.engines[0].generate(Prompt(0))
        [error] = fleet.journal.of("error")
        assert error.tick == fleet.clock.ticks > 0

    try_control(answered, small())
    try_control(failed, small(), error_share=0.999)


def test_requests_that_are_over_go_without_a_search_for_cycles() -> None:
    """Each kept until the search was a quarter of a long run's time."""

    async def main(fleet: Fleet) -> int:
        gc.collect()
        asks = (fleet.engines[i % 8].generate(Prompt(i)) for i in range(200))
        assert len(await asyncio.gather(*asks)) == 200
        return gc.collect()

    gc.disable()
    try:
        assert try_control(main, small(), units=False).value < 200
    finally:
        gc.enable()


def test_engines_with_nothing_to_do_have_nothing_due() -> None:
    """Else a server would not wait for its next request, but ask again and again."""

    def main(fleet: Fleet) -> None:
        for tick in (to_ticks(1), to_ticks(2.5)):
            assert fleet.cluster.advance(tick) == []
            assert fleet.cluster.ticks == tick
            assert fleet.cluster.peek() is None

    try_control(main, EXAMPLES / "fully_async.yaml")
