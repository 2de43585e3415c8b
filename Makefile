# Two commands matter: `make demo` and `make test`. Everything is installed into .venv; nothing else
# is touched.
PYTHON ?= python3
BIN := .venv/bin
DEMO := runs/demo

.PHONY: help setup demo check docs map reproduction test slow mutants clean

help:
	@echo "make demo    compare eight methods on one-class-per-client digits: a table and a report"
	@echo "make test    lint, types, room contract and tests, as CI runs them"
	@echo "make setup   .venv with everything for development"
	@echo "make check   lint, types, room contract and docs only"
	@echo "make docs    the documentation as a site, in build/site; broken links are errors"
	@echo "make slow    what needs minutes or the full data sets (TACIT_DATA): every kind of everything"
	@echo "make mutants plant errors in the code, one at a time, and see that tests notice (minutes)"

.venv/demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

.venv/dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,docs,parquet]"
	@touch .venv/demo $@

setup: .venv/dev

demo: .venv/demo
	rm -rf $(DEMO)
	$(BIN)/tacit compare fedavg fedprox:mu=1 scaffold fedmix centralised local moments:epsilon=3 \
	    dafl:gamma=1.0,pool_epsilon=3 --split label:1 --rounds 20 --repeats 3 --out $(DEMO)

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) docs

# The map of all files, after one was added, renamed or given another first line.
map:
	$(PYTHON) docs/map.py

# The pages of docs/reproduction; RESULTS is the folder of a `tacit reproduce`, if there is one.
reproduction:
	$(PYTHON) docs/reproduction.py $(RESULTS)

docs: .venv/dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Two processes, with a thread each: with more they would wait for each other. A file is tested in
# one of them, so that what its tests share is made once. Compiled files are kept, whatever the
# environment says: tests start `tacit` many times.
test: check
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile

# One process: these tests start processes of their own, and some need most of the memory.
# Then the properties once more, with all of their examples.
slow: .venv/dev
	$(BIN)/pytest -m "slow or flower"
	TACIT_EXAMPLES=all $(BIN)/pytest $$(grep -rl --include="*.py" "^from often import" tests)

mutants: .venv/dev
	$(BIN)/python tests/mutants/run.py

clean:
	rm -rf .venv runs build .mypy_cache .ruff_cache .pytest_cache .hypothesis
