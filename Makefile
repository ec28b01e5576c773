PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check docs clean

demo: $(VENV)/installed ## Segment the stereo example and say where the result is
	$(BIN)/vitascope segment examples/astronaut_sbs.mp4 -o demo/out.mp4 --preview demo/out.png
	@echo "The result is demo/out.mp4; demo/out.png shows it at a glance."

test: $(VENV)/installed-dev check ## Run the checks and the whole test suite
	$(BIN)/python -m pytest

check: $(VENV)/installed-dev ## Style, types, import rule
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: $(VENV)/installed-dev ## Write the generated pages anew
	$(BIN)/python -m vitascope.config.reference
	$(BIN)/python -m vitascope.cli.reference
	$(BIN)/python benchmarks/readme_figures.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/installed-dev: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) demo
