# make demo   export the demo model, answer a question        make test   everything that CI runs
# make lint   ruff                                            make clean  what the two made, but not models/
# make test-arm   native tests and the Python package as three ARM CPUs, under qemu
# make screenshots   the web page's pictures in README, anew, with Chromium
# make wheels   wheels for Linux (x86-64, aarch64) and macOS (arm64) in dist/, built and checked here

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
DEMO := models/demo.nb
QUESTION ?= What is the capital of France?

PACKAGING := pyproject.toml setup.py edge_kit/__init__.py
EXPORTER := $(shell find export targets edge_kit/nb -name '*.py')

SCREENSHOTS := edge_kit/server/web/screenshots

.PHONY: demo native test test-arm screenshots lint wheels clean

demo: native $(DEMO)
	$(VENV)/bin/edge-kit run $(DEMO) "$(QUESTION)"

# Without a C++ compiler the ziglang wheel is one.
$(VENV)/with-export: $(PACKAGING)
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 9) <= v <= (3, 13) else \
	  "edge-kit needs Python 3.9 to 3.13 (Paddle 3.1.1 has no others), $(PYTHON) is %d.%d: make PYTHON=python3.12 ..." % v)'
	$(PYTHON) -m venv $(VENV)
	@command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null \
	  || test -n "$$CXX" || $(PY) -m pip install -q ziglang
	$(PY) -m pip install -q -e '.[export,chat,serve]'
	@touch $@

native: $(VENV)/with-export
	@$(PY) -m lite_runtime.build

$(DEMO): $(VENV)/with-export $(EXPORTER)
	@mkdir -p $(@D)
	$(VENV)/bin/edge-kit export --model demo --out $@

$(VENV)/with-tests: $(VENV)/with-export
	$(PY) -m pip install -q -e '.[export,chat,serve,dev,wheels]'
	@# The independent engine and Ray are large: without them their tests are skipped by name, except in CI.
	$(PY) -m pip install -q -e '.[reference,ray]' || test -z "$$CI"
	@touch $@

test: $(VENV)/with-tests native lint
	$(PY) -m lite_runtime.build run-tests
	$(PY) -m lite_runtime.build run-tests --sanitize address,undefined
	$(PY) -m lite_runtime.build run-tests thread_pool_test engine_test api_test session_file_test generate_test \
	  --sanitize thread
	EDGE_KIT_STOCK_PYTHON="$$($(PY) tests/stock_environment.py)" $(PY) -m pytest -q
	$(PY) tests/other_pythons.py

# Needs g++-aarch64-linux-gnu and qemu-user: without them it says so.
test-arm: $(VENV)/with-export
	$(PY) -m lite_runtime.build run-tests --qemu
	$(PY) tests/on_arm.py

screenshots: $(VENV)/with-tests native
	CI=true $(PY) -m pytest -q tests/test_web_page.py -k test_screenshots
	mkdir -p $(SCREENSHOTS)
	cd build/screenshots && cp empty.png thinking.png answered.png phone.png $(CURDIR)/$(SCREENSHOTS)

wheels: native
	$(PY) -m pip install -q -e '.[wheels]'
	$(PY) -m edge_kit.packaging.wheels

lint: $(VENV)/with-tests
	$(VENV)/bin/ruff check .

clean:
	rm -rf $(VENV) .venv-stock build dist *.egg-info lite_runtime/libedge_kit.*
