# make demo       the whole pipeline on a small real model, in the console
# make test       the tests; under 12 minutes on two cores
# make test-long  the tests that take minutes each: long cuts, long random walks
# make check      lint, types, import contracts
# make bench      the figures the README quotes
# Each makes .venv from requirements.lock first if it is missing or out of date.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: demo test test-long check bench lock system-packages clean

demo: $(INSTALLED)
	$(BIN)/draftdeck demo

test: $(INSTALLED) system-packages
	$(BIN)/python -m pytest -m "not long"

test-long: $(INSTALLED) system-packages
	$(BIN)/python -m pytest -m long --deselect tests/agent/test_machine.py
	$(BIN)/python -m pytest -m long tests/agent/test_machine.py -n0 # three walks at once are load enough for two cores

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Draftdeck needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Name another one: make PYTHON=python3.12 …")'
	@echo "Draftdeck: installing into .venv (once; about two minutes and 2 GB)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --editable .
	@touch $@

# The tests talk to a real OpenSSH server, drive the console in a real terminal, and set the clock of real agents.
system-packages:
	@missing=""; \
	test -x /usr/sbin/sshd || missing="$$missing openssh-server"; \
	command -v tmux >/dev/null || missing="$$missing tmux"; \
	command -v cc >/dev/null || missing="$$missing gcc libc6-dev"; \
	if [ -n "$$missing" ]; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "Draftdeck: installing$$missing"; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$missing >/dev/null; \
	  else \
	    echo "The tests need$$missing. Install with: sudo apt-get install$$missing"; exit 1; \
	  fi; \
	fi

# torch is pinned without its build tag: the index decides between the CPU and the CUDA build.
lock:
	$(BIN)/pip-compile --quiet --upgrade --extra dev --strip-extras --no-emit-index-url --no-emit-find-links \
	  --no-emit-options --no-header --no-annotate --upgrade-package torch==2.13.0 -o requirements.lock pyproject.toml
	sed -i -e 's/+cpu$$//' -e '/^draftdeck @/d' requirements.lock

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
