"""An independent closed-loop client, to check ragload's figures against: aiohttp, no code of ragload.

    python independent_client.py URL CONCURRENCY SECONDS [SKIP]  →  one JSON object on stdout

C workers ask the node's own questions (from the SKIP-th on), staggered over C/20 s. The window opens
when each has finished two requests and closes after at least SECONDS at the first whole number of
waves (completions a multiple of C). Requests/s is given twice: completions over the window, and
C over the mean latency, which must agree in a closed loop (Little's law).
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time

import aiohttp


async def ask(session: aiohttp.ClientSession, url: str, question: str) -> tuple[float, float, float, int]:
    body = {
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 100,
        "min_tokens": 100,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    start, first, last, tokens = time.perf_counter(), 0.0, 0.0, 0
    async with session.post(f"{url}/v1/chat/completions", json=body) as reply:
        reply.raise_for_status()
        async for line in reply.content:
            now = time.perf_counter()
            if not line.startswith(b"data: {"):
                continue
            made = (json.loads(line[6:]).get("usage") or {}).get("completion_tokens", 0)
            if made > tokens:
                first, last, tokens = first or now, now, made
    return start, first, last, tokens


async def main(url: str, users: int, seconds: float, skip: int) -> None:
    rows: list[tuple[float, float, float, int]] = []
    done = [0] * users
    state = {"opened": 0.0, "base": 0, "closed": 0.0}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        async with session.get(f"{url}/v1/questions") as reply:
            questions = [row["question"] for row in (await reply.json())["questions"]][skip:]

        async def worker(number: int) -> None:
            await asyncio.sleep(number / 20)
            while not state["closed"]:
                rows.append(await ask(session, url, questions.pop()))
                done[number] += 1
                now = time.perf_counter()
                if not state["opened"] and min(done) >= 2:
                    state["opened"], state["base"] = now, len(rows)
                whole_waves = (len(rows) - state["base"]) % users == 0
                if state["opened"] and now - state["opened"] >= seconds and whole_waves and not state["closed"]:
                    state["closed"] = now

        await asyncio.gather(*(worker(number) for number in range(users)))
    inside = [row for row in rows if state["opened"] < row[2] <= state["closed"]]
    latency = [1000 * (row[2] - row[0]) for row in inside]
    ttft = [1000 * (row[1] - row[0]) for row in inside]
    window = state["closed"] - state["opened"]
    result = {
        "concurrency": users,
        "requests": len(inside),
        "window_s": round(window, 3),
        "rps": round(len(inside) / window, 3),
        "rps_by_littles_law": round(users / (statistics.mean(latency) / 1000), 3),
        "latency_p50_ms": round(statistics.median(latency), 1),
        "latency_p99_ms": round(sorted(latency)[int(0.99 * (len(latency) - 1))], 1),
        "ttft_p50_ms": round(statistics.median(ttft), 1),
        "tokens": sorted({row[3] for row in inside}),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 0))
