# `make` lists the targets. Everything is installed into .venv, from locks with hashes.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
export PIP_DISABLE_PIP_VERSION_CHECK := 1

export VENV ?= .venv
BIN := $(VENV)/bin
LIBRARIES := /usr/lib/$(shell uname -m)-linux-gnu
PYTEST_ARGS ?=
RUNNERS ?= flink $(if $(findstring spark,$(PYTEST_ARGS)),spark)
QUICK := not (slow or tf or dali or horovod or mxnet or browser)
# The tests of `make quick`. They need no extra, and a contributor of a flag or page first meets these rules.
TEST_PACKAGES := core dataset evaluation hosts preparation shards storage \
  contract/test_choices.py contract/test_flags.py contract/test_blocks.py

# .venv is updated only if one of these files changes. The layers quick, demo and test share one .venv.
KEY := $(shell cat .ci/main.lock .ci/install .ci/layer.py pyproject.toml setup.py imagenet_prep/*/*.[ch] | sha256sum | cut -c1-16)
LIGHT := $(VENV)/.installed-quick-$(KEY)
TEST := $(VENV)/.installed-test-$(KEY)
DEMO := $(VENV)/.installed-demo-$(KEY)
ABOUT_quick := 45 MB and half a minute
ABOUT_demo := 2.5 GB and a minute
ABOUT_test := 3.5 GB and a minute
# The C compiler from PyPI (100 MB). quick and demo install it only if the machine has no compiler; test always does.
COMPILER := $(if $(shell command -v cc || command -v gcc || command -v clang),,compiler)
LAYERS_quick := project build $(COMPILER) quick
LAYERS_demo := project build $(COMPILER) demo report tf
LAYERS_test := project build compiler all test quick
RECIPE := imagenet_prep/install_horovod.py imagenet_prep/launching/horovod_keras.py imagenet_prep/launching/horovod_source.py imagenet_prep/horovod*.lock
HOROVOD := $(VENV)/.installed-horovod-$(shell cat $(RECIPE) | sha256sum | cut -c1-16)-$(KEY)
AIRFLOW := $(VENV)/airflow/.installed-$(shell sha256sum < .ci/airflow.lock | cut -c1-16)
MXNET := $(VENV)/mxnet/.installed-$(shell cat docker/mxnet.lock $(RECIPE) | sha256sum | cut -c1-16)
PYTORCH := $(VENV)/pytorch/.installed-$(shell cat .ci/main.lock .ci/without_cuda.py | sha256sum | cut -c1-16)
LOADERS := $(VENV)/loaders/.installed-$(shell sha256sum < .ci/main.lock | cut -c1-16)
LOADERS_HOROVOD := $(VENV)/loaders/.horovod-$(shell cat .ci/main.lock $(RECIPE) | sha256sum | cut -c1-16)
TRAINERS := $(VENV)/trainers/.installed-$(shell sha256sum < .ci/trainers.lock | cut -c1-16)
MPI := $(VENV)/mpi/.installed-$(shell sha256sum < imagenet_prep/horovod-openmpi.lock | cut -c1-16)
MPICH := $(VENV)/mpich/.installed-$(shell sha256sum < .ci/main.lock | cut -c1-16)
MPI_HOROVOD := $(VENV)/mpi/.horovod-$(shell cat $(RECIPE) | sha256sum | cut -c1-16)-$(KEY)
JARS := $(HOME)/.cache/imagenet-prep/jars
ARM := build/aarch64/.made-$(shell sha256sum < .ci/main.lock | cut -c1-16)
DOCS := $(VENV)/docs/.installed-$(shell sha256sum < .ci/main.lock | cut -c1-16)
RELEASE := $(VENV)/release/.installed-$(shell sha256sum < .ci/main.lock | cut -c1-16)
JARS_KEY := $(shell cat .ci/jars .ci/jars.sha256 .ci/job-server.xml | sha256sum | cut -c1-16)

# `make gpu` installs packages with CUDA into a separate environment. With GPU_PYTHON=python3 it uses the packages of
# that Python instead, installs nothing, and skips steps whose packages are missing.
GPU := $(VENV)/gpu
GPU_PYTHON ?=
GPU_KEY := $(GPU)/.installed-$(shell cat docker/prep.lock docker/train.lock pyproject.toml setup.py | sha256sum | cut -c1-16)
GPU_ARGS ?=

.PHONY: help demo docs release gpu test test-long mutants newest oldest quick lint types imports format locks images-rehearsal picture debian debian-long jars flink-up flink-down spark-up spark-down clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 18

demo: $(DEMO) ## run all steps with a miniature ILSVRC2012, in build/demo
	@$(BIN)/imagenet-prep demo build/demo

docs: $(DOCS) ## build the site of the documents: build/docs/index.html
	@$(VENV)/docs/bin/python .ci/site/build.py build/docs

# The targets run in parallel: downloads use one core, and the build of Horovod or mypy uses the second core.
# After the layers are installed, only Horovod's target writes to .venv.
test: ## run all linters and tests; PYTEST_ARGS="-m flink" selects tests
	@$(MAKE) -j4 $(TEST) debian $(AIRFLOW) $(BIN)/actionlint
	@$(MAKE) -j4 $(HOROVOD) $(MXNET) $(PYTORCH) types jars lint imports
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

# The long tests need an emulator and ARM's libc and libjpeg (to run the codec for ARM), Slurm (to run batch jobs),
# debootstrap and a release (to install on an empty Debian), and the images of Fashion-MNIST.
test-long debian-long: LONG = qemu-aarch64-static:qemu-user-static /usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1:libc6-arm64-cross \
  slurmctld:slurm-wlm munged:munge debootstrap:debootstrap \
  /usr/share/datasets/fashion-mnist:dataset-fashion-mnist
test-long: RUNNERS = flink spark
# PART selects some folders of tests, so that a part ends within 80 minutes on two cores.
PARTS := codec faults frameworks commands others
PART_codec := codec oracles
PART_faults := campaign hostile
PART_frameworks := benchmarks e2e frameworks site trainer trainers
PART_commands := commands
PART_others := $(sort $(filter-out $(foreach part,$(filter-out others,$(PARTS)),$(PART_$(part))) kit,$(notdir $(patsubst %/,%,$(wildcard tests/*/)))))
PART ?=
debian-long: debian ## install the programs that long tests use, as root on Debian
test-long: IN_PART = $(if $(PART),$(or $(PART_$(PART):%=tests/%),$(error There is no part $(PART): choose one of $(PARTS))))
test-long: debian jars $(TEST) $(DOCS) $(RELEASE) $(MPI_HOROVOD) $(MPICH) $(HOROVOD) $(AIRFLOW) $(MXNET) $(LOADERS_HOROVOD) $(TRAINERS) $(ARM) ## run long tests: kills, faults, flipped bits; PART=codec runs a part
	@$(BIN)/python -m pytest -m "long or hypothesis" $(IN_PART) $(PYTEST_ARGS)

# Lines that changed since the commit BASE are mutated. MUTANTS_ARGS limits the tests that are run.
mutants: BASE = $(shell git rev-parse --verify --quiet origin/main > /dev/null && echo origin/main || echo main)
mutants: $(TEST) ## find small mistakes in changed lines that no test detects (BASE=main); takes minutes to hours
	@$(BIN)/python -m tests.mutants --base $(BASE) $(MUTANTS_ARGS)

release: $(RELEASE) ## build the sdist and wheels of this commit in dist/, reproducibly
	@.ci/release $(VENV)/release/bin/python

gpu: $(if $(GPU_PYTHON),,$(GPU_KEY)) ## run tests and benchmarks on an NVIDIA GPU, write benchmarks/gpu.md; without a GPU: GPU_ARGS=--dry-run
	@test -e imagenet_prep/codec/_planes.so || $(or $(GPU_PYTHON),$(GPU)/bin/python) setup.py -q build_ext --inplace || \
	  echo "Continuing without the compiled codec: Pillow makes and decodes the images, which is slower" >&2
	@$(or $(GPU_PYTHON),$(GPU)/bin/python) -m benchmarks.gpu $(GPU_ARGS)

# docs/exchange.png is not renewed here, since its measurement needs root: see benchmarks/README.md.
picture: $(TEST) $(AIRFLOW) debian ## renew docs/report.png and docs/airflow.svg by running the tests that draw them
	@$(BIN)/python -m pytest -q -m "browser and long" -k screenshots tests/commands/report
	@cp build/report/report-1200-light.png docs/report.png
	@$(BIN)/python -m pytest -q -m airflow -k picture tests/commands/airflow
	@cp build/airflow/dag.svg docs/airflow.svg

# `make newest` and `make oldest` ignore the locks, so they run on any machine and with any supported Python.
# Beam is excluded, because it does not allow some of the newest and oldest packages that we allow.
newest: | $(BIN)/pip ## run the quick tests with the newest packages that pyproject.toml allows; no frameworks
	@$(BIN)/python -m venv --clear $(VENV)/newest
	@$(VENV)/newest/bin/python -m pip install --quiet --upgrade pip
	@$(VENV)/newest/bin/python -m pip install --quiet --group newest -e '.[demo,parquet,s3]'
	@$(VENV)/newest/bin/python -m pytest -m "$(QUICK) and not beam" $(PYTEST_ARGS)

oldest: | $(BIN)/uv ## run the quick tests with the oldest packages that pyproject.toml allows
	@$(BIN)/python -m venv --clear $(VENV)/oldest
	@$(BIN)/uv pip compile --quiet --resolution lowest-direct --python $(VENV)/oldest/bin/python \
	  --extra demo --extra parquet --extra s3 --output-file $(VENV)/oldest/requirements.txt pyproject.toml > /dev/null
	@$(BIN)/uv pip install --quiet --python $(VENV)/oldest/bin/python \
	  --requirement $(VENV)/oldest/requirements.txt --group newest --editable .
	@$(VENV)/oldest/bin/python -m pytest -m "$(QUICK) and not beam" $(PYTEST_ARGS)

quick: lint ## run lint and the tests that need no framework or extra: 2 CPU minutes with the installation, 45 MB
	@$(BIN)/python -m pytest -n "$$(nproc)" -m "$(QUICK) and not extras" $(TEST_PACKAGES:%=tests/%) $(PYTEST_ARGS)

# A git hook sets FILES to the staged files.
lint: FILES = .
lint: $(LIGHT) ## check rules and format with ruff
	@$(BIN)/ruff check --quiet --force-exclude $(FILES)
	@$(BIN)/ruff format --check --quiet --force-exclude $(FILES) || { echo 'Not formatted, see above. Run: make format' >&2; exit 1; }

types: $(TEST) ## check types with mypy (strict)
	@$(BIN)/mypy

imports: $(LIGHT) ## check which modules import which
	@mkdir -p build
	@$(BIN)/lint-imports --cache-dir build/import-linter > build/imports.txt 2>&1 || { cat build/imports.txt >&2; exit 1; }

format: $(LIGHT) ## format the code with ruff, and apply its fixes
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --fix --quiet .

LOCK = $(BIN)/uv pip compile --quiet --upgrade --generate-hashes --no-emit-index-url --python-version 3.11 \
  --exclude-newer "$$(date -u -d '7 days ago' +%F)" \
  --custom-compile-command 'make locks'
# MXNet's environment and the images have Python 3.11.
LOCK_311 = $(LOCK) --python-platform x86_64-manylinux_2_28
PROJECT = --group build pyproject.toml
BOTH := .ci/main.lock .ci/airflow.lock .ci/trainers.lock

# .ci/main.lock has one version of each package for all its layers. Environments that need a different version, and
# environments that we ship in images or in the wheel, have separate locks, with the same versions if possible.
# The locks BOTH are for all environments of [tool.uv] in pyproject.toml. sed removes the markers that are true in all.
locks: | $(BIN)/uv ## renew all locks from pyproject.toml, with packages that are at least a week old
	@$(LOCK) --universal $(PROJECT) --extra all --extra test --group compiler --group quick --group docs --group release --group loaders --group mpich --group installer --no-emit-package triton --output-file .ci/main.lock > /dev/null
	@$(LOCK) --universal --group airflow --output-file .ci/airflow.lock > /dev/null
	@$(LOCK) --universal --group trainers --override .ci/trainers.override --output-file .ci/trainers.lock > /dev/null
	@sed -i -E "s/ and (implementation_name|platform_\w+|sys_platform) [!=]= '[^']*'//g; s/ ; python_full_version < '3\.13'( |$$)/\1/" $(BOTH)
	@$(LOCK_311) $(PROJECT) --extra beam --extra parquet --extra demo --extra report --extra s3 --constraints .ci/main.lock --output-file docker/prep.lock > /dev/null
	@$(LOCK_311) $(PROJECT) docker/train.in --extra gpu --extra s3 --constraints .ci/main.lock --output-file docker/train.lock > /dev/null
	@$(LOCK_311) --group mxnet --output-file docker/mxnet.lock > /dev/null
	@$(LOCK_311) --no-deps --constraints .ci/main.lock --group horovod-needs --output-file imagenet_prep/horovod-needs.lock > /dev/null
	@for group in horovod horovod-tools horovod-openmpi; do $(LOCK_311) --no-deps --group $$group --output-file imagenet_prep/$$group.lock > /dev/null; done

# Builds every target of docker/Dockerfile in chroots, only from Debian's and PyPI's packages, and tests it.
images-rehearsal: $(TEST) ## build and test the images without Docker; needs root on Debian, 20 GB and half an hour
	@for program in buildah debootstrap; do command -v $$program > /dev/null || missing="$${missing:-} $$program"; done; \
	[ -z "$${missing:-}" ] || { apt-get update -qq && apt-get install -qq -y --no-install-recommends $$missing > /dev/null; }
	@$(BIN)/python -m docker.rehearse

clean: ## remove temporary files, but keep .venv
	@rm -rf build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Installs the locked packages, then this project without further downloads.
$(LIGHT) $(TEST) $(DEMO): $(VENV)/.installed-%-$(KEY): | $(BIN)/uv
	@echo "Installing the layer $* of .ci/main.lock into $(VENV) (once; about $(ABOUT_$*))" >&2
	@.ci/install $(BIN)/python .ci/main.lock $(LAYERS_$*)
	@compgen -G '$(VENV)/.installed-*-$(KEY)' > /dev/null || $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@find $(VENV) -maxdepth 1 -name '.installed-*' ! -name '*-$(KEY)' -delete
	@touch $@ $(if $(filter test,$*),$(LIGHT))

# Tests are skipped with a message if their program is missing. Tests of the report need a browser, replication over a
# network needs sshd and tc, the picture of the DAG dot, and benchmarks rsync and curl. MXNet needs two libraries.
debian: ## install the programs that tests use (as root on Debian), or print the missing ones
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
	echo "Continuing without$$missing: their tests will be skipped. On Debian: sudo apt-get install$$missing" >&2

# Without the jars, the tests of Flink and Spark are skipped with a message. Spark's tests are long tests.
jars: $(TEST) | debian ## download Java, Flink and Beam's job server; RUNNERS=spark: Spark instead of Flink
	@for runner in $(RUNNERS); do \
	  test -e $(JARS)/.made-$$runner-$(JARS_KEY) && command -v java > /dev/null && continue; \
	  .ci/jars $(BIN)/python $(JARS) $$runner && touch $(JARS)/.made-$$runner-$(JARS_KEY) || \
	    echo "Continuing without $$runner: the reason is above." >&2; \
	done

flink-up: jars ## start a Flink cluster on this machine, and print how to use it
	@$(BIN)/python -m tests.kit.flink up build/flink

flink-down: ## stop the Flink cluster
	@$(BIN)/python -m tests.kit.flink down build/flink

spark-up: RUNNERS = spark
spark-up: jars ## start a Spark cluster on this machine, and print how to use it
	@$(BIN)/python -m tests.kit.spark up build/spark

spark-down: ## stop the Spark cluster
	@$(BIN)/python -m tests.kit.spark down build/spark

# Downloads Pillow's wheel for ARM in the version of the lock, and unpacks it without installing it.
$(ARM): $(TEST)
	@rm -rf $(@D) && mkdir -p $(@D) && sed -n '/^pillow==/,/^    #/p' .ci/main.lock > $(@D)/pillow.lock && \
	  $(BIN)/python -m pip download --quiet --require-hashes --no-deps --only-binary :all: \
	    --platform manylinux_2_28_aarch64 --dest $(@D) -r $(@D)/pillow.lock && \
	  $(BIN)/python -m zipfile -e $(@D)/*.whl $(@D) && touch $@ || \
	  { rm -rf $(@D); echo 'Continuing without the libjpeg of ARM: its test will be skipped; the reason is above.' >&2; }

# Horovod is published only as source. It is built once per machine, and the wheel is kept in ~/.cache.
$(HOROVOD): $(TEST)
	@if $(BIN)/imagenet-prep install-horovod >&2; then touch $@; \
	else echo 'Continuing without Horovod: its tests will be skipped; the reason is above.' >&2; fi

# Airflow needs different versions of our packages.
$(AIRFLOW): | $(BIN)/uv
	@echo "Installing .ci/airflow.lock into $(VENV)/airflow (once; 300 MB, half a minute)" >&2
	@$(BIN)/python -m venv --clear $(VENV)/airflow && \
	  .ci/install $(VENV)/airflow/bin/python .ci/airflow.lock && touch $@ || \
	  { rm -rf $(VENV)/airflow; echo 'Continuing without Airflow: its tests will be skipped; the reason is above.' >&2; }

# MXNet needs Python 3.11, an older NumPy, and its own build of Horovod, which is built once per machine.
$(MXNET): $(TEST) | debian
	@echo "Installing docker/mxnet.lock into $(VENV)/mxnet (once; 330 MB, half a minute)" >&2
	@"$$(.ci/python 3.11)" -m venv --clear $(VENV)/mxnet && \
	  .ci/install $(VENV)/mxnet/bin/python docker/mxnet.lock && \
	  $(VENV)/mxnet/bin/python -m pip install --quiet --no-deps --no-build-isolation -e . && \
	  $(VENV)/mxnet/bin/imagenet-prep install-horovod --framework mxnet >&2 && touch $@ || \
	  { rm -rf $(VENV)/mxnet; echo 'Continuing without MXNet: its tests will be skipped; the reason is above.' >&2; }

# The tests of our PyTorch trainer need only PyTorch and torchvision, without NVIDIA's libraries (3 GB); all else is in .venv.
# The packages with = are installed without those that the lock says they need.
$(PYTORCH): $(TEST)
	@echo "Installing PyTorch of .ci/main.lock into $(VENV)/pytorch (once; 1.2 GB, half a minute)" >&2
	@$(BIN)/python -m venv --clear $(VENV)/pytorch && \
	  site=$$($(VENV)/pytorch/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	  $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$site/shared.pth" && \
	  .ci/install $(VENV)/pytorch/bin/python .ci/main.lock =torch =torchvision =nvidia-cuda-runtime =sympy =mpmath =filelock && \
	  $(BIN)/python .ci/without_cuda.py "$$site" && touch $@ || \
	  { rm -rf $(VENV)/pytorch; echo 'Continuing without PyTorch: its tests will be skipped; the reason is above.' >&2; }

# PyPI's PyTorch for x86 includes CUDA and needs it even without a GPU. triton (1 GB) is excluded.
$(LOADERS): $(TEST)
	@echo "Installing the layer loaders of .ci/main.lock into $(VENV)/loaders (once; 5 GB, some minutes)" >&2
	@$(BIN)/python -m venv --clear $(VENV)/loaders && \
	  .ci/install $(VENV)/loaders/bin/python .ci/main.lock loaders && touch $@ || \
	  { rm -rf $(VENV)/loaders; echo 'Continuing without PyTorch and JAX: their tests will be skipped; the reason is above.' >&2; }

# .ci/trainers.override excludes packages that Model Garden requires but does not need for ImageNet.
$(TRAINERS): $(TEST)
	@echo "Installing .ci/trainers.lock into $(VENV)/trainers (once; 2 GB, some minutes)" >&2
	@$(BIN)/python -m venv --clear $(VENV)/trainers && \
	  .ci/install $(VENV)/trainers/bin/python .ci/trainers.lock && touch $@ || \
	  { rm -rf $(VENV)/trainers; echo 'Continuing without Model Garden and KerasCV: their tests will be skipped; the reason is above.' >&2; }

# actionlint is a Go program; its modules are pinned by hashes. Without it, only zizmor checks the workflows.
$(BIN)/actionlint: .ci/actionlint/go.sum | $(BIN)/pip
	@cd .ci/actionlint && GOBIN=$(abspath $(BIN)) GOFLAGS=-mod=readonly go install github.com/rhysd/actionlint/cmd/actionlint && \
	  touch $(abspath $@) || echo 'Continuing without actionlint: its test will be skipped; the reason is above.' >&2

$(DOCS): | $(BIN)/uv
	@echo "Installing the layer docs of .ci/main.lock into $(VENV)/docs (once; 220 MB, some seconds)" >&2
	@$(BIN)/python -m venv --clear $(VENV)/docs
	@.ci/install $(VENV)/docs/bin/python .ci/main.lock project docs && touch $@

$(MPI): | $(BIN)/uv
	@$(BIN)/python -m venv --clear $(VENV)/mpi
	@.ci/install $(VENV)/mpi/bin/python imagenet_prep/horovod-openmpi.lock && touch $@

# Both have a program `mpiexec`.
$(MPICH): | $(BIN)/uv
	@$(BIN)/python -m venv --clear $(VENV)/mpich
	@.ci/install $(VENV)/mpich/bin/python .ci/main.lock mpich && touch $@

# This environment has only Open MPI and a Horovod for it; it finds all other packages in .venv.
$(MPI_HOROVOD): $(TEST) $(MPI)
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$($(VENV)/mpi/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/shared.pth"
	@if $(VENV)/mpi/bin/python -m imagenet_prep.install_horovod --mpi >&2; then touch $@; \
	else echo 'Continuing without Horovod for Open MPI: its tests will be skipped; the reason is above.' >&2; fi

$(RELEASE): | $(BIN)/uv
	@$(BIN)/python -m venv --clear $(VENV)/release
	@.ci/install $(VENV)/release/bin/python .ci/main.lock release && touch $@

# Horovod for PyTorch is built once per machine. Without it, only the PyTorch tests with Horovod are skipped.
$(LOADERS_HOROVOD): $(LOADERS)
	@if $(VENV)/loaders/bin/python -m imagenet_prep.install_horovod --framework pytorch >&2; then touch $@; \
	else echo 'Continuing without Horovod for PyTorch: its tests will be skipped; the reason is above.' >&2; fi

$(GPU_KEY): | $(BIN)/uv
	@echo "Installing docker/prep.lock and docker/train.lock into $(GPU) (once; about 9 GB)" >&2
	@$(BIN)/python -m venv --clear $(GPU)
	@for lock in prep train; do .ci/install $(GPU)/bin/python docker/$$lock.lock; done
	@$(GPU)/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(BIN)/uv: .ci/main.lock | $(BIN)/pip
	@$(BIN)/python .ci/layer.py .ci/main.lock installer | $(BIN)/python -m pip install --quiet --require-hashes -r /dev/stdin && \
	  touch $@ || \
	  echo 'Continuing with pip, which takes longer: the reason why uv is missing is above.' >&2

# pip is installed last, so its presence means that the venv is complete. On Debian, venv is a separate package.
$(BIN)/pip:
	@python=$${PYTHON:-$$(.ci/python 3.12 3.11 3 || true)}; \
	if ! "$${python:-false}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then \
	  echo "imagenet-prep needs Python 3.11 or newer; found: $$("$${python:-python3}" --version 2>&1 || true)." >&2; \
	  echo 'Install Python 3.12 or 3.11 so that `python3.12`, `python3.11` or `python3` is on PATH.' >&2; \
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
