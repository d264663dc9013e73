"""What a trial is going to do, written down before it does it.

A `Plan` holds everything needed to run the same trial again, seeds included. It says nothing of
what happened (`run.json`) or where (`environment.json`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from harness.errors import UsageError

CACHE_MODES = ("natural", "cold", "warm")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One trial: one scenario at one load against one target.

    users           concurrent users of the closed loop, each with at most one request in flight
    duration_s      shortest length of the measured window; None means until the run is stopped
    warmup_s        fixed warm-up; None means until every user has finished three requests
    input_tokens    prompt tokens asked of the node, chat template included; None means as it comes
    output_tokens   tokens each answer is forced to; None means natural stops
    grace_s         how long requests of the window may still take after its end before they are censored
    gpus            GPUs the figures are divided by; None means the target says, else one is assumed
    """

    scenario: str
    host: str
    users: int
    duration_s: float | None = None
    warmup_s: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    seed: int = 0
    grace_s: float = 60.0
    gpus: int | None = None
    cache_mode: str = "natural"
    slo: str | None = None
    attainment: float = 0.99
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _at_least(1, "users", self.users)
        _at_least(1, "input_tokens", self.input_tokens)
        _at_least(1, "output_tokens", self.output_tokens)
        _at_least(1, "gpus", self.gpus)
        _at_least(0, "warmup_s", self.warmup_s)
        _at_least(0, "grace_s", self.grace_s)
        if self.duration_s is not None and self.duration_s <= 0:
            raise UsageError(f"duration_s is {self.duration_s:g}: give more than 0 seconds")
        if self.cache_mode not in CACHE_MODES:
            raise UsageError(f"cache mode '{self.cache_mode}' is unknown: use one of {', '.join(CACHE_MODES)}")

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping; `from_dict` reads it back."""
        return asdict(self) | {"command": list(self.command)}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Plan:
        """The plan `to_dict` wrote; keys a newer minor version added are ignored."""
        known = {field.name for field in fields(cls)}
        kept = {key: value for key, value in row.items() if key in known}
        return cls(**kept | {"command": tuple(row.get("command", ()))})


def _at_least(least: float, name: str, value: float | None) -> None:
    if value is not None and value < least:
        raise UsageError(f"{name} is {value:g}: give {least:g} or more")
