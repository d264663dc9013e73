"""A search's decisions, on levels whose truth is known."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.results.levels import Level, Verdict, bracket, conclude, judge, next_users, saturation
from harness.slo import parse_slo


def level(users: int, passed: bool = True, *, rps: float | None = None, void: tuple[str, ...] = ()) -> Level:
    """A level with a throughput (in proportion to its users if none is given) and failed void checks."""
    checks = [{"name": name, "ok": False, "severity": "void", "remedy": "…"} for name in void]
    summary: dict[str, Any] = {"rps": float(users) if rps is None else rps, "valid": not void, "checks": checks}
    return Level(users=users, summary=summary, verdict=Verdict(passed=passed))


def searched(capacity: int, most: int, start: int = 1, tolerance: float = 0.05) -> list[Level]:
    """The levels a search tries on a target that passes up to `capacity` users."""
    levels: list[Level] = []
    while users := next_users(levels, most, start=start, tolerance=tolerance):
        levels.append(level(users, users <= capacity))
    return levels


@given(capacity=st.integers(0, 3000), most=st.integers(1, 2000), start=st.integers(1, 64))
def test_any_capacity_is_bracketed(capacity: int, most: int, start: int) -> None:
    """Whatever the true capacity, the bracket holds it and is 5% or one user wide, and no load is tried twice."""
    levels = searched(capacity, most, start)
    last_pass, first_fail = bracket(levels)
    tried = [one.users for one in levels]

    assert len(set(tried)) == len(tried)
    assert max(tried) <= most
    if first_fail is None:
        assert last_pass == most <= capacity
    else:
        assert last_pass <= capacity < first_fail
        assert first_fail - last_pass <= max(1, 0.05 * last_pass)


@given(capacity=st.integers(1, 100_000))
def test_a_search_is_short(capacity: int) -> None:
    """Doubling and halving need at most about two trials for each doubling of the capacity."""
    assert len(searched(capacity, 1_000_000)) <= 2 * capacity.bit_length() + 3


@given(verdicts=st.lists(st.booleans(), min_size=600, max_size=600))
def test_a_search_ends_on_any_target(verdicts: list[bool]) -> None:
    """Even where passing has no order at all, the search ends without trying a load twice."""
    levels: list[Level] = []
    while users := next_users(levels, 512):
        assert users not in [one.users for one in levels]
        levels.append(level(users, verdicts[users]))

    assert len(levels) < 30


def test_the_lowest_load_failing_ends_at_zero() -> None:
    """When one user already breaks the SLO the bracket is [0, 1] and a note says so."""
    found = conclude(searched(0, 64), None)

    assert found["capacity"] == {"last_pass": 0, "first_fail": 1}
    assert found["binding"] == "slo"
    assert "lowest load tried failed" in found["notes"][0]


def test_no_load_failing_leaves_the_end_open() -> None:
    """When all pass up to the most users, first_fail is None, no SLO ceiling was seen and a note says so."""
    found = conclude(searched(999, 64), None)

    assert found["capacity"] == {"last_pass": 64, "first_fail": None}
    assert found["ceilings"]["slo"] is None
    assert found["binding"] is None
    assert "64 or more" in found["notes"][0]


def test_a_pass_above_a_fail_is_noted_and_not_counted() -> None:
    """A load that passes above one that failed does not raise the capacity."""
    found = conclude([level(8), level(16, False), level(12, False), level(14)], None)

    assert found["capacity"] == {"last_pass": 8, "first_fail": 12}
    assert "14 users passed although 12 failed" in found["notes"][0]


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ({1: 1.0, 2: 2.0, 4: 4.0}, None),
        ({8: 8.0, 16: 14.9, 32: 15.0, 64: 15.1}, 16),
        ({8: 8.0, 16: 15.0, 32: 12.0}, 16),
        ({64: 60.0, 66: 61.0}, None),
        ({}, None),
        ({1: 0.0, 2: 0.0}, None),
    ],
    ids=["rising", "flat", "falling", "too near", "nothing", "dead"],
)
def test_saturation_needs_higher_loads_that_gave_no_more(rates: dict[int, float], expected: int | None) -> None:
    """Saturation is the smallest load within 3% of the best, if well higher ones were tried; else unknown."""
    assert saturation([level(users, rps=rps) for users, rps in rates.items()]) == expected


def test_a_busy_client_is_no_saturation() -> None:
    """Levels whose own measurement is void do not show that the target saturates."""
    levels = [level(8, rps=8), level(16, rps=8, void=("client_cpu",)), level(32, rps=8, void=("client_cpu",))]

    assert saturation(levels) is None


@pytest.mark.parametrize(
    ("memory", "rates", "capacity", "binding"),
    [
        (None, {8: 8, 16: 16}, 8, "slo"),
        (5.9, {8: 8, 16: 16}, 8, "memory"),
        (8.7, {8: 8, 16: 16}, 8, "memory"),
        (90.0, {4: 8, 8: 8, 16: 8}, 8, "saturation"),
        (4.5, {4: 8, 8: 8, 16: 8}, 8, "memory"),
        (90.0, {2: 2, 4: 8, 8: 8}, 4, "saturation"),
    ],
)
def test_the_smallest_ceiling_binds(memory: float | None, rates: dict[int, float], capacity: int, binding: str) -> None:
    """Memory, saturation and SLO are compared; the smallest binds, in this order when equal."""
    levels = [level(users, users <= capacity, rps=rps) for users, rps in rates.items()]

    assert conclude(levels, memory)["binding"] == binding


def test_a_search_is_valid_when_its_bracket_is() -> None:
    """A void level away from the bracket does no harm; one at the bracket voids the answer and is named."""
    fine = conclude([level(1, void=("drift",)), level(2), level(3, False)], None)
    broken = conclude([level(1), level(2, void=("client_cpu",)), level(3, False)], None)

    assert (fine["valid"], fine["invalid_because"]) == (True, [])
    assert (broken["valid"], broken["invalid_because"]) == (False, ["2 users: client_cpu"])


def test_failed_requests_do_not_void_a_failed_level() -> None:
    """Refused requests make a level fail; that it failed is certain all the same."""
    assert conclude([level(1), level(2, False, void=("failures",))], None)["valid"] is True


def test_no_levels_is_no_answer() -> None:
    """A search without a level is invalid and has an empty bracket."""
    found = conclude([], None)

    assert (found["valid"], found["capacity"], found["levels"]) == (False, {"last_pass": 0, "first_fail": None}, [])


def judged(value_ms: float | None, attainment: float | None) -> dict[str, Any]:
    """A summary judged by latency_p99_ms=5000."""
    limit = {"metric": "latency", "percentile": 99.0, "limit_ms": 5000.0, "value_ms": value_ms}
    limit["met"] = value_ms is not None and value_ms <= 5000
    return {"slo": {"text": "latency_p99_ms=5000", "target": 0.99, "attainment": attainment, "limits": [limit]}}


@pytest.mark.parametrize(
    ("value_ms", "attainment", "reasons"),
    [
        (4900.0, 0.995, ()),
        (6210.0, 0.991, ("latency p99 6,210 ms, 5,000 ms allowed",)),
        (4900.0, 0.98, ("98% of requests met the tail limits together, 99% must",)),
        (None, 0.991, ("latency p99 is a failed request, 5,000 ms allowed",)),
        (None, None, ("no request arrived in the window",)),
    ],
)
def test_judging_names_each_broken_limit(
    value_ms: float | None, attainment: float | None, reasons: tuple[str, ...]
) -> None:
    """A level passes when nothing is broken; else every broken limit is told with both figures."""
    verdict = judge(judged(value_ms, attainment), parse_slo("latency_p99_ms=5000"))

    assert (verdict.passed, verdict.reasons) == (not reasons, reasons)


@pytest.mark.parametrize("summary", [{"slo": None}, judged(1.0, 1.0)])
def test_judging_by_another_slo_is_refused(summary: dict[str, Any]) -> None:
    """A summary that another SLO judged, or none, is a UsageError."""
    with pytest.raises(UsageError, match="summarize the trial with that SLO"):
        judge(summary, parse_slo("latency_p99_ms=4000"))
