"""One doubt about a trial: its figure, its limit, whether it holds, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Check:
    """One validity check.

    value     the figure observed; None when there was nothing to observe it from
    limit     what it is held against; a least value if `at_least`, else a most
    severity  "void": the trial is INVALID when not `ok`; "caution": the reader must know
    remedy    what is wrong and what to do about it; None when `ok`
    """

    name: str
    ok: bool
    value: float | None
    limit: float | None
    unit: str
    severity: str
    remedy: str | None
    at_least: bool = False

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        return asdict(self)


def _check(
    name: str,
    *,
    severity: str,
    ok: bool,
    value: float | None,
    limit: float | None,
    unit: str,
    remedy: str,
    at_least: bool = False,
) -> Check:
    said = None if ok else remedy
    return Check(
        name=name, ok=ok, value=value, limit=limit, unit=unit, severity=severity, remedy=said, at_least=at_least
    )


void = partial(_check, severity="void")
"""A check that makes the trial INVALID when it fails."""
caution = partial(_check, severity="caution")
"""A check that the reader must know of when it fails; the figures stand."""
