PYTHON ?= python3
VENV := .venv
FLAGS ?= --quick
# One more than a small machine has cores: tests of clusters, pages and cameras wait for a fifth of their time.
WORKERS ?= 3
N ?= 1000
BIN := $(VENV)/bin

# Dozens of tests start the program, which would compile all its sources each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check docs bench baseline fuzz newcomer clean

demo: $(VENV)/installed ## Cut a stereo clip and a VR180 video, animate the portrait, and say where the results are
	$(BIN)/vitascope segment examples/astronaut_sbs.mp4 -o demo/out.mp4 --preview demo/out.png -y
	$(BIN)/python examples/make_vr180.py demo/astronaut_LR_180.mp4
	$(BIN)/vitascope segment demo/astronaut_LR_180.mp4 -o demo/headset/ --player heresphere --preview demo/headset.png -y
	$(BIN)/vitascope vr verify demo/headset/astronaut_FISHEYE190_alpha.mp4 --html demo/headset.html -y
	$(BIN)/vitascope animate examples/astronaut.jpg --driver examples/talk.motion -o demo/portrait.mp4 -y
	@echo "The results are demo/out.mp4 (demo/out.png shows it at a glance), demo/headset/ (demo/headset.png; unpacked, demo/headset.html) and demo/portrait.mp4."

test: $(VENV)/installed-dev ## Run the checks and the whole test suite; in more processes: make test WORKERS=4
	@# The checks take one core. Beside them the tests are compiled, which each worker would else do by itself.
	@$(BIN)/python -m pytest --collect-only -qq >/dev/null 2>&1 & $(MAKE) --no-print-directory check; passed=$$?; wait; exit $$passed
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

check: $(VENV)/installed-dev ## Style, types, import rule
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2
	$(BIN)/lint-imports --no-logo

docs: $(VENV)/installed-dev ## Write the generated pages anew
	$(BIN)/python docs/write_reference.py
	$(BIN)/python benchmarks/readme_figures.py
	$(BIN)/python benchmarks/toolkit_tables.py
	$(BIN)/python benchmarks/levers_figures.py

bench: $(VENV)/installed ## Measure this machine into results/, in some minutes, and compare with benchmarks/baseline.json; all of the suite: FLAGS=
	$(BIN)/vitascope bench run --output-dir results $(FLAGS)
	$(BIN)/vitascope bench analyze results/benchmark_results.json
	$(BIN)/vitascope bench compare benchmarks/baseline.json results/benchmark_results.json --allow-no-baseline

baseline: $(VENV)/installed ## Keep the run in results/ as the baseline of this class of machine
	$(BIN)/vitascope bench baseline results/benchmark_results.json benchmarks/baseline.json

fuzz: $(VENV)/installed-dev ## Damage N files in all kinds of ways, and see that each is answered well: make fuzz N=100000
	cd tests && ../$(BIN)/python -m fuzz.campaign $(N)

newcomer: ## Walk a newcomer's path: a wheel as released, in an empty environment, on a folder of all kinds of files; some minutes
	$(PYTHON) tests/newcomer.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[animate,bench]'
	touch $@

$(VENV)/installed-dev: $(VENV)/bin/python pyproject.toml
	@# Python compiles what is imported; to compile all of PyTorch takes a minute.
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) demo
