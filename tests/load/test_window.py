"""The window rule on loops whose truth is known."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.load.window import Window, WindowRule

S = 1_000_000_000


def run(completions, *, users, duration_s=None, warmup_s=None, stop_s=None, spawned_s=0.0) -> WindowRule:
    """The rule after `completions` ((instant s, user), sorted as reported), judged each 0.1 s, stopped at the end."""
    rule = WindowRule(users=users, duration_s=duration_s, warmup_s=warmup_s)
    rule.all_running(round(spawned_s * S))
    tick = 0.0
    for instant_s, user in completions:
        while tick < instant_s:
            rule.advance(round(tick * S))
            tick += 0.1
        rule.completed(user, round(instant_s * S))
        if rule.window is not None:
            return rule
    last_s = stop_s if stop_s is not None else (completions[-1][0] + 1.0 if completions else 1.0)
    while tick < last_s:
        rule.advance(round(tick * S))
        tick += 0.1
    rule.stop(round(last_s * S))
    return rule


def waves(users, cycle_s, count, offset=lambda user, wave: 0.0):
    """Completions of a closed loop: user u's w-th one at (w + 1) cycles plus its offset."""
    return sorted(((wave + 1) * cycle_s + offset(user, wave), user) for wave in range(count) for user in range(users))


def rate(rule: WindowRule, completions) -> float:
    window = rule.window
    inside = sum(window.t0_ns <= round(instant * S) < window.t1_ns for instant, _ in completions)
    return inside / ((window.t1_ns - window.t0_ns) / S)


@given(
    users=st.integers(1, 40),
    cycle_s=st.floats(0.2, 8.0),
    spread=st.floats(0.0, 1.0),
    cycles=st.floats(1.0, 6.0),
    seed=st.integers(0, 999),
)
def test_rate_of_any_fixed_pattern(users, cycle_s, spread, cycles, seed):
    """Users answering every L seconds, in one wave or spread at will, give N / L within 1%."""
    chance = random.Random(seed)
    phase = [chance.uniform(0, spread * cycle_s) for _ in range(users)]
    completions = waves(users, cycle_s, 14, lambda user, _: phase[user])
    rule = run(completions, users=users, duration_s=cycles * cycle_s)

    assert rate(rule, completions) == pytest.approx(users / cycle_s, rel=0.01)


@given(users=st.integers(2, 40), cycle_s=st.floats(0.2, 4.0), seed=st.integers(0, 999))
def test_rate_of_jittered_waves(users, cycle_s, seed):
    """Waves whose members come up to 2% of a cycle early or late give N / L within 1%."""
    chance = random.Random(seed)
    completions = waves(users, cycle_s, 16, lambda *_: chance.uniform(-0.02, 0.02) * cycle_s)
    rule = run(completions, users=users, duration_s=8 * cycle_s)

    assert rate(rule, completions) == pytest.approx(users / cycle_s, rel=0.01)


def test_opens_when_each_user_has_finished_three():
    """The window opens at the completion that gives the last user its third one."""
    completions = [(0.5, 1), (1.0, 0), (1.1, 1), (2.0, 0), (3.0, 0), (3.5, 1), (4.0, 0), (5.0, 1)]

    assert run(completions, users=2).t0_ns == 3_500_000_000


def test_waits_for_all_users_to_run():
    """Completions before every user runs do not open the window."""
    assert run(waves(1, 1.0, 9), users=1, spawned_s=4.5).spawned_ns == 4_500_000_000
    rule = WindowRule(users=1)
    rule.completed(0, 1 * S)
    rule.completed(0, 2 * S)
    rule.completed(0, 3 * S)
    rule.advance(9 * S)

    assert (rule.t0_ns, rule.steady_ns) == (None, None)


def test_fixed_warmup():
    """With a fixed warm-up the window opens at the first completion after it, counted from all running."""
    rule = run(waves(2, 1.0, 20), users=2, warmup_s=5.0, spawned_s=0.5)

    assert (rule.t0_ns, rule.steady_ns) == (6 * S, 3 * S)


def test_closes_at_whole_waves():
    """The window closes at the first whole multiple of the users at or after the duration."""
    completions = waves(4, 1.0, 30, lambda user, _: 0.1 * user)
    rule = run(completions, users=4, duration_s=2.5)

    assert rule.window == Window(t0_ns=3_300_000_000, t1_ns=6_300_000_000, rule="whole waves")


def test_capped():
    """Without a whole wave the window closes duration + max(duration, 60 s) after it opened."""
    stuck = [*waves(2, 1.0, 3), *((4.0 + 100.0 * n, 0) for n in range(3))]

    assert run(stuck, users=2, duration_s=10.0).window == Window(t0_ns=3 * S, t1_ns=73 * S, rule="capped")


def test_stopped_at_the_last_whole_wave():
    """A run stopped by hand is measured up to its last whole wave."""
    rule = run(waves(2, 1.0, 7, lambda user, _: 0.5 * user), users=2, stop_s=7.9)

    assert rule.window == Window(t0_ns=3_500_000_000, t1_ns=7_500_000_000, rule="stopped")


def test_stopped_where_all_is_answered():
    """A run stopped by hand ends its window, if it can, where everything sent before has been answered."""
    rule = WindowRule(users=2)
    rule.all_running(0)
    for instant_s, user in waves(2, 1.0, 7):
        rule.completed(user, round(instant_s * S))
    rule.stop(round(7.9 * S), answered_ns=round(6.2 * S))

    assert rule.window == Window(t0_ns=3 * S, t1_ns=6 * S, rule="stopped")


def test_stopped_without_a_whole_wave():
    """Stopped before the first whole wave, the window ends at the stop."""
    completions = [(0.5, 0), (0.6, 1), (1.0, 0), (1.1, 1), (2.0, 0), (2.1, 1), (3.0, 0)]

    assert run(completions, users=2, stop_s=3.05).window == Window(
        t0_ns=2_100_000_000, t1_ns=3_050_000_000, rule="stopped"
    )


def test_stopped_in_warmup():
    """A run stopped before its warm-up is over has no window."""
    assert run(waves(2, 1.0, 1), users=2).window is None


@given(seed=st.integers(0, 999))
def test_late_reports_do_not_matter(seed):
    """Completions reported out of order, within the lag, give the same window as in order."""
    chance = random.Random(seed)
    completions = waves(6, 1.0, 12, lambda *_: chance.uniform(0, 0.3))
    shuffled = sorted(completions, key=lambda one: one[0] + chance.uniform(0, 0.1))

    assert run(shuffled, users=6, duration_s=4.0).window == run(completions, users=6, duration_s=4.0).window
