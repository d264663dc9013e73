"""The shared words: SLO texts, plans, samples and the trial folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import FolderError, RagloadError, SloError, UsageError
from harness.plan import Plan
from harness.sample import Sample, latency_ms, tpot_ms, ttft_ms
from harness.slo import Limit, parse_slo
from harness.trial import SCHEMA, TrialFolder, make_folder, read_json, write_json


def test_slo_text_is_read_as_written() -> None:
    """Each part of the text becomes one limit with its percentile and milliseconds."""
    slo = parse_slo("latency_p99_ms=5000, ttft_p99_ms=1000,tpot_ms=50")

    assert slo.limits == (
        Limit(metric="latency", limit_ms=5000, percentile=99),
        Limit(metric="ttft", limit_ms=1000, percentile=99),
        Limit(metric="tpot", limit_ms=50),
    )
    assert str(slo) == "latency_p99_ms=5000,ttft_p99_ms=1000,tpot_ms=50"


def test_only_tail_limits_count_into_attainment() -> None:
    """A limit on the median is tested on its own and does not enter the joint attainment."""
    slo = parse_slo("latency_p50_ms=2000,latency_p99_ms=5000,ttft_ms=1000", attainment=0.99)

    assert [str(limit) for limit in slo.tail] == ["latency_p99_ms=5000", "ttft_ms=1000"]


@pytest.mark.parametrize(
    "text",
    [
        *("", "latency", "latency_p99=5", "latency_p99_ms", "latency_p99_ms=", "latency_p99_ms=fast"),
        *("speed_p99_ms=5", "latency_p99_ms=0", "latency_p99_ms=-1", "latency_p0_ms=5", "latency_p100_ms=5"),
        *("latency_p99_ms=nan", "latency_p99_ms=inf", "latency_p99_ms=5,latency_p99_ms=6"),
    ],
)
def test_a_wrong_slo_text_is_one_line_with_an_example(text: str) -> None:
    """Every SLO text that does not parse is refused with exit code 2 and a one-line reason."""
    with pytest.raises(SloError) as caught:
        parse_slo(text)

    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_a_wrong_attainment_is_refused() -> None:
    """Attainment is a share between 0 and 1, so 99 is a mistake."""
    with pytest.raises(SloError, match="between 0 and 1"):
        parse_slo("latency_ms=5", attainment=99)


@given(
    limits=st.dictionaries(
        st.sampled_from(["latency", "ttft", "tpot"]),
        st.tuples(st.sampled_from([None, 50, 90, 99, 99.9]), st.floats(0.1, 1e6)),
        min_size=1,
    )
)
def test_slo_survives_a_round_trip(limits: dict[str, tuple[float | None, float]]) -> None:
    """The text an SLO prints parses back to the same SLO."""
    parts = [
        f"{metric}{'' if rank is None else f'_p{rank:g}'}_ms={float(f'{limit:g}'):g}"
        for metric, (rank, limit) in limits.items()
    ]
    slo = parse_slo(",".join(parts))

    assert parse_slo(str(slo)) == slo


def test_plan_survives_a_round_trip_through_json() -> None:
    """A plan written to JSON and read back is the same plan."""
    plan = Plan(scenario="rag.py", host="http://n", users=3, duration_s=9, seed=5, command=("ragload", "run"))

    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


@pytest.mark.parametrize(
    "wrong",
    [{"users": 0}, {"duration_s": 0}, {"input_tokens": 0}, {"warmup_s": -1}, {"cache_mode": "hot"}, {"gpus": 0}],
)
def test_a_plan_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    """A plan with an impossible figure is refused when it is made."""
    with pytest.raises(UsageError):
        Plan(**{"scenario": "rag.py", "host": "http://n", "users": 1, **wrong})  # type: ignore[arg-type]


def test_metrics_are_the_glossary_formulas() -> None:
    """Latency and TTFT start at scheduled_at; TPOT leaves out the first chunk's tokens; arrays work alike."""
    ms = 1_000_000

    assert latency_ms(1 * ms, 11 * ms) == 10
    assert ttft_ms(1 * ms, 3 * ms) == 2
    assert tpot_ms(3 * ms, 12 * ms, 11, 2) == 1
    assert latency_ms(np.array([0.0, ms]), np.array([5.0 * ms, 7.0 * ms])).tolist() == [5.0, 6.0]


def test_a_sample_knows_only_named_failures() -> None:
    """A sample with an unknown kind of failure is a fault of ours."""
    with pytest.raises(ValueError, match="gremlins"):
        Sample(seq=0, user=0, name="x", scheduled_at=0, sent_at=0, ended_at=1, failure="gremlins")


def test_json_is_written_whole_and_read_back(tmp_path: Path) -> None:
    """What write_json writes carries the schema version, and no draft stays behind."""
    write_json(tmp_path / "plan.json", {"users": 3})

    assert read_json(tmp_path / "plan.json") == {"schema": SCHEMA, "users": 3}
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"users": 1}', f'{{"schema": {SCHEMA + 1}}}'])
def test_a_file_that_is_not_ours_is_refused(tmp_path: Path, text: str) -> None:
    """Broken JSON, a missing version and a newer version are each a clear error."""
    (tmp_path / "plan.json").write_text(text)

    with pytest.raises(FolderError, match=r"plan\.json"):
        read_json(tmp_path / "plan.json")


def test_a_finished_trial_is_never_written_over(tmp_path: Path) -> None:
    """A folder that holds samples is refused."""
    (tmp_path / "samples.arrows").touch()

    with pytest.raises(FolderError, match="already holds a trial"):
        TrialFolder(tmp_path).create()


def test_an_unwritable_folder_is_a_clear_error(tmp_path: Path) -> None:
    """A folder below a plain file cannot be made, and the error says which."""
    (tmp_path / "file").touch()

    with pytest.raises(FolderError, match="cannot write to"):
        make_folder(tmp_path / "file" / "trial")


def test_every_error_ends_with_a_code_of_the_contract() -> None:
    """Exit codes of our errors are 2, 3 or 4."""

    def tree(kind: type[RagloadError]) -> set[int]:
        return {kind.exit_code}.union(*(tree(child) for child in kind.__subclasses__()))

    assert tree(RagloadError) == {2, 3, 4}
