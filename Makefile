# Backstop: every target sets up what it needs first; see `make help`.
SHELL := /bin/sh
PY := .venv/bin/python
SEED ?= 1
MESSAGES ?=

# The source tree is imported as it stands, by us and by every process that we start. Spark's workers take this
# environment's interpreter: without the setting they take the system's.
export PYTHONPATH := $(CURDIR)/include
export PYSPARK_PYTHON := $(CURDIR)/$(PY)
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(PY)
# Jobs of seconds on a small machine: the second compiler and a parallel collector cost more than they give.
# Set-up keeps Spark's classes as an archive; Java goes on without one that is not there or does not fit. Spark splits its
# options at spaces, so that a path with one cannot be passed on.
SHARED_CLASSES := -XX:SharedArchiveFile=$(CURDIR)/.local/spark.jsa -Xlog:cds=off -Xlog:cds+dynamic=off
export SPARK_SUBMIT_OPTS := -XX:TieredStopAtLevel=1 -XX:+UseSerialGC $(if $(word 2,$(CURDIR)),,$(SHARED_CLASSES))
export SPARK_LOCAL_IP := 127.0.0.1
# Some machines forbid it, and then each of the many Python processes compiles all that it imports again.
unexport PYTHONDONTWRITEBYTECODE
export BACKSTOP_JDBC_JAR := $(CURDIR)/.local/jars/postgresql-42.7.8.jar
# Set-up wrote down the Java that it found fit; it is read when a recipe runs, after set-up.
WITH_JAVA = JAVA_HOME="$$(cat .local/java_home)"
PYTEST = $(WITH_JAVA) $(PY) -m pytest
# Files of tests at once, where many of them wait; what has a broker in Java or a storm of its own takes more of the machine: three.
JOBS ?= 4

.DEFAULT_GOAL := help
.PHONY: help mariadb mongodb browser activemq rocketmq iceberg message-tables setup bench demo chaos soak test test-unit test-brokers test-demos test-faults test-versions test-all collected \
  up down traffic status shell ui pictures materials scan lint types lint-and-types env pin-images

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  Settings: SEED=1 MESSAGES=... BROKER=activemq STORES=mariadb FULL=1 for the demo; RATE=... for traffic; ARGS=... for pytest"

setup: ## environment, locked dependencies, JDBC driver (skipped when already there)
	@python3 -I include/backstop_lab/setup.py

demo: setup $(filter activemq rocketmq,$(BROKER)) $(filter mariadb,$(STORES)) ## the main job on real traffic with real faults (BROKER=activemq, rocketmq; STORES=mariadb); ends with a page of accounting
	@$(WITH_JAVA) $(PY) -m backstop_lab.demo --seed $(SEED) $(if $(MESSAGES),--messages $(MESSAGES)) $(if $(BROKER),--broker $(BROKER)) $(if $(STORES),--stores $(STORES)) $(if $(FULL),--full)

mariadb: ## the MariaDB programs that some tests and the demo start: Debian's packages, when root may install them
	@PATH="$$PATH:/usr/sbin" command -v mariadbd >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get update -q && apt-get install -y -q --no-install-recommends mariadb-server-core mariadb-client-core; } \
	  || echo "No MariaDB here: what needs it will fail. On Debian: sudo apt-get install --no-install-recommends mariadb-server-core mariadb-client-core" >&2

browser: ## the Chromium that the console's tests use: Debian's package, when root may install it
	@command -v chromium-headless-shell >/dev/null || command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get update -q && apt-get install -y -q --no-install-recommends chromium-headless-shell; } \
	  || echo "No Chromium here: the console's tests will be skipped. On Debian: sudo apt-get install --no-install-recommends chromium-headless-shell" >&2

activemq: setup ## the distribution of ActiveMQ Classic, for tests and the demo (skipped when already there)
	-@$(PY) -m backstop_lab.servers.fetch_activemq && $(WITH_JAVA) $(PY) -m backstop_lab.servers.share_classes activemq

rocketmq: setup ## the jars of RocketMQ, for tests and the demo (skipped when already there)
	-@$(PY) -m backstop_lab.servers.fetch_rocketmq && $(WITH_JAVA) $(PY) -m backstop_lab.servers.share_classes rocketmq

# Its one class of ours is compiled by the compiler among RocketMQ's jars.
mongodb: setup rocketmq ## the jars of a server that speaks MongoDB's protocol, for tests (skipped when already there)
	-@$(PY) -m backstop_lab.servers.fetch_mongodb

# Their programs of ours are compiled by the compiler among RocketMQ's jars, too.
message-tables: setup rocketmq ## the jars of Spring Modulith and Eventuate Tram, for the tests of their tables (skipped when already there)
	-@$(PY) -m backstop_lab.servers.fetch_message_tables

iceberg: setup ## the Spark runtime of Apache Iceberg, for the tests of lake tables (skipped when already there)
	-@$(PY) -m backstop_lab.servers.fetch_iceberg

test: setup mariadb mongodb browser activemq rocketmq iceberg message-tables ## lint, types, and the tests, JOBS=4 files at once; left out: long runs, and what `make test-brokers` and `make test-demos` run
	@$(MAKE) -j 2 --no-print-directory lint-and-types collected
	@$(PYTEST) -n $(JOBS) -m "not soak and not other_broker" $(ARGS)

# Bytecode of the tests and of what they import is written once, not by each worker.
collected:
	@$(PYTEST) --collect-only -qq >/dev/null

test-unit: setup ## unit tests only (within 60 s)
	@$(PYTEST) -n 2 tests/unit $(ARGS)

test-brokers: setup activemq rocketmq ## what `make test` leaves out of RocketMQ: all beyond the broker contract
	@$(PYTEST) -n 3 -m "other_broker" $$(grep -lr --include='test_*.py' 'mark\.other_broker' tests/integration) $(ARGS)

test-demos: setup activemq rocketmq mariadb ## the demo's story on ActiveMQ, on RocketMQ and with stores in MariaDB
	@$(PYTEST) -n 3 tests/acceptance/test_other_brokers.py tests/acceptance/test_other_stores.py $(ARGS)

test-faults: setup ## that each fault of `make chaos` matters: without its protection the system is found broken
	@$(PYTEST) -n 3 tests/chaos/test_each_fault_matters.py $(ARGS)

test-versions: setup mariadb ## both ends of the declared versions: the oldest on Python 3.11, the newest on Python 3.13 (two environments below build/)
	@$(PY) -m backstop_lab.try_versions

test-all: setup mariadb mongodb browser activemq rocketmq iceberg message-tables ## everything, the long tests too (seeds, soaks)
	@$(MAKE) -j 2 --no-print-directory lint-and-types collected
	@$(PYTEST) -n $(JOBS) $(ARGS)

bench: setup rocketmq mariadb mongodb iceberg ## the benchmarks with their peers (FULL=1: the large sizes; ONLY=prefix; DATA=1: only make their data); rows in build/bench/results.json
	@PYTHONPATH=$(CURDIR)/include:$(CURDIR)/tests:$(CURDIR)/tests/support $(WITH_JAVA) $(PY) -m bench $(if $(FULL),--full) $(if $(ONLY),--only $(ONLY)) $(if $(DATA),--data)

chaos: setup ## the system under fire: SEED=1, or SEEDS=20 for many, SECONDS=75 of it each
	@$(WITH_JAVA) $(PY) -m backstop_lab.chaos --seed $(SEED) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(SECONDS),--seconds $(SECONDS))

soak: setup ## the same system for MINUTES=120 at RATE=40 messages a second: flat memory, flat run time, all accounted for
	@$(WITH_JAVA) $(PY) -m backstop_lab.chaos.soak $(if $(MINUTES),--minutes $(MINUTES)) $(if $(RATE),--rate $(RATE))

up: setup ## the embedded platform with the Airflow UI on the loopback; prints the login
	@$(WITH_JAVA) $(PY) -m backstop_lab up

down: setup ## stop the embedded platform; nothing is lost
	@$(PY) -m backstop_lab down

traffic: setup ## producers and consumers over the running platform, until Ctrl-C (RATE=20 messages a second)
	@$(PY) -m backstop_lab.demo.traffic $(if $(RATE),--rate $(RATE))

shell: setup ## a shell in which `backstop` works on the running platform
	@$(PY) -m backstop_lab shell

status: setup ## what of the embedded platform runs, and where
	@$(PY) -m backstop_lab status

env: ## .env with generated secrets for docker-compose.yaml (an old one is kept)
	@python3 -I docker/write_env.py .env

ui: ## the console's script from ui/ (needs Node 20; users and `make test` do not, but for one test)
	@cd ui && npm ci --no-audit --no-fund && npx tsc --noEmit && node build.mjs

pictures: setup browser ## the console's pictures in docs/ (2 minutes)
	@PYTHONPATH=$(CURDIR)/include:$(CURDIR)/tests/support $(WITH_JAVA) $(PY) -m console_pictures docs

materials: setup ## the bill of materials (CycloneDX) in build/, and NOTICE
	@$(PY) docker/materials.py bill requirements.lock build/sbom.cdx.json
	@$(PY) docker/materials.py notice requirements.lock NOTICE

# The versions are the lock's own: nothing is installed or resolved. It asks the advisory database over the network.
scan: materials ## the locked packages against the known weaknesses (pip-audit; needs the network)
	@.venv/bin/uv tool run --from pip-audit==2.10.1 pip-audit --disable-pip --require-hashes -r requirements.lock

pin-images: ## the digests of the base images, into docker-compose.yaml and docker/Dockerfile (wants Docker and the registry)
	@python3 -I docker/pin_digests.py

lint: setup ## ruff (rules and format) and the import rules
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check -q .
	@PYTHONPATH=$(CURDIR) .venv/bin/lint-imports

types: setup ## mypy, strict on include/
	@$(PY) -m mypy

lint-and-types: lint types
