# The door to the project: every target works on a fresh machine with Python 3.11 or newer.

ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help run run-pipeline run-cluster test test-repeat check format bench soak damages strangers fuzz spark-faults sim mutants pipeline-faults docs build clean env env-run env-test env-pipeline

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: env-run  ## serve on 127.0.0.1:9324 (admin 9325); data in ./quaymaster-data; ARGS="..." adds options
	@exec .venv/bin/quaymaster serve $(ARGS)

run-pipeline: env-pipeline  ## put what that server's clients use into tables, until Ctrl-C (needs Java; downloads 640 MB, most of it PySpark)
	@exec .venv/bin/quaymaster pipeline run $(ARGS)

run-cluster: env-run  ## run a whole cell until Ctrl-C, data in ./quaymaster-cluster; ARGS="..." adds options
	@exec .venv/bin/quaymaster local up --data ./quaymaster-cluster $(ARGS)

test: env-test  ## run every check and test, cheapest first, stop at the first stage that fails
	@scripts/test

test-repeat:  ## run the whole suite RUNS=10 times from fresh clones, the last STRESS=2 beside other work
	@RUNS=$(or $(RUNS),10) STRESS=$(or $(STRESS),2) scripts/repeat

check: env  ## run only the static checks: ruff, mypy, import-linter
	@scripts/test static

format: env  ## format the code and fix what ruff can fix
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix .

bench: env  ## run the benchmarks; ARGS="..." goes to them
	@.venv/bin/python -m bench $(ARGS)

damages: env-test  ## flip bits and remove files at every kind of place of a data directory, and of etcd's, and start a server from each
	@QUAYMASTER_DAMAGES=0 PYTHONPATH=tests .venv/bin/pytest -q -s tests/process/test_damaged_directories.py tests/process/test_damaged_etcd.py

soak: env  ## run the crash and simulation tests for long: SOAK_RUNS=200 each, SOAK_MINUTES=60 of mixed load, NEMESIS_MINUTES=60 of faults
	@scripts/test soak

strangers: env  ## attack both ports of a server for SECONDS=30 with each attack, and print what it costs signed clients
	@PYTHONPATH=tests .venv/bin/python -m process.strangers --seconds $(or $(SECONDS),30)

fuzz: env  ## send nonsense to both ports next to signed load for MINUTES=120, from SEED=1 on
	@PYTHONPATH=tests .venv/bin/python -m process.fuzz_ports --minutes $(or $(MINUTES),120) --seed $(or $(SEED),1)

spark-faults: env  ## kill a Spark cluster, its driver, the server and a cell's leaders for BATCHES=120 batches
	@SPARK_FAULT_BATCHES=$(or $(BATCHES),120) scripts/test spark-faults

sim: env  ## run simulated cells for HOURS=10 simulated hours in JOBS=1 processes, from seed SEED0 (fresh) on
	@PYTHONPATH=tests .venv/bin/python -m sim --hours $(or $(HOURS),10) --jobs $(or $(JOBS),1) --seed0 $(or $(SEED0),$(shell date +%s))

mutants: env  ## hunt every planted bug with fresh seeds, and print what it took; ARGS="..." names some
	@PYTHONPATH=tests .venv/bin/python -m sim.mutants --jobs $(or $(JOBS),1) --seed0 $(or $(SEED0),$(shell date +%s)) $(ARGS)

pipeline-faults: env  ## kill the usage pipeline everywhere: RUNS=20 histories from SEED=1 on, and Spark's driver at each table
	@PIPELINE_FAULT_RUNS=$(or $(RUNS),20) PIPELINE_FAULT_SEED=$(or $(SEED),1) .venv/bin/python -m pytest -q tests/pipeline/jobs/test_exactness.py tests/spark/test_pipeline_kills.py

docs: env  ## write the reference pages and dashboards that are made from the code
	@.venv/bin/python scripts/render_docs.py
	@.venv/bin/python scripts/render_dashboards.py

build: env  ## build the wheel and the source distribution into dist/
	@scripts/bootstrap uv build --out-dir dist

clean:  ## remove everything that can be made again; the data stays
	@rm -rf .venv .uv dist .coverage .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

env:
	@scripts/bootstrap

env-test:
	@scripts/bootstrap --test

env-run:
	@scripts/bootstrap --run-only

env-pipeline:
	@scripts/bootstrap --pipeline
