#!/usr/bin/env bash
# What was run on the GPU host, in one stay. Needs: a Python with vLLM 0.25.1, faiss-gpu 1.15.1,
# sentence-transformers and this checkout's requirements; MODEL, a folder with the config.json of
# Llama-3.1-8B and a tokenizer of its vocabulary (weights are vLLM's dummies: real speed, no real text);
# CORPUS, a folder made by `ragload corpus build wikipedia-leads`. Results go to OUT.
#   on_gpu.sh engine    serves the model; in another shell:
#   on_gpu.sh           index, node, search, independent clients
set -uo pipefail
: "${MODEL:?}" "${CORPUS:?}" "${OUT:?}"
here=$(cd "$(dirname "$0")" && pwd)
node=http://127.0.0.1:8080 engine=http://127.0.0.1:8000
export VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 VLLM_USE_FLASHINFER_SAMPLER=0

step() { echo "== $(date +%T) $*"; }

if [ "${1:-}" = engine ]; then
  exec python3 -m vllm.entrypoints.cli.main serve "$MODEL" --served-model-name llama-3.1-8b --load-format dummy \
    --dtype bfloat16 --max-model-len 4096 --gpu-memory-utilization 0.85 --no-enable-prefix-caching \
    --port 8000 >"$OUT/engine.log" 2>&1
fi
until curl -sf "$engine/health" >/dev/null; do sleep 2; done
step "engine is up; index on the GPU"
python3 -m harness corpus index "$CORPUS"
python3 -m harness node --corpus "$CORPUS" --engine "$engine" --tokenizer "$MODEL" --port 8080 >"$OUT/node.log" 2>&1 &
until curl -sf "$node/ready" >/dev/null; do sleep 1; done
step "node is up"
curl -s "$node/environment" >"$OUT/environment.json"
nvidia-smi --query-gpu=name,driver_version,memory.total,power.limit --format=csv >"$OUT/gpu.csv"

step "independent client, C=128"
python3 "$here/independent_client.py" "$node" 128 30 0 >"$OUT/independent-128-before.json"
step "ragload, C=128"
python3 -m harness run rag --host "$node" --users 128 --duration 30 --seed 901 --cache-mode cold \
  --out "$OUT/run-128" --json >"$OUT/run-128.json"
step "search"
python3 -m harness search rag --host "$node" --slo "latency_p99_ms=6000,ttft_p99_ms=1000" --cache-mode cold \
  --start-users 32 --max-users 160 --duration 20 --out "$OUT/search" --json >"$OUT/search.json"
step "independent client again, C=128"
python3 "$here/independent_client.py" "$node" 128 30 3000 >"$OUT/independent-128-after.json"
step "ragload, C=1"
python3 -m harness run rag --host "$node" --users 1 --duration 15 --seed 902 --cache-mode cold \
  --out "$OUT/run-1" --json >"$OUT/run-1.json"
step "vllm bench serve through the node, C=128"
curl -s "$node/v1/questions" | python3 -c 'import json,sys
for row in json.load(sys.stdin)["questions"][-1536:]: print(json.dumps({"prompt": row["question"]}))' >"$OUT/prompts.jsonl"
python3 -m vllm.entrypoints.cli.main bench serve --backend openai-chat --base-url "$node" \
  --endpoint /v1/chat/completions --model llama-3.1-8b --tokenizer "$MODEL" --dataset-name custom \
  --dataset-path "$OUT/prompts.jsonl" --custom-output-len 100 --skip-chat-template --num-prompts 1280 \
  --max-concurrency 128 --ignore-eos --temperature 0 --save-result --save-detailed --result-dir "$OUT" \
  --result-filename vllm-bench-128.json >"$OUT/vllm-bench.log" 2>&1
step "done"
