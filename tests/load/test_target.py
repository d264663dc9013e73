"""What a target tells about itself, and what is made of a target that tells nothing."""

from __future__ import annotations

import socket

import pytest

from harness.errors import TargetError
from harness.load.client import parse_target
from harness.load.questions import Question
from harness.load.target import fetch_counters, fetch_environment, fetch_questions, read_counters, source_of

METRICS = """
# HELP vllm:num_requests_running Running.
vllm:num_requests_running{engine="0",model_name="a}b"} 1.0
vllm:num_requests_running{engine="1",model_name="a"} 2.0
vllm:prompt_tokens_total 1.5e+03
vllm:ttft_bucket{le="1"} 4
vllm:ttft_sum 0.25 1700000000
vllm:odd NaN
ragload_requests_total{route="/v1"} 7
python_gc 3
"""


def test_counters():
    """Counters are summed over their labels; buckets, foreign and non-finite ones are left out."""
    assert read_counters(METRICS) == {
        "vllm:num_requests_running": 3.0,
        "vllm:prompt_tokens_total": 1500.0,
        "vllm:ttft_sum": 0.25,
        "ragload_requests_total": 7.0,
    }


def test_sources():
    """vLLM's counters are filed under the engine, our node's under the node."""
    assert (source_of("vllm:x"), source_of("ragload_x")) == ("engine", "node")


def test_node_environment(scripted):
    """A node's own account is taken as it is."""
    told = {"node": {"ragload": "1"}, "engine": {"simulated": True}}

    assert fetch_environment(parse_target(scripted(pages={"/environment": told}).url)) == told


@pytest.mark.parametrize(
    ("version", "simulated"), [({"version": "0.25.1"}, False), ({"version": "1", "simulated": True}, True)]
)
def test_bare_engine(scripted, version, simulated):
    """A bare engine counts as simulated only if its /version says so."""
    models = {"data": [{"id": "llama", "max_model_len": 4096}]}
    server = scripted(pages={"/version": version, "/v1/models": models})
    engine = fetch_environment(parse_target(server.url))["engine"]

    assert (engine["simulated"], engine["model"], engine["max_model_len"]) == (simulated, "llama", 4096)
    assert (engine["version"], engine["url"]) == (version["version"], server.url)


def test_silent_target(scripted):
    """A target that offers no account, questions or metrics still can be measured."""
    target = parse_target(scripted().url)

    assert fetch_environment(target)["engine"]["simulated"] is False
    assert (fetch_questions(target), fetch_counters(target)) == ([], None)


def test_questions(scripted):
    """The target's questions come with their ids."""
    pages = {"/v1/questions": {"corpus": "sha256:0", "questions": [{"id": "q1", "question": "Who?"}]}}

    assert fetch_questions(parse_target(scripted(pages=pages).url)) == [Question(id="q1", question="Who?")]


def test_unreachable():
    """A target that is not there is an error that names it."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(TargetError, match=f"cannot reach {url}"):
        fetch_environment(parse_target(url))
