"""The options a scenario takes on Locust's command line and in its web form, and the plan they make.

Knows Locust's parser and `Plan`; starts nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from harness.errors import UsageError
from harness.plan import CACHE_MODES, Plan

Number = TypeVar("Number", int, float)


def add_options(parser: Any) -> None:
    """Register the options; listens to Locust's `init_command_line_parser`."""
    group = parser.add_argument_group("ragload", "Options of RAG scenarios (harness.load)")
    add = group.add_argument
    add("--trial", metavar="DIR", default=None, help="Trial folder; default: a new one under ./reports")
    add("--warmup", metavar="S", default=None, help="Fixed warm-up in seconds; default: three requests of each user")
    add("--duration", metavar="S", default=None, help="Length of the measured window in seconds; then stop")
    add("--input-tokens", metavar="N", default=None, help="Prompt tokens asked of the node; overrides the scenario")
    add("--output-tokens", metavar="N", default=None, help="Tokens forced of each answer; overrides the scenario")
    add("--seed", metavar="N", default="0", help="Seed of the order of questions and tasks")
    add("--grace", metavar="S", default="60", help="How long requests in flight at the end may still take")
    add("--gpus", metavar="N", default=None, help="GPUs to divide requests/s by; default: what the target says")
    add("--cache-mode", metavar="MODE", default="natural", help=f"Declared prefix cache: {', '.join(CACHE_MODES)}")
    add("--questions", metavar="FILE", default=None, help="JSONL of id and question; default: the target's own")


def make_plan(options: Any, *, scenario: str, host: str, users: int, classes: Iterable[Any]) -> Plan:
    """The plan of one trial. `classes` are the scenario's user classes. Raises UsageError."""
    stop_timeout = float(options.stop_timeout or 0)
    return Plan(
        scenario=scenario,
        host=host,
        users=users,
        duration_s=_number(options, "duration", float),
        warmup_s=_number(options, "warmup", float),
        input_tokens=_tokens(options, "input_tokens", classes),
        output_tokens=_tokens(options, "output_tokens", classes),
        seed=_number(options, "seed", int) or 0,
        grace_s=stop_timeout or _number(options, "grace", float) or 0.0,
        gpus=_number(options, "gpus", int),
        cache_mode=options.cache_mode or "natural",
        command=("locust", *sys.argv[1:]),
    )


def text_option(options: Any, name: str) -> str | None:
    """The option's text; the web form's empty field means none."""
    return getattr(options, name, None) or None


def tokens_option(options: Any, name: str) -> int | None:
    """A token count of the command line (`input_tokens` or `output_tokens`), None if not given. Raises UsageError."""
    return _number(options, name, int)


def relative(path: str) -> str:
    """The path as seen from the working folder if it lies under it, else as it is."""
    absolute = Path(path).absolute()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else path


def _tokens(options: Any, name: str, classes: Iterable[Any]) -> int | None:
    given = tokens_option(options, name)
    declared = {getattr(user_class, name, None) for user_class in classes}
    return given if given is not None else declared.pop() if len(declared) == 1 else None


def _number(options: Any, name: str, kind: Callable[[str], Number]) -> Number | None:
    text = text_option(options, name)
    if text is None:
        return None
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"--{name.replace('_', '-')} is '{text}': give a number") from None
