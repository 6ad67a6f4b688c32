# make demo: our own engine looks at a picture.   make test: is everything right?
PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
PICTURE := vlmtasks/demo/pictures/scene.jpg
WORDS := cat ; dog

.PHONY: setup demo test check fmt bench fuzz loc lock

setup: $(VENV)/.dev

demo: $(VENV)/.run
	$(PY) -m vlmtasks segment $(PICTURE) "$(WORDS)" --format coco --save demo.png
	@echo "demo.png shows what was found" >&2

test: $(VENV)/.dev
	$(PY) -m pytest

check: $(VENV)/.dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m pyright --pythonpath $(PY)

fmt: $(VENV)/.dev
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: $(VENV)/.run
	$(PY) -m benchmarks.speed

fuzz: $(VENV)/.dev
	$(PY) -m tests.fuzz

# lines of every source file, the longest last
loc:
	@git ls-files '*.py' | xargs wc -l | sort -n

# write down what is installed now as the known-good versions
lock: $(VENV)/.dev
	@{ head -n 2 constraints.txt; $(PY) -m pip freeze --exclude-editable \
		| grep -v '^#' | sed 's/^\(torch==[^+]*\)+.*/\1/'; } > constraints.new
	@mv constraints.new constraints.txt

# The stamps say what was installed already: .run to use the package, .dev to work on it.
$(VENV)/.run: pyproject.toml constraints.txt
	@echo "installing into $(VENV); the first time this takes some minutes" >&2
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt
	@echo "installing into $(VENV); the first time this takes some minutes" >&2
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet -c constraints.txt -e ".[dev]"
	@touch $(VENV)/.run $@
