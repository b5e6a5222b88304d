# Every target is one command from a clean clone: it sets up what is missing by itself.
# GNU make 3.81 (the one of macOS) is enough.

PY := .venv/bin/python
STAMP := .venv/.setup-done
# SEED=… repeats an earlier run of the tests, in its order.
RERUN := $(if $(SEED),--seed $(SEED))

.DEFAULT_GOAL := help
.PHONY: help setup run test test-long check bench interop chaos sim fuzz docs clean force

help: ## List the targets
	@echo 'make <target>'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv and install everything into it (PYTHON=python3.12 chooses the interpreter)

run: $(STAMP) ## Run the demo: a broker, a live producer and consumer, four pipelines on Spark (ARGS='...')
	@.venv/bin/ottla demo --examples examples/pipelines $(ARGS)

test: $(STAMP) ## Run lint, types, layers and the tests of every change (GROUP='static unit' for some groups, PART=all with long tests, ARGS='-k name' to pytest, SEED=... to repeat)
	@$(PY) tools/run_tests.py $(RERUN) --part $(or $(PART),short) $(GROUP) $(if $(ARGS),-- $(ARGS))

test-long: $(STAMP) ## Run the other default tests: rolling restarts, kills, faults, Spark
	@$(PY) tools/run_tests.py $(RERUN) --part long $(GROUP) $(if $(ARGS),-- $(ARGS))

check: $(STAMP) ## Run lint, types and layers only
	@$(PY) tools/run_tests.py static

bench: $(STAMP) ## Measure, beside Apache Kafka if Java and Maven are there (ARGS='...'; python -m bench.against compares two checkouts)
	@$(PY) -m bench $(ARGS)

interop: $(STAMP) ## Run the tests against other implementations
	@$(PY) tools/run_tests.py $(RERUN) interop $(if $(ARGS),-- $(ARGS))

chaos: $(STAMP) ## Run the long tests with faults
	@$(PY) tools/run_tests.py $(RERUN) chaos $(if $(ARGS),-- $(ARGS))

sim: $(STAMP) ## Run the simulator: a node, then a cluster (SEEDS='1-200' for both; NODE='...' and CLUSTER='...' for more options)
	@$(PY) -m testkit.sim $(SEEDS) $(NODE)
	@$(PY) -m testkit.sim --cluster $(SEEDS) $(CLUSTER)

fuzz: $(STAMP) ## A million mutated and shaped requests, ten thousand damaged directories (N=... requests, SEED=... to repeat, ARGS='...')
	@$(PY) -m testkit.fuzz $(if $(N),--requests $(N)) $(if $(SEED),--seed $(SEED)) $(ARGS)

docs: $(STAMP) ## Render the pages that come from tables: configuration, limits, compatibility, groups, transaction states
	@mkdir -p docs
	@$(PY) -m ottla.config.markdown > docs/.configuration.md.new || { rm -f docs/.configuration.md.new; exit 1; }
	@mv docs/.configuration.md.new docs/configuration.md
	@$(PY) -m ottla.config.limits_page > docs/.limits.md.new || { rm -f docs/.limits.md.new; exit 1; }
	@mv docs/.limits.md.new docs/limits.md
	@$(PY) -m ottla.runtime.disk_errors > docs/.disk-errors.md.new || { rm -f docs/.disk-errors.md.new; exit 1; }
	@mv docs/.disk-errors.md.new docs/disk-errors.md
	@$(PY) -m ottla.broker.api.shared.compatibility_page > docs/.compatibility.md.new || { rm -f docs/.compatibility.md.new; exit 1; }
	@mv docs/.compatibility.md.new docs/compatibility.md
	@$(PY) -m ottla.groups.diagram > docs/.groups.md.new || { rm -f docs/.groups.md.new; exit 1; }
	@mv docs/.groups.md.new docs/groups.md
	@$(PY) -m ottla.transactions.diagram > docs/.transaction-states.md.new || { rm -f docs/.transaction-states.md.new; exit 1; }
	@mv docs/.transaction-states.md.new docs/transaction-states.md

clean: ## Remove .venv, caches and build output
	@rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp holds the folder it was made in: an environment that was moved, or whose Python has gone, is made anew.
$(STAMP): pyproject.toml constraints.txt tools/setup.sh
	@PYTHON='$(PYTHON)' sh tools/setup.sh

ifneq ($(shell [ "`cat $(STAMP) 2>/dev/null`" = "`pwd -P`" ] && $(PY) -c '' 2>/dev/null && echo yes),yes)
$(STAMP): force
endif

# A named interpreter may differ from the one that .venv was made with.
ifneq ($(strip $(PYTHON)),)
ifneq ($(filter setup,$(MAKECMDGOALS)),)
$(STAMP): force
endif
endif
