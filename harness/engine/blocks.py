"""The KV cache as blocks of 16 tokens: who holds them, which prefixes they keep, who is evicted first.

A full block may be registered under the hash of all tokens up to its end; a later prompt with the
same beginning takes it over. Blocks nobody holds keep their content until they are needed, the
least recently released first. Knows hashes, not tokens or requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from harness.engine.cost import BLOCK_TOKENS


def block_hashes(tokens: Sequence[int], *, parent: int = 0) -> list[int]:
    """One hash for each full block of `tokens`; each covers all tokens from the start to its end."""
    hashes: list[int] = []
    for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        parent = hash((parent, *tokens[start : start + BLOCK_TOKENS]))
        hashes.append(parent)
    return hashes


class Blocks:
    """A pool of `total` blocks. A block is held by as many sequences as took it; free at none."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._holders = [0] * total
        self._hash: list[int | None] = [None] * total
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(total))
        self._cached: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Blocks that nobody holds, those with reusable content included."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of blocks that are held, 0 to 1."""
        return 1.0 - len(self._free) / self.total

    def cached_prefix(self, hashes: Sequence[int], most: int) -> list[int]:
        """Blocks that keep the longest cached beginning of `hashes`, at most `most` of them."""
        found: list[int] = []
        for value in hashes[:most]:
            block = self._cached.get(value)
            if block is None:
                break
            found.append(block)
        return found

    def unheld(self, blocks: Sequence[int]) -> int:
        """How many of `blocks` are free, so that holding them makes others scarcer."""
        return sum(1 for block in blocks if self._holders[block] == 0)

    def hold(self, blocks: Sequence[int]) -> None:
        """One more holder for each of `blocks`."""
        for block in blocks:
            if self._holders[block] == 0:
                del self._free[block]
            self._holders[block] += 1

    def take(self, count: int) -> list[int]:
        """`count` free blocks, evicting what they kept. There must be that many."""
        taken: list[int] = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            value = self._hash[block]
            if value is not None:
                del self._cached[value]
                self._hash[block] = None
            self._holders[block] = 1
            taken.append(block)
        return taken

    def register(self, block: int, value: int) -> None:
        """Offer a full block to later prompts; of two equal ones the first is kept."""
        if self._hash[block] is None and value not in self._cached:
            self._cached[value] = block
            self._hash[block] = value

    def release(self, blocks: Sequence[int]) -> None:
        """One holder less for each; the end of a prompt becomes evictable before its beginning."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._free[block] = None
