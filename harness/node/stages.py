"""How long each stage of one request took: one clock, durations only, missing stages left out.

    wait                 everything before the engine in which nothing of this request was computed
    embed, search        the batch this request was in
    assemble             making the prompt fit
    engine_first_token   engine request sent → first bytes with a token (vLLM does not split queue from prefill)
    decode               first → last bytes with a token

They add up to arrival → last token, since `wait` is what the others leave over.
"""

from __future__ import annotations

from time import perf_counter

BEFORE_ENGINE = ("wait", "embed", "search", "assemble")
ENGINE = ("engine_first_token", "decode")


class Stages:
    """The stages of one request. All instants are of `perf_counter`, in s."""

    def __init__(self, arrived_s: float) -> None:
        self.arrived_s = arrived_s
        self.sent_s: float | None = None
        self._seconds: dict[str, float] = {}

    def add(self, stage: str, seconds: float) -> None:
        """Add to a stage; it may take several goes."""
        self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds

    def sent(self) -> None:
        """The engine request goes out now: `wait` is settled."""
        self.sent_s = perf_counter()
        self._seconds["wait"] = self._unexplained(self.sent_s)

    def engine(self, first_token_s: float | None, last_token_s: float | None) -> None:
        """Settle the engine's stages; None where no token came."""
        if self.sent_s is not None and first_token_s is not None:
            self._seconds["engine_first_token"] = first_token_s - self.sent_s
            if last_token_s is not None and last_token_s > first_token_s:
                self._seconds["decode"] = last_token_s - first_token_s

    def ms(self) -> dict[str, float]:
        """Stage → milliseconds, in the order a request passes them."""
        seconds = dict(self._seconds)
        seconds.setdefault("wait", self._unexplained(perf_counter()))
        return {name: round(1e3 * seconds[name], 3) for name in (*BEFORE_ENGINE, *ENGINE) if name in seconds}

    def server_timing(self) -> str:
        """The W3C Server-Timing header of what came before the engine."""
        return ", ".join(f"{name};dur={ms:.3f}" for name, ms in self.ms().items() if name in BEFORE_ENGINE)

    def _unexplained(self, until_s: float) -> float:
        spent = sum(seconds for name, seconds in self._seconds.items() if name in BEFORE_ENGINE and name != "wait")
        return max(0.0, until_s - self.arrived_s - spent)
