"""Scheduling, KV cache and prefix cache, without a clock."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.engine.blocks import Blocks, block_hashes
from harness.engine.scheduler import Limits, Request, Scheduler, Sequence, Step


def request(prompt: int, output: int, *, name: str = "r", tokens: list[int] | None = None, most: int = 0) -> Request:
    hashes = block_hashes(tokens) if tokens else ()
    return Request(id=name, prompt_tokens=prompt, output_tokens=output, max_tokens=most or output, hashes=hashes)


def scheduler(blocks: int = 1000, **limits: int | bool) -> Scheduler:
    return Scheduler(Blocks(blocks), Limits(**limits))


def add(to: Scheduler, *requests: Request) -> list[Sequence]:
    sequences = [Sequence(request=each) for each in requests]
    for sequence in sequences:
        to.add(sequence)
    return sequences


def run(of: Scheduler, *, ahead: bool = False, limit: int = 10_000) -> list[Step]:
    """All steps until nothing is left, one at a time or with one scheduled ahead."""
    steps: list[Step] = []
    under_way = [step for step in (of.schedule(),) if step]
    while under_way and len(steps) < limit:
        if ahead and len(under_way) < 2 and (step := of.schedule()):
            under_way.append(step)
        steps.append(under_way.pop(0))
        of.complete(steps[-1])
        if not under_way and (step := of.schedule()):
            under_way.append(step)
    return steps


def test_prefill_is_cut_into_chunks() -> None:
    """A prompt longer than a step's budget is computed over several steps, and one token comes of the last."""
    of = scheduler(max_num_batched_tokens=512)
    add(of, request(1200, 3))
    steps = run(of)

    assert [step.work.prefill_tokens for step in steps] == [512, 512, 176, 0, 0]
    assert [step.work.sampled for step in steps] == [0, 0, 1, 1, 1]
    assert sum(step.work.attention_pairs for step in steps) == 1200 * 1201 // 2


def test_decodes_come_before_prefills() -> None:
    """A running sequence keeps its token in a step whose budget a long prompt would fill."""
    of = scheduler(max_num_batched_tokens=100)
    (first,) = add(of, request(50, 5))
    of.complete(of.schedule() or Step())
    add(of, request(500, 1))
    step = of.schedule() or Step()

    assert (step.work.decodes, step.work.prefill_tokens) == (1, 99)
    assert step.sampling == [first]


def test_waiting_is_first_come_first_served() -> None:
    """Sequences beyond max_num_seqs wait, and start in the order of their arrival."""
    of = scheduler(max_num_seqs=2)
    sequences = add(of, *(request(10, 3) for _ in range(4)))
    step = of.schedule() or Step()

    assert step.admitted == sequences[:2]
    assert (of.running, of.waiting) == (2, 2)


def test_one_step_ahead_plans_no_token_too_many() -> None:
    """With a step scheduled ahead, a sequence that ends by max_tokens computes exactly its tokens."""
    of = scheduler()
    add(of, request(10, 7))

    assert sum(step.work.sequences for step in run(of, ahead=True)) == 7


def test_one_step_ahead_wastes_one_on_eos() -> None:
    """With a step scheduled ahead, a sequence that ends by EOS computes one token for nothing."""
    of = scheduler()
    (sequence,) = add(of, request(10, 7, most=100))
    steps = run(of, ahead=True)

    assert sum(step.work.sequences for step in steps) == 8
    assert sequence.outputs == 7
    assert of.blocks.free == of.blocks.total


def test_preemption_takes_the_last() -> None:
    """When blocks run out, the last admitted sequence gives way and is computed again, prompt and output."""
    of = scheduler(blocks=9)
    first, second = add(of, request(64, 40), request(64, 40))
    steps = run(of)

    assert (first.preemptions, second.preemptions) == (0, 1)
    assert of.counters.preemptions == 1
    assert first.finished
    assert second.finished
    assert sum(step.work.prefill_tokens for step in steps) > 128


def test_no_admission_without_room_for_the_whole_prompt() -> None:
    """A prompt that does not fit beside the running ones waits, even if its first chunk would fit."""
    of = scheduler(blocks=10, max_num_batched_tokens=32)
    add(of, request(96, 4), request(96, 4))
    of.complete(of.schedule() or Step())

    assert (of.running, of.waiting) == (1, 1)


def test_prefix_cache_hits_full_blocks() -> None:
    """An equal prompt takes over all full blocks but never the last token, and both counts say so."""
    of = scheduler()
    prompt = list(range(100, 164))
    add(of, request(64, 2, tokens=prompt))
    run(of)
    (again,) = add(of, request(64, 2, tokens=prompt))
    run(of)

    assert again.cached_tokens == 48
    assert (of.counters.prefix_queries, of.counters.prefix_hits) == (128, 48)


def test_prefix_cache_needs_an_equal_beginning() -> None:
    """A block is found only behind the same tokens: the same passage at another place is computed."""
    of = scheduler()
    passage = list(range(1000, 1064))
    add(of, request(64, 1, tokens=passage))
    run(of)
    shifted, extended = add(of, request(80, 1, tokens=[1] * 16 + passage), request(80, 1, tokens=passage + [1] * 16))
    run(of)

    assert (shifted.cached_tokens, extended.cached_tokens) == (0, 64)


def test_prefix_cache_evicts_the_least_recent() -> None:
    """What was released longest ago is evicted first."""
    of = scheduler(blocks=8)
    old, recent, new = ([number] * 64 for number in (1, 2, 3))
    for tokens in (old, recent, old, new):
        add(of, request(64, 1, tokens=tokens))
        run(of)
    kept, lost = add(of, request(64, 1, tokens=old), request(64, 1, tokens=recent))
    run(of)

    assert (kept.cached_tokens, lost.cached_tokens) == (48, 0)


def test_prefix_caching_off() -> None:
    """Switched off, nothing is looked up, counted or shared."""
    of = scheduler(enable_prefix_caching=False)
    prompt = list(range(64))
    add(of, request(64, 1, tokens=prompt))
    run(of)
    (again,) = add(of, request(64, 1, tokens=prompt))
    run(of)

    assert (again.cached_tokens, of.counters.prefix_queries) == (0, 0)


def test_abort_frees_at_once() -> None:
    """An aborted sequence, running or waiting, leaves nothing behind and gets no more tokens."""
    of = scheduler(max_num_seqs=1)
    running, waiting = add(of, request(64, 10), request(64, 10))
    step = of.schedule() or Step()
    of.abort(running)
    of.abort(waiting)

    assert of.complete(step) == []
    assert (of.running, of.waiting, of.blocks.free) == (0, 0, of.blocks.total)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.booleans())
def test_nothing_is_lost(seed: int, ahead: bool, caching: bool) -> None:
    """Whatever the load, every sequence gets exactly its tokens, no block is lost, and budgets are kept."""
    drawn = random.Random(seed)
    of = scheduler(blocks=40, max_num_batched_tokens=128, max_num_seqs=6, enable_prefix_caching=caching)
    requests = []
    for _ in range(20):
        prompt, output = drawn.randint(1, 300), drawn.randint(1, 60)
        tokens = [drawn.randint(0, 1)] * drawn.randint(0, 200)
        tokens = (tokens + [drawn.getrandbits(30) for _ in range(prompt)])[: prompt + output]
        requests.append(request(prompt, output, tokens=tokens, most=output + drawn.choice([0, 9])))
    sequences = add(of, *requests)
    steps = run(of, ahead=ahead)

    assert [sequence.outputs for sequence in sequences] == [each.output_tokens for each in requests]
    assert of.blocks.free == of.blocks.total
    assert (of.running, of.waiting) == (0, 0)
    assert all(step.work.prefill_tokens + step.work.decodes <= 128 for step in steps)
    assert all(step.work.sequences <= 6 for step in steps)
