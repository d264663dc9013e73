"""Continuous batching with chunked prefill, step by step, as vLLM V1 does it; without a clock.

Each step has a budget of tokens. Running sequences come first, oldest first, so decodes precede the
one prefill that may be unfinished; then waiting ones are admitted in order of arrival, if all of
their prompt fits in the KV cache. When a running sequence finds no block, the last admitted one is
preempted: it gives its blocks back, goes to the head of the queue and computes everything again.

`schedule` may be called before the step before it is `complete` (asynchronous scheduling): a sequence
is then planned ahead by a token whose value nobody knows yet, and one that ends early by EOS
computes one token for nothing. Knows lengths and hashes; no text, no time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Values
from dataclasses import dataclass, field

from harness.engine.blocks import Blocks
from harness.engine.cost import BLOCK_TOKENS, Work


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What a sequence asks for.

    output_tokens  tokens it will get, an EOS included; `max_tokens` is what the scheduler must plan for
    hashes         of the full blocks of prompt + output (harness.engine.blocks); () shares nothing
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    hashes: Values[int] = ()


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on its way: positions in tokens, blocks held. Instants (s) belong to the caller."""

    request: Request
    computed: int = 0
    target: int = 0
    planned: int = 0
    outputs: int = 0
    cached_tokens: int | None = None
    preemptions: int = 0
    registered: int = 0
    over: bool = False
    blocks: list[int] = field(default_factory=list)
    arrived_s: float = 0.0
    scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None

    @property
    def finished(self) -> bool:
        """All of its tokens are out."""
        return self.outputs >= self.request.output_tokens


@dataclass(slots=True)
class Step:
    """One step: what it computes, who was admitted by it, who gets a token when it is complete."""

    work: Work = field(default_factory=Work)
    admitted: list[Sequence] = field(default_factory=list)
    sampling: list[Sequence] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """vLLM's scheduler arguments, under their names there."""

    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    enable_prefix_caching: bool = True


@dataclass(slots=True)
class Counters:
    """Totals since the start. Prefix-cache figures are in tokens, each request's first admission."""

    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0


class Scheduler:
    """Decides what each step computes. Not thread-safe; one owner."""

    def __init__(self, blocks: Blocks, limits: Limits) -> None:
        self.blocks = blocks
        self.counters = Counters()
        self._limits = limits
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence. Its prompt and output must fit in the whole cache."""
        self._waiting.append(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Drop a sequence wherever it is; its blocks are free at once."""
        if sequence.over:
            return
        self._end(sequence)

    def schedule(self) -> Step | None:
        """The next step, or None if nothing can be computed now."""
        step = Step()
        preempted = self.counters.preemptions
        budget = self._advance_running(step, self._limits.max_num_batched_tokens)
        if self.counters.preemptions == preempted:
            self._admit(step, budget)
        return step if step.work.sequences else None

    def complete(self, step: Step) -> list[Sequence]:
        """Deliver the step's tokens: the sequences that got one, in order; `finished` ones are freed."""
        produced = [sequence for sequence in step.sampling if not sequence.over]
        for sequence in produced:
            sequence.outputs += 1
            if sequence.finished:
                self._end(sequence)
        return produced

    def _advance_running(self, step: Step, budget: int) -> int:
        index = 0
        while index < len(self._running) and budget > 0:
            sequence = self._running[index]
            index += 1
            left = sequence.target - sequence.computed
            if left <= 0 and sequence.planned >= sequence.request.max_tokens:
                continue
            tokens = min(left, budget) if left > 0 else 1
            if not self._make_room(sequence, tokens):
                break
            self._compute(step, sequence, tokens)
            budget -= tokens
        return budget

    def _make_room(self, sequence: Sequence, tokens: int) -> bool:
        needed = -(-(sequence.computed + tokens) // BLOCK_TOKENS) - len(sequence.blocks)
        if needed <= 0:
            return True
        while self.blocks.free < needed:
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.blocks += self.blocks.take(needed)
        return True

    def _preempt(self, victim: Sequence) -> None:
        self._running.pop()
        self._free(victim)
        victim.computed = victim.target = 0
        victim.preemptions += 1
        self.counters.preemptions += 1
        self._waiting.appendleft(victim)

    def _admit(self, step: Step, budget: int) -> None:
        while self._waiting and budget > 0 and len(self._running) < self._limits.max_num_seqs:
            sequence = self._waiting[0]
            # A preempted sequence may still have a token under way, which its prompt will then hold.
            if sequence.planned != sequence.outputs or not self._place(sequence):
                return
            self._running.append(self._waiting.popleft())
            step.admitted.append(sequence)
            tokens = min(sequence.target - sequence.computed, budget)
            # Room was checked for the whole prompt, so nobody is preempted here.
            self._make_room(sequence, tokens)
            self._compute(step, sequence, tokens)
            budget -= tokens

    def _place(self, sequence: Sequence) -> bool:
        """Take over cached blocks, if the whole prompt then fits; False leaves everything as it was."""
        target = sequence.request.prompt_tokens + sequence.outputs
        hits = self._cached_blocks(sequence, target)
        if -(-target // BLOCK_TOKENS) - len(hits) > self.blocks.free - self.blocks.unheld(hits):
            return False
        self.blocks.hold(hits)
        sequence.blocks = list(hits)
        sequence.registered = len(hits)
        sequence.target = target
        sequence.computed = len(hits) * BLOCK_TOKENS
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
            if self._limits.enable_prefix_caching:
                self.counters.prefix_queries += target
                self.counters.prefix_hits += sequence.computed
        return True

    def _cached_blocks(self, sequence: Sequence, target: int) -> list[int]:
        # The last token is always computed: its output is the first new token.
        most = (target - 1) // BLOCK_TOKENS
        return self.blocks.cached_prefix(sequence.request.hashes, most) if self._limits.enable_prefix_caching else []

    def _compute(self, step: Step, sequence: Sequence, tokens: int) -> None:
        work, start = step.work, sequence.computed
        prefill = start < sequence.target
        sequence.computed = end = start + tokens
        work.sequences += 1
        if prefill:
            work.prefill_tokens += tokens
            work.attention_pairs += tokens * start + tokens * (tokens + 1) // 2
        else:
            work.decodes += 1
            work.kv_tokens += end
        if end >= sequence.target:
            sequence.planned += 1
            work.sampled += 1
            step.sampling.append(sequence)
        if end // BLOCK_TOKENS > sequence.registered:
            self._register(sequence)

    def _register(self, sequence: Sequence) -> None:
        hashes = sequence.request.hashes
        full = min(sequence.computed // BLOCK_TOKENS, len(hashes)) if self._limits.enable_prefix_caching else 0
        for index in range(sequence.registered, full):
            self.blocks.register(sequence.blocks[index], hashes[index])
        sequence.registered = max(sequence.registered, sequence.computed // BLOCK_TOKENS)

    def _end(self, sequence: Sequence) -> None:
        sequence.over = True
        self._free(sequence)
        if sequence in self._running:
            self._running.remove(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def _free(self, sequence: Sequence) -> None:
        self.blocks.release(sequence.blocks)
        sequence.blocks = []
