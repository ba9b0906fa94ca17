# SPDX-License-Identifier: Apache-2.0
#
# The everyday commands. CMake does the work (CMakePresets.json); `make help` lists the targets.

PREFIX ?= /usr/local
DESTDIR ?=
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
TIERCE_VENV ?= $(CURDIR)/.venv
SCALE ?= 32
export DESTDIR TIERCE_VENV

.DEFAULT_GOAL := build
.PHONY: help packages build test test-device test-long run fleet docs check install uninstall wheel dist deb clean

help: ## prints this
	@sed -n 's/^\([a-z-]*\):[^#]*## */  make \1|/p' $(firstword $(MAKEFILE_LIST)) | \
		while IFS='|' read -r name text; do printf '%-20s %s\n' "  $$name" "$$text"; done

packages:
	@tools/setup packages build

build: packages ## builds the release; the executable is build/bin/tierce
	@mkdir -p build/bin
	@exec 9>build/.lock; \
		flock -n 9 || { echo "another make builds here; waiting for its end"; flock 9; }; \
		{ [ -f build/rel/build.ninja ] || cmake --preset rel; } && \
		cmake --build --preset rel -j $(JOBS)
	@ln -sfn ../rel/bin/tierce build/bin/tierce

test: ## installs what is missing, runs every test, counts them in the last line (FAST=1: the quick ones)
	@tools/run_tests $(if $(FAST),--fast)

test-device: ## the tests of device memory on the GPU of this machine
	@tools/run_tests --device

test-long: ## the same with long fuzz, crash and property runs (hours)
	@tools/run_tests --long

run: ## a workload through a real vLLM, without and with Tierce (MODEL=random TRACE=file SCALE=32; PEERS=1: two vLLMs share what they have; PD=1: one computes prompts for the other, GBIT=1: over a loopback that you have limited; CODEC=lossless: how much more a disk, and memory, hold)
	@tools/setup room
	@tools/setup packages
	@$(MAKE) --no-print-directory build
	@tools/setup python
	@"$(TIERCE_VENV)/bin/python" tools/demo/$(if $(CODEC),codec.py --codec "$(CODEC)",$(if $(PD),pd.py,$(if $(PEERS),peers.py,run.py))) \
		$(if $(TRACE),--trace "$(TRACE)" --scale "$(SCALE)") \
		$(if $(MODEL),--model "$(MODEL)") $(if $(and $(PD),$(GBIT)),--gbit "$(GBIT)")

fleet: ## two engines share a pool of Redis, a folder, S3 and nodes under two managers, while parts are killed
	@tools/setup room
	@tools/setup packages test
	@$(MAKE) --no-print-directory build
	@tools/setup python
	@"$(TIERCE_VENV)/bin/python" tests/system/fleet_run.py $(ARGUMENTS)

docs: ## a static site of the documentation with search, links checked: build/site/index.html
	@python=$$(tools/setup docs) && "$$python" tools/docs

check: ## format, lint, layers, documents (TIDY=1: clang-tidy too)
	@tools/setup packages check
	@tools/check $(if $(TIDY),--tidy)

install: build ## installs below PREFIX (/usr/local), and below DESTDIR if it is set
	@cmake --install build/rel --prefix "$(PREFIX)"

uninstall: ## removes what make install put there (the same DESTDIR)
	@cmake/uninstall.sh build/rel/install_manifest.txt

wheel: ## builds a Python wheel for other distributions, in dist/ (ARCH=aarch64: for ARM, by a cross-compiler)
	@tools/setup packages $(if $(ARCH),test,run)
	@tools/wheel $(if $(ARCH),--arch "$(ARCH)")

dist: ## writes the source archive of the last commit and a list of the libraries that it links or loads, in dist/
	@tools/dist

deb: ## builds Debian packages for this Debian, in dist/ (DEBEMAIL, DEBFULLNAME: their maintainer)
	@tools/setup packages build
	@tools/deb

clean: ## removes the build folder
	@rm -rf build
