# SPDX-License-Identifier: Apache-2.0
# Everything that a newcomer needs; `make` lists it. It requires only make and bash:
# tools/setup installs the rest, or says what to install.

PYTHON = .venv/bin/python
ARGS =

.NOTPARALLEL:
.PHONY: help demo test unit coverage lab lab-full functional test-nova test-nova-all test-nova-29 \
	test-nova-31 test-nova-33 test-nova-34 test-nova-newest test-watcher lint docs deb test-deb \
	test-ansible test-rules release bench \
	bench-fleet bench-hook bench-sampling bench-rebalance bench-weigher bench-promises \
	arena bench-oversubscription bench-balance bench-crowded soak \
	fuzz-metrics config setup setup-lab clean distclean

help: ## List the targets
	@echo "usage: make TARGET [ARGS='...']"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-22s %s\n", $$1, $$2}' Makefile

demo: setup-lab ## Boot an emulated two-node host and compare floating, numad and placed guests
	@$(PYTHON) -m tests.lab.demo --out build/demo $(ARGS)

test: setup-lab $(if $(COVERAGE),coverage,unit) lab ## Run the unit tests (COVERAGE=1: with coverage) and the lab's tests

unit: setup ## Run the unit tests (ARGS: a regular expression of test ids)
	@$(PYTHON) tools/unit-tests $(ARGS)

coverage: setup ## Run the unit tests and print their branch coverage
	@$(PYTHON) tools/coverage

lab: setup-lab ## Run the tests on emulated hosts (ARGS: pytest's)
	@$(PYTHON) -m pytest tests/lab -q --timeout 600 --reruns 1 -rfER --durations 10 $(ARGS)

lab-full: override ARGS += --full
lab-full: lab ## Also run the long tests: twelve and sixteen guests, ten orders, moves, the agent

functional: setup ## Run the tests of the installed package (ARGS: pytest's)
	@$(PYTHON) -m pytest tests/functional -q $(ARGS)

test-nova: test-nova-34 ## Run the tests in Nova's services: the newest Nova (ARGS: stestr's)

test-nova-all: test-nova-29 test-nova-31 test-nova-33 test-nova-34 ## The same on four releases of Nova

test-nova-29 test-nova-31 test-nova-33 test-nova-34: test-nova-%:
	@tools/nova-tests nova$* $(ARGS)

test-nova-newest: ## The same on the newest release in the package index, with the newest libraries
	@tools/nova-tests novanewest $(ARGS)

test-watcher: ## Run the strategy in Watcher's services, with emulated Nova (ARGS: stestr's)
	@tools/setup watcher
	@.venv-watcher/bin/python -W ignore tools/stubtest watcher
	@.venv-watcher/bin/python -W ignore -m stestr --repo-url .venv-watcher \
		--test-path ./tests/watcher --top-dir . run $(ARGS)

lint: setup ## Check style, types, imports and words (tools/lint has the list; it takes names)
	@tools/lint

docs: ## Build the documentation into doc/build/, the completions into build/completion
	@tools/setup dev docs
	@$(PYTHON) -m sphinx -q -W -b html doc/source doc/build/html
	@$(PYTHON) -m sphinx -q -W -b man doc/source doc/build/man
	@$(PYTHON) tools/completion build/completion
	@echo "documentation: doc/build/html/index.html"

deb: ## Build packages for Debian 12 and 13 into build/deb, each twice (as root; ARGS: suites)
	@tools/deb $(ARGS)

test-deb: ## Install, upgrade, remove and purge them beside Debian's Nova (as root; ARGS: suites)
	@tests/debian/walk $(ARGS)

test-ansible: ## Run the Ansible role on roots with those packages, twice and back (as root; ARGS: suites)
	@tools/setup ansible
	@PATH=$(CURDIR)/.venv-ansible/bin:$$PATH .venv-ansible/bin/ansible-lint --offline --profile production packaging/ansible
	@tests/ansible/walk $(ARGS)

test-rules: setup ## Test Prometheus' rules with promtool, and ask a Prometheus all queries that are shipped
	@tests/prometheus/run

release: ## Make a release's files in dist/VERSION (as root; VERSION=0.1.0)
	@tools/setup dev docs
	@tools/release $(VERSION)

bench: bench-hook bench-rebalance bench-sampling bench-weigher ## Run the benchmarks of the hook, moves, counters and the weigher

bench-hook: setup ## Measure the hook's process time, compared with a bare Python start
	@$(PYTHON) -m tests.bench.bench_hook $(ARGS)

bench-rebalance: setup ## Time the rebalancer's plan, and compare it with the optimum and other policies
	@$(PYTHON) -m tests.bench.bench_rebalance $(ARGS)

bench-fleet: setup ## Time the plan for 10,000 hosts, and compare its gain with an exact solver's
	@$(PYTHON) -m tests.bench.bench_fleet $(ARGS)

bench-oversubscription: setup ## Crowd a simulated host: work done floating, held, with the agent
	@$(PYTHON) -m tests.bench.bench_oversubscription $(ARGS)

bench-balance: setup ## Simulate days of a host: loss and moves, off, floating, widened, and by default
	@$(PYTHON) -m tests.bench.bench_balance $(ARGS)

bench-sampling: setup ## Measure the cost of sampling, compared with perf stat
	@$(PYTHON) -m tests.bench.bench_sampling $(ARGS)

bench-weigher: ## Compare the speed of weigher and filter with Nova's own, on up to 10,000 hosts
	@tools/setup nova34
	@.venv-nova-34/bin/python -m tests.bench.bench_weigher $(ARGS)

bench-promises: ## Count how often the scheduler breaks what Nova's own weighers promise
	@tools/setup nova34
	@.venv-nova-34/bin/python -m tests.bench.bench_promises $(ARGS)

arena: setup ## Compare ways of choosing hosts in a simulated region (ARGS='--quick': takes seconds)
	@tools/setup nova34
	@$(PYTHON) -m tests.arena $(ARGS)

fuzz-metrics: export NUMA_PMC_FUZZ ?= 100000
fuzz-metrics: setup ## Mutate metrics 100,000 times: nothing may raise, weigh NaN or refuse a host
	@$(PYTHON) -m pytest -q tests/unit/scheduler -k Fuzz $(ARGS)
	@tools/nova-tests nova34 test_weigher.FuzzTest

bench-crowded: setup-lab ## Crowd a host: work done pinned, floating, and with the agent (an hour)
	@$(PYTHON) -m tests.bench.bench_crowded $(ARGS)

soak: setup-lab ## Run two hours of random starts, stops, loads and faults with the agent
	@SOAK_MINUTES=$${SOAK_MINUTES:-120} $(PYTHON) -m pytest tests/lab/test_soak.py --full -s $(ARGS)

config: setup ## Regenerate the sample configuration in etc/
	@.venv/bin/oslo-config-generator --config-file etc/nova-numa-pmc/config-generator.conf
	@.venv/bin/oslo-config-generator --config-file etc/nova-numa-pmc/scheduler-generator.conf
	@.venv/bin/oslo-config-generator --config-file etc/nova-numa-pmc/compute-generator.conf

.PHONY: setup-stack stack stack-up stack-down stack-shell
STACK = .venv-stack/bin/python -m tests.stack

stack: setup-stack ## Run OpenStack on two emulated hosts, with the package and without it (35 min)
	@$(STACK) scenario $(ARGS)

stack-up: setup-stack ## Start OpenStack's real control plane on the loopback interface
	@$(STACK) up $(ARGS)

stack-shell: ## Open a shell with the credentials of that control plane (ARGS: a command)
	@$(STACK) shell $(ARGS)

stack-down: ## Stop it and delete its data
	@$(STACK) down $(ARGS)

setup: ## Make .venv and install what is missing (idempotent)
	@tools/setup dev

setup-lab: ## Also install what the lab needs
	@tools/setup dev lab

setup-stack: ## Install MariaDB, RabbitMQ (not as services), and OpenStack in .venv-stack
	@tools/setup stack

clean: ## Remove build products
	@rm -rf build dist doc/build .stestr .hypothesis .mypy_cache .pytest_cache .ruff_cache *.egg-info
	@find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean ## Also remove the virtual environment (not the lab's cached images)
	@rm -rf .venv .venv-nova-* .venv-stack .venv-watcher .venv-ansible .tox
