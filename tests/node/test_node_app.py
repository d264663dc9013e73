"""The node over real HTTP: real MiniLM, FAISS and SmolLM2 tokenizer, and a fake engine that knows what it got."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from harness.errors import CorpusError, ModelMissingError, TargetError, UsageError
from harness.node.app import create_app
from harness.node.server import NodeOptions, start
from harness.served import free_port, served

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
BUDGET = 400


@dataclass(frozen=True)
class Reply:
    """One HTTP response, read to its end."""

    status: int
    headers: Any
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.json()["error"]
        assert error["code"] == self.status
        return error

    def rag(self) -> dict[str, Any]:
        """The object of the closing `rag` event."""
        row: dict[str, Any] = json.loads(self.body.rpartition(b"event: rag\ndata: ")[2])
        return row


class RunningNode:
    """A node under uvicorn in a thread of its own."""

    def __init__(self, options: NodeOptions) -> None:
        self._up = threading.Event()
        self._server: uvicorn.Server | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(options)))
        self._thread.start()
        assert self._up.wait(60)

    async def _serve(self, options: NodeOptions) -> None:
        node = await start(options)
        config = uvicorn.Config(create_app(node), log_level="error", access_log=False)
        self._server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
            self._up.set()
            await self._server.serve(sockets=[listener])
        await node.close()

    def stop(self) -> None:
        assert self._server is not None
        self._server.should_exit = True
        self._thread.join(15)

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            sent = body if isinstance(body, bytes | None) else json.dumps(body)
            connection.request(method, path, sent, headers or {})
            response = connection.getresponse()
            return Reply(response.status, response.headers, response.read())
        finally:
            connection.close()

    def get(self, path: str) -> Reply:
        return self.ask("GET", path)

    def chat(self, question: Any = "What is the Danube?", *, path: str = CHAT, **fields: Any) -> Reply:
        content = {"messages": [{"role": "user", "content": question}]} if path == CHAT else {"prompt": question}
        return self.ask("POST", path, {**content, **fields})


@pytest.fixture(scope="module")
def run_node(topics: Path) -> Iterator[Callable[..., RunningNode]]:
    running: list[RunningNode] = []

    def run(engine_url: str, **options: Any) -> RunningNode:
        given = {"corpus": topics, "input_tokens": BUDGET, "device": "cpu", **options}
        running.append(RunningNode(NodeOptions(engine=engine_url, **given)))
        return running[-1]

    yield run
    for node in running:
        node.stop()


@pytest.fixture(scope="module")
def node(run_node: Callable[..., RunningNode], fake_engine: Any) -> RunningNode:
    return run_node(fake_engine.url)


def usage_of(body: bytes) -> dict[str, Any]:
    """The last usage a stream carries."""
    rows = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]
    return [row["usage"] for row in rows if row.get("usage")][-1]


@pytest.mark.parametrize("path", [CHAT, PLAIN])
@pytest.mark.parametrize("budget", [60, 137, 400, 1500])
def test_the_engine_counts_exactly_the_budget(node: RunningNode, path: str, budget: int) -> None:
    """The engine's own usage has exactly the asked prompt tokens, chat and plain, streamed and whole."""
    rag = {"input_tokens": budget}
    streamed = node.chat(path=path, stream=True, stream_options={"include_usage": True}, rag=rag)
    whole = node.chat(path=path, rag=rag)

    assert (streamed.status, whole.status) == (200, 200)
    assert usage_of(streamed.body)["prompt_tokens"] == budget == streamed.rag()["prompt_tokens"]
    assert whole.json()["usage"]["prompt_tokens"] == budget == whole.json()["rag"]["prompt_tokens"]


def test_the_node_default_budget_applies(node: RunningNode) -> None:
    """Without a rag object the prompt has the node's input tokens, and no rag object comes back."""
    reply = node.chat()

    assert reply.json()["usage"]["prompt_tokens"] == BUDGET
    assert "rag" not in reply.json()


def test_the_engine_gets_system_and_user_with_the_question_last(node: RunningNode, fake_engine: Any) -> None:
    """The engine gets a system and a user message: numbered passages about the question, then the question."""
    node.chat("What is Photosynthesis?", temperature=0.5, seed=7, ignore_eos=True, min_tokens=3, max_tokens=3)
    got = fake_engine.log()[-1]["body"]
    system, user = got.pop("messages")

    assert (system["role"], user["role"]) == ("system", "user")
    assert user["content"].startswith("[1] Photosynthesis\nPhotosynthesis is how plants")
    assert user["content"].endswith("\n\nQuestion: What is Photosynthesis?")
    assert got == {
        "temperature": 0.5, "seed": 7, "ignore_eos": True, "min_tokens": 3, "max_tokens": 3, "model": "fake",
    }  # fmt: skip


def test_bytes_pass_through_unchanged(node: RunningNode, fake_engine: Any) -> None:
    """Without a rag object a client gets the engine's bytes, not one more or less, however they were cut."""
    for pieces in (None, 1, 7):
        reply = node.chat(stream=True, max_tokens=5, script={"pieces": pieces})

        assert reply.body.decode() == fake_engine.log()[-1]["sent"]
        assert reply.body.endswith(b"data: [DONE]\n\n")


def test_the_rag_event_follows_done_only_if_asked_for(node: RunningNode, fake_engine: Any) -> None:
    """With a rag object, even an empty one, exactly one event named rag comes after [DONE]."""
    reply = node.chat(stream=True, rag={}, stream_options={"include_usage": True})
    sent = fake_engine.log()[-1]["sent"].encode()
    event = reply.body.removeprefix(sent)
    rag = reply.rag()

    assert reply.body.startswith(sent)
    assert re.fullmatch(rb"event: rag\ndata: \{.*\}\n\n", event)
    assert set(rag) == {"stages_ms", "prompt_tokens", "cached_tokens", "passage_ids", "request_id"}
    assert (rag["cached_tokens"], rag["request_id"]) == (16, reply.headers["X-Request-Id"])
    assert rag["passage_ids"][0].startswith("Danube-")


def test_stages_add_up_to_arrival_to_last_token(node: RunningNode) -> None:
    """The stages are named as promised, and their sum is what the client saw, within 50 ms."""
    node.chat(rag={})
    started_s = time.perf_counter()
    reply = node.chat(stream=True, max_tokens=8, script={"gap_s": 0.03}, rag={})
    elapsed_ms = 1e3 * (time.perf_counter() - started_s)
    stages = reply.rag()["stages_ms"]

    assert list(stages) == ["wait", "embed", "search", "assemble", "engine_first_token", "decode"]
    assert min(stages.values()) >= 0
    assert 30 <= stages["engine_first_token"] < 120
    assert 7 * 30 <= stages["decode"] < 7 * 30 + 120
    assert elapsed_ms - 50 < sum(stages.values()) <= elapsed_ms


@pytest.mark.parametrize("stream", [True, False])
def test_server_timing_names_the_stages_before_the_engine(node: RunningNode, stream: bool) -> None:
    """Every answer carries wait, embed, search and assemble as a W3C Server-Timing header."""
    header = node.chat(stream=stream).headers["Server-Timing"]

    assert re.sub(r"[\d.]+", "N", header) == "wait;dur=N, embed;dur=N, search;dur=N, assemble;dur=N"


def test_a_request_id_is_kept_or_made(node: RunningNode, fake_engine: Any) -> None:
    """A client's plain X-Request-Id comes back and reaches the engine; a strange one is replaced."""
    body = {"messages": [{"role": "user", "content": "Why?"}]}
    mine = node.ask("POST", CHAT, body, {"X-Request-Id": "mine-1"})

    assert (mine.headers["X-Request-Id"], fake_engine.log()[-1]["id"]) == ("mine-1", "mine-1")
    assert re.fullmatch("[0-9a-f]{32}", node.ask("POST", CHAT, body, {"X-Request-Id": "a b"}).headers["X-Request-Id"])
    assert node.get("/nowhere").headers["X-Request-Id"]


def test_no_retrieval_passes_the_body_as_it_came(node: RunningNode, fake_engine: Any) -> None:
    """With top_k 0 the engine gets the very body without rag; only wait comes before the engine."""
    body = {
        "messages": [{"role": "assistant", "content": "x"}, {"role": "user", "content": " hi "}],
        "script": {"gap_s": 0.01},
    }
    reply = node.ask("POST", CHAT, {**body, "rag": {"top_k": 0}, "stream": True})

    assert fake_engine.log()[-1]["body"] == {**body, "stream": True, "model": "fake"}
    assert set(reply.rag()["stages_ms"]) == {"wait", "engine_first_token", "decode"}
    assert (reply.rag()["passage_ids"], reply.rag()["prompt_tokens"]) == ([], None)


def test_contexts_are_what_the_prompt_holds(node: RunningNode, fake_engine: Any) -> None:
    """return_contexts gives the passages as they stand in the prompt, the last one cut."""
    rag = node.chat(rag={"return_contexts": True, "input_tokens": 250}).json()["rag"]
    user = fake_engine.log()[-1]["body"]["messages"][1]["content"]

    assert [row["id"] for row in rag["contexts"]] == rag["passage_ids"]
    assert all(row["text"] in user for row in rag["contexts"])


def test_top_k_limits_the_passages(node: RunningNode) -> None:
    """With a budget that cuts into them, top_k passages are the most a prompt holds; too few to fill it is a 422."""
    held = node.chat(rag={"top_k": 2, "input_tokens": 150}).json()["rag"]["passage_ids"]
    refused = node.chat(rag={"top_k": 2, "input_tokens": 1500})

    assert 1 <= len(held) <= 2
    assert refused.status == 422
    assert "of 1500 tokens with all 2 passages" in refused.error()["message"]


def test_a_corpus_too_small_for_the_budget_is_said_to_be(node: RunningNode) -> None:
    """A budget beyond the whole corpus is a 422 that counts all its passages."""
    assert "with all 72 passages" in node.chat(rag={"input_tokens": 8000}).error()["message"]


def test_natural_length_takes_four_passages(run_node: Callable[..., RunningNode], fake_engine: Any) -> None:
    """A node without a budget puts four passages into the prompt, whole, or as many as top_k says."""
    natural = run_node(fake_engine.url, input_tokens=None)

    assert len(natural.chat(rag={}).json()["rag"]["passage_ids"]) == 4
    assert len(natural.chat(rag={"top_k": 9}).json()["rag"]["passage_ids"]) == 9
    assert natural.chat(rag={"input_tokens": 90}).json()["usage"]["prompt_tokens"] == 90


BAD_REQUESTS = {
    "not JSON": (b"{", 400, "not JSON"),
    "no object": ([1], 400, "JSON object"),
    "lone surrogate": (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400, "not JSON"),
    "no messages": ({}, 400, "messages is missing"),
    "empty messages": ({"messages": []}, 400, "messages is missing"),
    "no user message": ({"messages": [{"role": "system", "content": "x"}]}, 400, "no user message"),
    "messages of text": ({"messages": ["hi"]}, 400, "role and content"),
    "empty question": ({"messages": [{"role": "user", "content": " \n"}]}, 400, "no question"),
    "null question": ({"messages": [{"role": "user", "content": None}]}, 400, "no question"),
    "picture": ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "text only"),
    "long question": ({"messages": [{"role": "user", "content": "x" * 40_000}]}, 400, "32768"),
    "top_k -1": ({"rag": {"top_k": -1}}, 422, "give 0 to 1000"),
    "top_k 10^9": ({"rag": {"top_k": 10**9}}, 422, "give 0 to 1000"),
    "top_k text": ({"rag": {"top_k": "3"}}, 400, "must be an integer"),
    "top_k true": ({"rag": {"top_k": True}}, 400, "must be an integer"),
    "top_k 0 with a budget": ({"rag": {"top_k": 0, "input_tokens": 9}}, 422, "leave one out"),
    "budget 0": ({"rag": {"input_tokens": 0}}, 422, "1 or more"),
    "budget too large": (
        {"messages": [{"role": "user", "content": "Why?"}], "rag": {"input_tokens": 8192}},
        422,
        "up to 8191",
    ),
    "budget too small": ({"messages": [{"role": "user", "content": "Why?"}], "rag": {"input_tokens": 9}}, 422, "alone"),
    "unknown option": ({"rag": {"topk": 3}}, 400, "rag.topk is unknown"),
    "rag no object": ({"rag": 3}, 400, "must be an object"),
    "stream text": ({"stream": "yes"}, 400, "stream must be"),
    "unknown model": ({"messages": [{"role": "user", "content": "Why?"}], "model": "gpt"}, 404, "'gpt' is unknown"),
    "tools": ({"messages": [{"role": "user", "content": "Why?"}], "tools": [{}]}, 400, "tools changes the prompt"),
    "too large": (b" " * (1 << 20) + b"{}", 413, "1 MiB"),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_bad_input_is_refused_with_a_reason(node: RunningNode, fake_engine: Any, name: str) -> None:
    """Each kind of bad request gets its status, an OpenAI error object with a reason, and never reaches the engine."""
    body, status, words = BAD_REQUESTS[name]
    before = len(fake_engine.log())
    reply = node.ask("POST", CHAT, body)

    assert reply.status == status
    assert words in reply.error()["message"]
    assert reply.headers["Server-Timing"].startswith("wait;dur=")
    assert len(fake_engine.log()) == before


def test_a_prompt_of_token_ids_needs_no_retrieval(node: RunningNode) -> None:
    """Token ids as a prompt are refused with the way out: top_k 0."""
    assert "rag.top_k 0" in node.chat([1, 2], path=PLAIN).error()["message"]


def test_an_engine_error_is_503_and_a_refusal_keeps_its_status(node: RunningNode) -> None:
    """The engine's 500 becomes 503 engine_unavailable; its 400 and 429 stay what they are, with its message."""
    replies = {status: node.chat(stream=True, script={"status": status}) for status in (500, 503, 400, 429)}

    assert {status: reply.status for status, reply in replies.items()} == {500: 503, 503: 503, 400: 400, 429: 429}
    assert replies[500].error()["type"] == "engine_unavailable"
    assert all("scripted" in reply.error()["message"] for reply in replies.values())


@pytest.mark.parametrize(
    "script", [{"cut_after": 2}, {"cut_after": 0}, {"no_done": True}, {"garbage": True}], ids=lambda script: str(script)
)
def test_a_broken_stream_ends_with_an_error_and_no_done(node: RunningNode, script: dict[str, Any]) -> None:
    """A stream that breaks off passes on what came, then an error event; no [DONE] and no rag event."""
    reply = node.chat(stream=True, script=script, rag={})
    last = reply.body.rstrip().rpartition(b"\n\ndata: ")[2]

    assert json.loads(last)["error"]["type"] == "engine_unavailable"
    assert b"[DONE]" not in reply.body
    assert b"event: rag" not in reply.body


def test_an_error_in_the_engine_stream_passes_through(node: RunningNode, fake_engine: Any) -> None:
    """An error object the engine puts into its stream reaches the client as it came."""
    reply = node.chat(stream=True, script={"error_after": 1})

    assert reply.body.decode() == fake_engine.log()[-1]["sent"]


def test_a_whole_answer_that_is_not_json_is_503(node: RunningNode) -> None:
    """Garbage instead of the JSON that rag is to be added to is the engine's failure."""
    assert node.chat(script={"garbage": True}, rag={}).error()["type"] == "engine_unavailable"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_cancels_the_engine(node: RunningNode, fake_engine: Any, stream: bool) -> None:
    """Closing the connection ends the generation in the engine, streamed or not."""
    body = {"messages": [{"role": "user", "content": "Why?"}], "stream": stream, "max_tokens": 100}
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=30)
    before = len(fake_engine.log())
    connection.request("POST", CHAT, json.dumps({**body, "script": {"gap_s": 0.1}}))
    while len(fake_engine.log()) == before:
        time.sleep(0.02)
    connection.close()
    deadline = time.monotonic() + 5
    while fake_engine.log()[before]["ended"] is None and time.monotonic() < deadline:
        time.sleep(0.02)

    assert fake_engine.log()[before]["ended"] == "cancelled"


def test_a_dead_engine_is_503_everywhere(start_engine: Any, run_node: Callable[..., RunningNode]) -> None:
    """With the engine gone, whatever needs it says so with a 503; health, questions and metrics answer."""
    engine = start_engine()
    node = run_node(engine.url)
    assert node.get("/ready").json() == {"status": "ready"}
    engine.stop()
    replies = [node.chat(stream=True), node.chat(), node.get("/v1/models"), node.get("/environment")]

    assert [reply.status for reply in replies] == [503] * 4
    assert {reply.error()["type"] for reply in replies} == {"engine_unavailable"}
    assert node.get("/ready").status == 503
    assert engine.url in node.get("/ready").json()["reason"]
    assert node.get("/health").json() == {"status": "ok"}
    assert node.get("/v1/questions").status == 200
    assert b"ragload_node_engine_up 0.0" in node.get("/metrics").body


def test_metrics_hold_both_parts(node: RunningNode) -> None:
    """One scrape has the node's stage histograms and the engine's metrics."""
    node.chat(stream=True)
    text = node.get("/metrics").body.decode()

    for stage in ("wait", "embed", "search", "assemble", "engine_first_token", "decode"):
        assert f'ragload_node_stage_seconds_count{{stage="{stage}"}}' in text
    assert "vllm:num_requests_running 0.0" in text
    assert "ragload_node_in_flight 0.0" in text


def test_retrieval_alone(node: RunningNode) -> None:
    """/v1/retrieve gives the best passages with falling scores and its stages; the gold passage is among them."""
    row = node.ask("POST", "/v1/retrieve", {"query": "What is a Black hole?", "top_k": 6}).json()
    scores = [passage["score"] for passage in row["passages"]]

    assert "Black hole-0" in [passage["id"] for passage in row["passages"]]
    assert {passage["title"] for passage in row["passages"]} == {"Black hole"}
    assert scores == sorted(scores, reverse=True)
    assert set(row["stages_ms"]) == {"wait", "embed", "search"}
    for bad, status in (({"query": ""}, 400), ({"query": "x", "top_k": 0}, 422), ({"query": "x", "top_k": 1001}, 422)):
        assert node.ask("POST", "/v1/retrieve", bad).status == status


def test_questions_for_a_load_machine(node: RunningNode) -> None:
    """/v1/questions gives all questions of the corpus with its digest, or the first few; a wrong limit is a 422."""
    every = node.get("/v1/questions").json()

    assert len(every["questions"]) == 12
    assert every["questions"][0] == {"id": "q-Danube", "question": "What is Danube?"}
    assert every["corpus"].startswith("sha256:")
    assert node.get("/v1/questions?limit=2").json()["questions"] == every["questions"][:2]
    assert [node.get(f"/v1/questions?limit={bad}").status for bad in ("0", "x")] == [422, 422]


def test_the_environment_tells_node_corpus_and_engine(node: RunningNode, fake_engine: Any) -> None:
    """/environment has what a trial is filed with, the engine's own words and its simulated flag included."""
    row = node.get("/environment").json()

    assert set(row) == {"node", "corpus", "engine", "gpus"}
    assert row["engine"] == {
        "url": fake_engine.url, "model": "fake", "max_model_len": 8192,
        "version": "0.0.fake", "simulated": True, "gpu": "none",
    }  # fmt: skip
    assert row["node"]["index"]["kind"] == "flat"
    assert row["node"]["index"]["digest"] == row["corpus"]["digest"]
    assert {"ragload", "python", "host_cpu", "cores", "embedder", "embedder_device", "faiss"} <= set(row["node"])
    assert row["node"]["uptime_s"] > 0


def test_unknown_paths_and_methods_speak_json(node: RunningNode) -> None:
    """A wrong path is a 404 and a wrong method a 405, both as error objects."""
    assert "/nowhere" in node.get("/nowhere").error()["message"]
    assert node.get(CHAT).error()["code"] == 405


def test_an_engine_whose_tokenizer_is_not_here_does_the_counting(
    start_engine: Any, run_node: Callable[..., RunningNode]
) -> None:
    """Without a loadable tokenizer the engine's /tokenize is asked, and prompts are exact all the same."""
    remote = run_node(start_engine(root="./no/such/folder/here").url)

    assert remote.chat().json()["usage"]["prompt_tokens"] == BUDGET
    assert remote.chat(path=PLAIN).json()["usage"]["prompt_tokens"] == BUDGET
    assert remote.get("/environment").json()["node"]["tokenizer"] == "the engine"


def started(**options: Any) -> None:
    """Start a node and close it again."""

    async def once() -> None:
        node = await start(NodeOptions(device="cpu", **options))
        await node.close()

    asyncio.run(once())


def test_a_node_refuses_a_tokenizer_that_is_not_the_engines(
    start_engine: Any, topics: Path, tokenizer_folder: Path
) -> None:
    """A named tokenizer that counts otherwise than the engine is wrong use; one that is not there is missing."""
    engine = start_engine(swap=True)
    with pytest.raises(UsageError, match="not the engine's"):
        started(corpus=topics, engine=engine.url, tokenizer=str(tokenizer_folder))
    with pytest.raises(ModelMissingError, match="no/such"):
        started(corpus=topics, engine=engine.url, tokenizer="./no/such/tokenizer")


def test_a_node_refuses_to_start_without_its_parts(topics: Path, start_engine: Any, tmp_path: Path) -> None:
    """No corpus, no engine and a budget beyond the engine's context are each an error that says what to do."""
    with pytest.raises(CorpusError, match="ragload corpus build"):
        started(corpus=tmp_path / "none", engine="http://127.0.0.1:9")
    with pytest.raises(TargetError, match=r"http://127.0.0.1:9 did not answer .* start it with"):
        started(corpus=topics, engine="http://127.0.0.1:9", engine_timeout_s=0.2)
    with pytest.raises(UsageError, match="max_model_len 512"):
        started(corpus=topics, engine=start_engine(max_model_len=512).url, input_tokens=512)
    for wrong in ({"top_k": 0}, {"top_k": 1001}, {"input_tokens": 0}):
        with pytest.raises(UsageError):
            NodeOptions(corpus=topics, engine="http://127.0.0.1:9", **wrong)


@pytest.mark.slow
def test_the_command_serves_and_stops(topics: Path, fake_engine: Any) -> None:
    """`ragload node` says its address on stderr, answers there, and ends on SIGTERM without a traceback."""
    command = [sys.executable, "-m", "harness", "node", "--corpus", str(topics), "--engine", fake_engine.url]
    with subprocess.Popen([*command, "--port", "0"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = []
        try:
            for line in process.stderr:
                said.append(line)
                if line.startswith("node over topics: "):
                    break
            with urllib.request.urlopen(f"{said[-1].split()[-1]}/ready") as reply:
                ready = json.load(reply)
        finally:
            process.terminate()
        said += process.stderr.readlines()

    assert ready == {"status": "ready"}
    assert "Traceback" not in "".join(said)


def test_the_simulated_engine_counts_exactly_too(run_node: Callable[..., RunningNode], tmp_path: Path) -> None:
    """In front of `ragload engine`, forced lengths and the budget are exact by its usage, chat and plain, at once."""
    port = free_port()
    command = [sys.executable, "-m", "harness", "engine", "--port", str(port), "--time-scale", "0.05"]
    fields = {"stream": True, "max_tokens": 9, "ignore_eos": True, "stream_options": {"include_usage": True}, "rag": {}}
    url = f"http://127.0.0.1:{port}"
    with served(command, ready_url=f"{url}/health", log=tmp_path / "engine.log", timeout_s=60):
        node = run_node(url)
        with ThreadPoolExecutor(8) as clients:
            asked = [clients.submit(node.chat, path=path, **fields) for path in (CHAT, PLAIN) for _ in range(8)]
            usages = [usage_of(reply.result().body) for reply in asked]
        engine = node.get("/environment").json()["engine"]

    assert {(usage["prompt_tokens"], usage["completion_tokens"]) for usage in usages} == {(BUDGET, 9)}
    assert engine["simulated"] is True
