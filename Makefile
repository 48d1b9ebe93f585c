# Everything runs from .venv, which the first target that needs it creates. Only Python >= 3.11 and make are required.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
RUNTIME := .venv/.installed-runtime
DEV := .venv/.installed-dev
COMPILED := .venv/.compiled
# With configured servers, which all tests share, the tests run one at a time.
PARALLEL = $(if $(REDIS_URL),,-n 4 --dist loadscope --no-loadscope-reorder)

# With it, every process that a test or `make up` starts would compile all code again.
unexport PYTHONDONTWRITEBYTECODE

# Deno only formats and lints the browser's scripts and styles; nothing runs on it. Its cache stays in .venv.
STATIC := app/ui/static
DENO := DENO_DIR=.venv/.deno DENO_NO_UPDATE_CHECK=1 $(BIN)/deno
JS_FORMAT := --no-config --quiet --line-width 120
# The two excluded rules are for scripts that run in Deno: in a browser `window` is right.
JS_RULES := --no-config --quiet --rules-exclude=no-window,no-window-prefix --rules-include=eqeqeq,guard-for-in,no-eval,no-throw-literal

.DEFAULT_GOAL := help
.PHONY: help install up test test-servers chaos quick lint format bench loadtest lock sbom clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

install: $(RUNTIME) ## Set up .venv with what the service needs, and nothing more (docs/operating.md)

up: $(RUNTIME) ## Run the whole service with a demo tenant (Ctrl-C stops it); ARGS="--port 9000" passes options on
	@$(BIN)/plaudit up --demo $(ARGS)

test: $(DEV) ## Lint, type-check and run every test on real, local servers
	@$(MAKE) --no-print-directory --jobs=2 lint $(COMPILED)
	@$(BIN)/pytest $(PARALLEL) $(ARGS)

# The servers of each run are started by tests/servers, from Debian's packages: .ci/run installs them.
SUITES := tests/app/api tests/analytics/boards -m "not processes and not long"
ON_SERVERS := env -u DATABASE_URL -u REDIS_URL -u PLAUDIT_QUEUE_REDIS_URL $(BIN)/pytest --dist loadscope --no-loadscope-reorder $(ARGS)
test-servers: $(DEV) ## Test several nodes, failover, PgBouncer and Redis Cluster, with Debian's servers
	@$(ON_SERVERS) -n 4 --servers=pgbouncer $(SUITES)
	@$(ON_SERVERS) -n 4 --servers=redis-cluster $(SUITES)
	@$(ON_SERVERS) -n 3 tests/servers

chaos: $(DEV) ## Break two nodes under load and compare what is left with a model; MINUTES=20 SEED=1
	@$(BIN)/python -m tests.chaos.run $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(ARGS)

quick: $(DEV) ## Lint, type-check and run the tests that start neither Plaudit's processes nor a browser
	@$(MAKE) --no-print-directory --jobs=2 lint $(COMPILED)
	@$(BIN)/pytest $(PARALLEL) -m "not processes and not long" $(ARGS)

# In a new .venv nothing is compiled. mypy uses one core: meanwhile the other compiles what tests import, once and not in
# each of pytest's processes. (What fails here fails again in the tests, which show it.)
$(COMPILED): $(DEV)
	@$(BIN)/pytest --collect-only -qq >/dev/null 2>&1; touch $@

lint: $(DEV) ## Check style, types and import directions
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(DENO) fmt --check $(JS_FORMAT) $(STATIC)
	@$(DENO) lint $(JS_RULES) $(STATIC)
	@! LC_ALL=C.UTF-8 grep -rnE '^.{121}' $(STATIC) || { echo "Lines over 120 characters"; exit 1; }

format: $(DEV) ## Format the code and fix what can be fixed automatically
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(DENO) lint --fix $(JS_RULES) $(STATIC)
	@$(DENO) fmt $(JS_FORMAT) $(STATIC)

bench: $(DEV) ## Measure speed as ratios on this machine (loopback only, bounded); QUICK=1 takes under three minutes
	@$(BIN)/python -m loadtests.bench $(if $(QUICK),--quick) $(ARGS)

# HOST only from the command line: some shells export a variable of that name. Make exports the other two to Python.
loadtest: $(DEV) ## Run a bounded load test on a temporary instance; or on yours: HOST=https://... CLIENT_ID=... CLIENT_SECRET=...
	@$(BIN)/python -m loadtests.run $(if $(findstring command,$(origin HOST)),--host '$(HOST)') $(ARGS)

lock: $(DEV) ## Pin the newest allowed versions of every dependency again
	@UV_CUSTOM_COMPILE_COMMAND="make lock" UV="$(BIN)/uv" sh -c 'command -v uv >/dev/null && UV=uv; \
	  LOCK="$$UV pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --upgrade"; \
	  $$LOCK pyproject.toml --extra build -o requirements.txt && $$LOCK pyproject.toml --extra build --extra dev -c requirements.txt -o requirements-dev.txt'

sbom: $(RUNTIME) ## List what the service runs on, with versions and licences, as CycloneDX in .build/plaudit-sbom.json
	@$(BIN)/python -m app.run.sbom .build/plaudit-sbom.json

clean: ## Remove .venv, caches and build output (data in .plaudit stays)
	@rm -rf .venv .build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Uses uv if it is installed, else pip. Both check every file's hash against the lock.
define install
	@test -n "$(PYTHON)" || { echo "Plaudit needs Python 3.11 or newer as python3 (or: make PYTHON=/path/to/python ...)"; exit 1; }
	@echo "Setting up .venv from $(1) ..."
	@if command -v uv >/dev/null 2>&1; then \
	  uv venv -q --allow-existing --python "$$(command -v $(PYTHON))" .venv && \
	  uv pip install -q --python $(BIN)/python --require-hashes -r $(1) && \
	  uv pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .; \
	else \
	  { test -x $(BIN)/pip || $(PYTHON) -m venv .venv || { echo "Python's venv module is missing (on Debian: apt-get install python3-venv)"; exit 1; }; } && \
	  $(BIN)/pip install -q --disable-pip-version-check --require-hashes -r $(1) && \
	  $(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .; \
	fi
	@touch $(2)
endef

$(RUNTIME): requirements.txt pyproject.toml
	$(call install,requirements.txt,$@)

$(DEV): requirements-dev.txt pyproject.toml
	$(call install,requirements-dev.txt,$@)
	@touch $(RUNTIME)
