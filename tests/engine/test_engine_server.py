"""The simulated engine over real HTTP."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from harness.engine.server import EngineOptions, create_app, serve
from harness.engine.tokens import Tokens
from harness.errors import UsageError

Client = Start = Any
"""Those of conftest.py, which cannot be imported in importlib mode."""

PASSAGES = "[1] Rhine\nThe Rhine rises in the Alps. It reaches the sea in Rotterdam — a port 😀 of the Netherlands.\n\n"
QUESTION = PASSAGES + "Question: Where does the Rhine rise?"
CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
METRICS = [
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:request_success_total",
    "vllm:cache_config_info",
    "ragload_simulated",
    "vllm:time_to_first_token_seconds_count",
    "vllm:inter_token_latency_seconds_count",
    "vllm:e2e_request_latency_seconds_count",
    "vllm:request_queue_time_seconds_count",
    "vllm:request_prefill_time_seconds_count",
    "vllm:request_decode_time_seconds_count",
]


@pytest.fixture(scope="module")
def engine(start: Start) -> Client:
    return start(gpu="h200")


def body(path: str, text: str = QUESTION, **fields: object) -> dict[str, object]:
    prompt = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    return {**prompt, **fields}


def text_of(choice: dict) -> str:
    return choice.get("text") or (choice.get("delta") or choice.get("message") or {}).get("content") or ""


def until(client: Client, name: str, value: float, timeout_s: float = 5) -> float:
    """The metric, once it is `value` or time is up."""
    deadline = time.monotonic() + timeout_s
    while (seen := client.metrics()[name]) != value and time.monotonic() < deadline:
        time.sleep(0.02)
    return seen


@pytest.mark.parametrize("path", [CHAT, PLAIN])
def test_streaming_equals_whole(engine: Client, path: str) -> None:
    """The same request streamed and not gives the same text, finish reason and usage."""
    asked = body(path, max_tokens=70, ignore_eos=True, seed=3)
    whole = engine.post(path, asked)
    events = engine.events(path, {**asked, "stream_options": {"include_usage": True}})
    choices = [event["choices"][0] for event in events if event["choices"]]

    assert "".join(map(text_of, choices)) == text_of(whole["choices"][0]) != ""
    assert [choice["finish_reason"] for choice in choices[-2:]] == [None, "length"]
    assert events[-1]["choices"] == []
    for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert events[-1]["usage"][key] == whole["usage"][key]
    assert whole["usage"]["completion_tokens"] == 70


def test_a_chat_stream_opens_with_the_role(engine: Client) -> None:
    """The first event of a chat stream names the role and holds no token."""
    first = engine.events(CHAT, body(CHAT, max_tokens=5, **USAGE))[0]

    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["usage"]["completion_tokens"] == 0


def test_continuous_usage_counts_held_back_tokens(engine: Client) -> None:
    """Usage in each event rises to the total; where a character was incomplete, one event holds several tokens."""
    events = engine.events(PLAIN, body(PLAIN, max_tokens=60, ignore_eos=True, **USAGE))
    counts = [event["usage"]["completion_tokens"] for event in events]

    assert counts == sorted(counts)
    assert counts[-1] == 60
    assert len(events) - 1 < 60
    assert all(text_of(event["choices"][0]) for event in events[:-2])


def test_an_answer_ends_by_itself(engine: Client, tokens: Tokens) -> None:
    """Without ignore_eos an answer stops after its sentence; usage counts the EOS, as vLLM's does."""
    answer = engine.chat(QUESTION, max_tokens=100)
    choice = answer["choices"][0]

    assert (choice["message"]["content"], choice["finish_reason"]) == ("The Rhine rises in the Alps.", "stop")
    assert answer["usage"]["completion_tokens"] == len(tokens.encode(choice["message"]["content"])) + 1


@pytest.mark.parametrize(("fields", "count"), [({"min_tokens": 50}, 50), ({"ignore_eos": True}, 50)])
def test_exact_lengths(engine: Client, fields: dict, count: int) -> None:
    """min_tokens = max_tokens, and ignore_eos alone, give exactly max_tokens."""
    answer = engine.chat(QUESTION, max_completion_tokens=count, **fields)

    assert answer["usage"]["completion_tokens"] == count
    assert answer["choices"][0]["finish_reason"] == "length"


def test_stop_strings(engine: Client) -> None:
    """A stop string ends the answer before it and is named."""
    choice = engine.chat(QUESTION, max_tokens=50, stop=["Alps"])["choices"][0]

    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == (
        "The Rhine rises in the ",
        "stop",
        "Alps",
    )


def test_tokenize_counts_as_usage_does(engine: Client) -> None:
    """/tokenize of messages and of a prompt counts what usage counts, and /detokenize gives the text back."""
    chat, plain = body(CHAT), body(PLAIN)

    assert engine.post("/tokenize", chat)["count"] == engine.post(CHAT, chat)["usage"]["prompt_tokens"]
    row = engine.post("/tokenize", plain)
    assert row["count"] == engine.post(PLAIN, plain)["usage"]["prompt_tokens"] == len(row["tokens"])
    assert row["max_model_len"] == 8192
    assert engine.post("/detokenize", {"tokens": row["tokens"]}) == {"prompt": QUESTION}


def test_all_forms_of_a_prompt(engine: Client, tokens: Tokens) -> None:
    """A prompt as text, as a list of one, and as token ids are the same prompt."""
    forms = (QUESTION, [QUESTION], tokens.encode(QUESTION), [tokens.encode(QUESTION)])
    answers = [engine.post(PLAIN, {"prompt": form, "max_tokens": 12, "ignore_eos": True}) for form in forms]

    assert len({answer["choices"][0]["text"] for answer in answers}) == 1
    assert len({answer["usage"]["prompt_tokens"] for answer in answers}) == 1


def test_text_parts(engine: Client) -> None:
    """Message content may be a list of text parts."""
    parts = [{"type": "text", "text": QUESTION}]
    answer = engine.post(CHAT, {"messages": [{"role": "user", "content": parts}]})

    assert answer["choices"][0]["message"]["content"] == "The Rhine rises in the Alps."


@pytest.mark.parametrize(
    ("path", "asked", "status", "word"),
    [
        (CHAT, b'{"messages": [', 400, "JSON"),
        (CHAT, [], 400, "object"),
        (CHAT, {"messages": []}, 400, "messages"),
        (CHAT, {"messages": [{"content": "x"}]}, 400, "role"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "text parts"),
        (CHAT, body(CHAT, model="gpt-4"), 404, "gpt-4"),
        (CHAT, body(CHAT, n=2), 400, "n=1"),
        (CHAT, body(CHAT, logprobs=True), 400, "logprobs"),
        (CHAT, body(CHAT, max_tokens=0), 400, "max_tokens"),
        (CHAT, body(CHAT, max_tokens="many"), 400, "max_tokens"),
        (CHAT, body(CHAT, max_tokens=5, min_tokens=6), 400, "min_tokens"),
        (CHAT, body(CHAT, stream_options={"include_usage": True}), 400, "stream_options"),
        (CHAT, body(CHAT, "word " * 9000), 400, "maximum context length is 8192 tokens"),
        (CHAT, body(CHAT, max_tokens=8192), 400, "maximum context length is 8192 tokens"),
        (PLAIN, {"prompt": ["a", "b"]}, 400, "prompt"),
        (PLAIN, {"prompt": [10**9]}, 400, "vocabulary"),
        (PLAIN, {"prompt": ""}, 400, "empty"),
        (PLAIN, body(PLAIN, stop=5), 400, "stop"),
        ("/tokenize", {"text": "x"}, 400, "prompt"),
        ("/detokenize", {"tokens": ["x"]}, 400, "tokens"),
        ("/v2/nothing", {}, 404, "Not Found"),
    ],
)
def test_refusals(engine: Client, path: str, asked: object, status: int, word: str) -> None:
    """What cannot be served is answered with vLLM's error object."""
    error = engine.post(path, asked, status=status)["error"]

    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    assert word in error["message"]


def test_what_it_says_of_itself(engine: Client, tokenizer: str) -> None:
    """/version says SIMULATED and what is simulated; /v1/models names model, tokenizer and length."""
    version, model = engine.get("/version"), engine.get("/v1/models")["data"][0]

    assert (version["version"], version["simulated"], version["gpu"]) == ("0.25.1", True, "h200")
    assert (version["model"], version["dtype"], version["time_scale"]) == ("llama-3.1-8b", "bf16", 0.1)
    assert (model["id"], model["owned_by"]) == ("llama-3.1-8b", "ragload-simulated")
    assert (model["root"], model["max_model_len"]) == (tokenizer, 8192)


def test_metrics(start: Start) -> None:
    """All metrics of the contract are there, and the counters are exactly what was asked."""
    engine = start(gpu="h200", served_model_name="mine")
    answers = [engine.chat(QUESTION, max_tokens=30, ignore_eos=True, model="mine") for _ in range(3)]
    with engine.open("GET", "/metrics") as response:
        text = response.read().decode()
    metrics = engine.metrics()
    prompt = answers[0]["usage"]["prompt_tokens"]

    assert [name for name in METRICS if name not in metrics] == []
    assert 'vllm:request_success_total{engine="0",finished_reason="length",model_name="mine"} 3.0' in text
    assert metrics["vllm:prompt_tokens_total"] == 3 * prompt
    assert metrics["vllm:generation_tokens_total"] == 90
    assert metrics["vllm:time_to_first_token_seconds_count"] == 3
    assert metrics["vllm:inter_token_latency_seconds_count"] == 87
    assert metrics["vllm:prefix_cache_queries_total"] == 3 * prompt
    assert metrics["vllm:kv_cache_usage_perc"] == metrics["vllm:num_requests_running"] == 0
    assert metrics["ragload_simulated"] == 1


def test_prefix_cache_is_reported(start: Start) -> None:
    """The second of two equal prompts reports its cached tokens in usage and in the metrics; none when switched off."""
    long = PASSAGES * 6 + "Question: Where does the Rhine rise?"
    for caching in (True, False):
        engine = start(gpu="h200", enable_prefix_caching=caching)
        usages = [engine.chat(long, max_tokens=2)["usage"] for _ in range(2)]
        cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
        expected = (usages[0]["prompt_tokens"] - 1) // 16 * 16 if caching else 0

        assert cached == [0, expected]
        assert engine.metrics()["vllm:prefix_cache_hits_total"] == expected


def test_a_tiny_memory_preempts(start: Start) -> None:
    """With little memory the KV cache is never overfull, sequences are preempted, and every answer is complete."""
    engine = start(gpu="rtx-4090", gpu_memory_utilization=0.72, max_model_len=1024, time_scale=0.02)
    usage: list[float] = []
    with ThreadPoolExecutor(25) as pool:
        asked = [
            pool.submit(engine.chat, f"{number} {QUESTION}", max_tokens=700, ignore_eos=True) for number in range(24)
        ]
        while not all(each.done() for each in asked):
            usage.append(engine.metrics()["vllm:kv_cache_usage_perc"])
            time.sleep(0.02)
    counts = [each.result()["usage"]["completion_tokens"] for each in asked]

    assert counts == [700] * 24
    assert 0.8 < max(usage) <= 1
    assert engine.metrics()["vllm:num_preemptions_total"] > 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_blocks(start: Start, stream: bool) -> None:
    """A disconnect aborts the request: its blocks are free and it is counted as aborted."""
    engine = start(gpu="h200", time_scale=1.0)
    with socket.create_connection(("127.0.0.1", engine.port)) as connection:
        raw = (
            b'{"prompt": "One two. Three four.", "max_tokens": 8000, "ignore_eos": true, "stream": %s}'
            % str(stream).lower().encode()
        )
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(raw) + raw)
        assert until(engine, "vllm:num_requests_running", 1) == 1
        assert engine.metrics()["vllm:kv_cache_usage_perc"] > 0

    assert until(engine, "vllm:num_requests_running", 0) == 0
    assert engine.metrics()["vllm:kv_cache_usage_perc"] == 0
    assert engine.metrics()["vllm:request_success_total"] == 1


def test_the_seed_decides(start: Start) -> None:
    """Two engines give the same answer to the same request; another seed, of request or engine, another one."""
    text = (
        PASSAGES + "It is long. It is wide. It is old. It is cold. It is deep.\n\nQuestion: Where does the Rhine rise?"
    )
    same, again, other = (start(gpu="h200", seed=seed) for seed in (1, 1, 2))
    fields = {"max_tokens": 90, "ignore_eos": True}
    first = same.chat(text, **fields)["choices"]

    assert first == again.chat(text, **fields)["choices"]
    assert first != other.chat(text, **fields)["choices"]
    assert first == other.chat(text, seed=1, **fields)["choices"]


def test_time_scale(start: Start) -> None:
    """At a tenth of the time scale an answer takes a tenth of the time, and both take what the model says."""
    took = {}
    for scale in (1.0, 0.1):
        engine = start(gpu="h200", time_scale=scale)
        engine.chat("Warm up.", max_tokens=2)
        began_s = time.perf_counter()
        engine.chat(QUESTION, max_tokens=200, ignore_eos=True)
        took[scale] = time.perf_counter() - began_s

    assert 0.94 < took[1.0] < 1.10
    assert 0.094 < took[0.1] < 0.2


def test_request_ids(engine: Client) -> None:
    """A caller's X-Request-Id becomes part of the answer's id; one unfit for that does not."""
    for given, taken in (("trial-7.3", True), ('a b"', False)):
        with engine.open("POST", PLAIN, body(PLAIN), {"X-Request-Id": given}) as response:
            name = json.loads(response.read())["id"]

        assert (name == f"cmpl-{given}") is taken
        assert name.startswith("cmpl-")


def test_options_that_cannot_be(tokenizer: str) -> None:
    """Unknown GPUs, contexts longer than the model's and shares above one are refused before anything starts."""
    for options, word in (
        ({"gpu": "h2000"}, "h200"),
        ({"model": "llama-2-7b"}, "4096"),
        ({"gpu": "l4", "gpu_memory_utilization": 0.6}, "does not fit"),
    ):
        with pytest.raises(UsageError, match=word):
            create_app(EngineOptions(tokenizer=tokenizer, **options))
    for options in ({"time_scale": 0}, {"gpu_memory_utilization": 1.5}, {"max_num_seqs": -1}):
        with pytest.raises(UsageError, match=next(iter(options))):
            EngineOptions(tokenizer=tokenizer, **options)


def test_a_port_in_use(tokenizer: str) -> None:
    """A taken port is refused in one line."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"cannot listen on 127.0.0.1:{port} \(Address already in use\)"):
            serve(EngineOptions(tokenizer=tokenizer), port=port)


def test_the_engine_starts_without_torch(tokenizer: str) -> None:
    """Making the app imports neither PyTorch nor another room."""
    code = (
        "import sys; from harness.engine.server import EngineOptions, create_app; "
        f"create_app(EngineOptions(tokenizer={tokenizer!r})); "
        "print([n for n in ('torch', 'faiss', 'harness.node', 'harness.load', 'harness.results') if n in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert out.stdout.strip() == "[]"
    assert out.stderr == ""
