# make demo: set up and run the main job. make test: set up and pass the tests; make test-all: the long sweeps that
# `make test` leaves out; make test-trainers: Accelerate, Lightning and Hugging Face; make test-engines: torchrun on
# several nodes, Slurm (as root of a Debian: it installs the packages) and Ray; make test-frameworks: JAX, TensorFlow and
# Keras. make docs: write the generated pages, and the documentation to site/. make dist: a wheel and an archive of the
# sources, in dist/. make mutants: planted bugs, each of which a test has to catch; make fuzz: corrupt payloads; make
# faults: an hour of faults (as root); make soak: ten codecs for 10,000 steps each. All work on a fresh clone.
PYTHON ?= python3
BIN := .venv/bin
ENGINES := .venv-engines/bin
SLURM := slurmctld slurmd slurm-client

.PHONY: demo test test-all test-trainers test-engines test-frameworks slurm check docs dist traces profiles mutants fuzz
.PHONY: faults soak setup clean clean-kernels

demo: setup
	$(BIN)/gradwire demo

test: check
	$(BIN)/pytest -n 2 --dist worksteal -m "not sweep and not trainers and not engines and not frameworks"

test-all: setup
	$(BIN)/pytest -n 2 --dist worksteal -m sweep

test-trainers: .venv/trainers-ready
	$(BIN)/pytest -m trainers

test-engines: .venv-engines/ready slurm
	$(ENGINES)/pytest -m engines -rs tests/engines

test-frameworks: .venv-frameworks/ready
	.venv-frameworks/bin/pytest -m frameworks tests/frameworks

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/docs-ready
	$(BIN)/python docs/render.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: setup
	$(BIN)/python -m build --outdir dist

traces: setup
	$(BIN)/python docs/traces.py

profiles: setup
	$(BIN)/python docs/profiles.py

mutants: setup
	$(BIN)/python tests/mutants.py

fuzz: setup
	$(BIN)/python tests/fuzz.py --cases 100000 --jobs $$(nproc)

faults: setup
	$(BIN)/python tests/faults.py

soak: setup
	$(BIN)/python tests/soak.py

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("gradwire needs Python 3.11 to 3.13, and $(PYTHON) is " + sys.version.split()[0] + "; run: make PYTHON=python3.11 <target>") if not (3, 11) <= sys.version_info[:2] <= (3, 13) else None'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

.venv/docs-ready: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	touch $@

.venv/trainers-ready: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[trainers]'
	touch $@

# an environment of its own: Ray brings much along
.venv-engines/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-engines
	$(ENGINES)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(ENGINES)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[engines]' pytest pytest-timeout
	touch $@

slurm:
	@command -v slurmctld slurmd sbatch > /dev/null || \
	{ apt-get update -qq && apt-get install -y -qq --no-install-recommends $(SLURM) > /dev/null; } || \
	echo "Slurm is not tested: it needs Debian's packages $(SLURM), which root can install"

.venv-frameworks/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-frameworks
	.venv-frameworks/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	.venv-frameworks/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	  'pytest>=8.3' 'pytest-timeout>=2.3' --editable '.[cli,cpu,jax,keras,tensorflow]'
	touch $@

clean-kernels:
	find src -name '*.nb?' -delete

clean:
	rm -rf .venv .venv-engines .venv-frameworks build dist site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
