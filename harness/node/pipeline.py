"""Question to prompt: embed, search, assemble, each in threads of its own so that streams never stall.

Knows passages, vectors and budgets; does not know HTTP, nor what an engine makes of the prompt.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from harness.node.asked import TOP_K_LIMIT, TOP_K_NATURAL, Asked
from harness.node.batch import Batcher
from harness.node.corpus import Corpus, Passage
from harness.node.embed import Embedder
from harness.node.index import Index, limit_search_threads
from harness.node.prompt import Prompt, assemble_or_short, assemble_remote, checked, natural, within_chars
from harness.node.stages import Stages
from harness.node.tokens import LocalFrame, LocalTokenizer, RemoteFrame, Tokenize

_CHARS_PER_TOKEN = 5.0
_ASSEMBLY_THREADS = 4

Vector = NDArray[np.float32]
Query = tuple[Vector, int]


@dataclass(frozen=True, kw_only=True)
class Found:
    """A passage and its cosine with the question."""

    passage: Passage
    score: float


class Pipeline:
    """Retrieval and prompt assembly over one corpus. `tokenizer` None: `tokenize` asks the engine instead."""

    def __init__(
        self, corpus: Corpus, embedder: Embedder, index: Index, tokenizer: LocalTokenizer | None, tokenize: Tokenize
    ) -> None:
        self._corpus = corpus
        self._index = index
        self._tokenizer, self._tokenize = tokenizer, tokenize
        self._most = min(TOP_K_LIMIT, len(corpus.passages))
        self._mean_chars = sum(len(p.title) + len(p.text) for p in corpus.passages) / len(corpus.passages) + 1
        self._embedding: Batcher[str, Vector] = Batcher(
            lambda questions: list(embedder.encode_query(questions)), name="embed"
        )
        self._searching: Batcher[Query, list[Found]] = Batcher(
            self._search_batch, name="search", before=limit_search_threads
        )
        self._assembly = ThreadPoolExecutor(min(_ASSEMBLY_THREADS, os.cpu_count() or 1), thread_name_prefix="assemble")

    def close(self) -> None:
        """End the threads."""
        self._embedding.close()
        self._searching.close()
        self._assembly.shutdown(wait=True, cancel_futures=True)

    async def retrieve(self, question: str, top_k: int, stages: Stages) -> list[Found]:
        """The best `top_k` passages (fewer if the corpus has fewer), best first."""
        return await self._search(await self._embed(question, stages), top_k, stages)

    async def prompt(self, question: str, asked: Asked, stages: Stages) -> Prompt:
        """The prompt of a checked request. Raises BudgetError if the budget cannot be met exactly."""
        vector = await self._embed(question, stages)
        if asked.input_tokens is None:
            found = await self._search(vector, asked.top_k or TOP_K_NATURAL, stages)
            return natural(question, [item.passage for item in found])
        frame = self._frame(asked)
        if asked.top_k is None:
            return await self._fill(question, vector, asked.input_tokens, frame, stages)
        found = await self._search(vector, asked.top_k, stages)
        passages = [item.passage for item in found]
        prompt = await self._assemble(question, passages, asked.input_tokens, frame, stages)
        return checked(prompt, asked.input_tokens)

    async def _fill(
        self, question: str, vector: Vector, budget: int, frame: LocalFrame | RemoteFrame, stages: Stages
    ) -> Prompt:
        """As many passages as the budget takes: a guess by characters, doubled until it is enough."""
        chars = _CHARS_PER_TOKEN * budget
        while True:
            k = min(self._most, 4 + int(1.5 * chars / self._mean_chars))
            found = await self._search(vector, k, stages)
            passages = within_chars([item.passage for item in found], chars)
            prompt = await self._assemble(question, passages, budget, frame, stages)
            if prompt.prompt_tokens == budget or (k == self._most and len(passages) == len(found)):
                return checked(prompt, budget)
            chars *= 2

    def _frame(self, asked: Asked) -> LocalFrame | RemoteFrame:
        if self._tokenizer is None:
            return RemoteFrame(asked.shape, self._tokenize)
        return self._tokenizer.frame(asked.shape)

    async def _embed(self, question: str, stages: Stages) -> Vector:
        done = await self._embedding.submit(question)
        stages.add("embed", done.work_s)
        return done.result

    async def _search(self, vector: Vector, top_k: int, stages: Stages) -> list[Found]:
        done = await self._searching.submit((vector, min(top_k, self._most)))
        stages.add("search", done.work_s)
        return done.result

    async def _assemble(
        self, question: str, passages: Sequence[Passage], budget: int, frame: LocalFrame | RemoteFrame, stages: Stages
    ) -> Prompt:
        if isinstance(frame, RemoteFrame):
            started_s = perf_counter()
            prompt = await assemble_remote(question, passages, budget, frame)
            seconds = perf_counter() - started_s
        else:
            work = partial(_timed_assembly, question, passages, budget, frame)
            prompt, seconds = await asyncio.get_running_loop().run_in_executor(self._assembly, work)
        stages.add("assemble", seconds)
        return prompt

    def _search_batch(self, queries: Sequence[Query]) -> list[list[Found]]:
        """One search for all, as deep as the deepest asks. Runs in the index's owner thread."""
        vectors = np.stack([vector for vector, _ in queries])
        rows, scores = self._index.search(vectors, max(k for _, k in queries))
        return [
            self._found(rows[place, :k].tolist(), scores[place, :k].tolist()) for place, (_, k) in enumerate(queries)
        ]

    def _found(self, rows: Sequence[int], scores: Sequence[float]) -> list[Found]:
        passages = self._corpus.passages
        return [Found(passage=passages[row], score=score) for row, score in zip(rows, scores, strict=True) if row >= 0]


def _timed_assembly(question: str, passages: Sequence[Passage], budget: int, frame: LocalFrame) -> tuple[Prompt, float]:
    started_s = perf_counter()
    prompt = assemble_or_short(question, passages, budget, frame)
    return prompt, perf_counter() - started_s
