"""The load side: what a scenario imports, and nothing before it is asked for.

`from harness.load import RagUser, task` imports Locust first, so that gevent patches the standard
library before anything else runs. Importing a pure part of this room (`harness.load.sse`,
`harness.load.window`) patches nothing: the two names are looked up lazily.

Knows neither the node nor the engine except by HTTP, and results only by the files it writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from locust import task

    from harness.load.user import RagUser

__all__ = ["RagUser", "task"]


def __getattr__(name: str) -> Any:
    """Import Locust, then the asked name (PEP 562). Raises AttributeError for any other name."""
    if name not in __all__:
        raise AttributeError(f"harness.load has no '{name}': it offers {', '.join(__all__)}")
    import locust

    from harness.load.user import RagUser

    return {"RagUser": RagUser, "task": locust.task}[name]
