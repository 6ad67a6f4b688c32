"""The layers of the package: who may import whom, and what stays unloaded.

errors, choices, generation, picture_names, plain_numbers, shorten, lfs ← boxes, categories, rle,
rgb ← tokens, images, masks ← prompts, results, draw ← tasks, datasets; engine beside them; api
above; evaluation, then command lines on top. `vqvae` and `vlmtasks.demo` stand apart.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

_BASE = "choices indexing errors generation picture_names plain_numbers shorten lfs"
_SHAPES = f"{_BASE} boxes categories rle"
_GRAMMAR = f"{_SHAPES} tokens records id_text prompts"
_RESULTS = f"{_GRAMMAR} masks images results exports draw"

# part of the package → the parts that it may import; a folder is one part
MAY_IMPORT = {
    "errors": "",
    "indexing": "errors shorten",
    "choices": "errors shorten",
    "generation": "",
    "picture_names": "",
    "lfs": "",
    "plain_numbers": "",
    "shorten": "",
    "boxes": "errors shorten",
    "categories": "errors shorten",
    "rle": "errors plain_numbers shorten",
    "rgb": "errors",
    "images": "errors lfs rgb",
    "records": "errors boxes",
    "id_text": "errors boxes records",
    "tokens": "errors boxes records id_text shorten",
    "prompts": "errors categories choices shorten tokens",
    "label_tree": "tokens",
    "grammar": "tokens label_tree",
    "masks": _SHAPES,
    "exports": f"{_SHAPES} masks",
    "results": f"{_GRAMMAR} masks exports draw",
    "draw": f"{_SHAPES} images masks results",
    "tasks": _RESULTS,
    "tiling": _RESULTS,
    "datasets": _RESULTS,
    "engine": "errors lfs images generation plain_numbers",
    "sidecar": "errors tokens engine vqvae",
    "batches": "choices errors shorten boxes generation images engine",
    "continuation": "generation grammar tasks tokens",
    "object_options": "choices errors batches plain_numbers shorten tasks",
    "finding": f"{_RESULTS} tasks engine batches continuation grammar object_options tiling",
    "streams": f"{_RESULTS} engine batches finding object_options",
    "api": f"{_RESULTS} tasks engine sidecar batches finding object_options streams vqvae",
    "evaluation": f"{_RESULTS} tasks datasets api vqvae",
    "demo": f"{_RESULTS} tasks datasets engine api evaluation vqvae",
    "__init__": "errors",
    "cli_values": "",
    "cli_words": "",
    "cli_inputs": "errors picture_names",
    "cli_outputs": f"{_RESULTS} cli_inputs",
    "cli_run": f"{_RESULTS} tasks api cli_inputs cli_outputs cli_words",
    "eval_cli": f"{_RESULTS} tasks api datasets evaluation cli_values cli_words",
    "cli": f"{_BASE} __init__ cli_values cli_inputs cli_run eval_cli",
    "__main__": "cli",
}

# what no part but these may import at all
ONLY_IN = {
    "transformers": set(),
    "torch": {"engine", "demo", "exports", "vqvae"},
    "pycocotools": {"rle", "evaluation"},
    "typer": {"cli", "cli_values", "eval_cli"},
    "tokenizers": {"engine", "demo"},
    "huggingface_hub": {"engine"},
    "safetensors": {"engine", "demo", "vqvae"},
}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def part_of(path: Path) -> str:
    relative = path.relative_to(ROOT).with_suffix("")
    return "vqvae" if relative.parts[0] == "vqvae" else relative.parts[1]


def imported(path: Path) -> Iterator[str]:
    """Dotted names of everything that a file imports when it runs, in functions too."""
    for node in _running(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes except those under `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from _running(node)


FILES = [pytest.param(path, id=str(path.relative_to(ROOT))) for path in sources("vlmtasks")]


@pytest.mark.parametrize("path", FILES)
def test_part_imports_only_lower_parts(path: Path) -> None:
    part = part_of(path)
    assert part in MAY_IMPORT, f"say in {Path(__file__).name} what {part} may import"
    allowed = {part, *MAY_IMPORT[part].split()}
    for name in imported(path):
        package, _, rest = name.partition(".")
        if package not in ("vlmtasks", "vqvae"):
            continue
        target = "vqvae" if package == "vqvae" else rest.partition(".")[0]
        if target == "__version__":
            target = "__init__"
        assert target in allowed, f"{part} may not import {name}"


@pytest.mark.parametrize("path", [*FILES, *(pytest.param(p, id=p.name) for p in sources("vqvae"))])
def test_outside_library_enters_through_its_part(path: Path) -> None:
    for name in imported(path):
        library = name.partition(".")[0]
        assert part_of(path) in ONLY_IN.get(library, {part_of(path)}), (
            f"{library} has no place here"
        )


@pytest.mark.parametrize("path", [pytest.param(p, id=p.name) for p in sources("vqvae")])
def test_vqvae_never_imports_vlmtasks(path: Path) -> None:
    assert not [name for name in imported(path) if name.partition(".")[0] == "vlmtasks"]


def test_table_names_only_parts_that_exist() -> None:
    parts = {part_of(path) for path in sources("vlmtasks")}
    assert parts == set(MAY_IMPORT)


HEAVY = {"torch", "transformers", "cv2", "pycocotools", "numpy", "PIL", "tokenizers"}


@pytest.mark.parametrize(
    ("statement", "unloaded"),
    [
        pytest.param("import vlmtasks", HEAVY, id="vlmtasks"),
        pytest.param("import vlmtasks.cli", {*HEAVY, "rich", "tqdm"}, id="cli"),
        pytest.param("import vlmtasks.cli_run", {"torch", "transformers", "vqvae.model"}, id="run"),
        pytest.param("from vlmtasks import parse_objects", {"torch", "cv2", "PIL"}, id="parse"),
        pytest.param("from vlmtasks import Detections", {"torch", "transformers"}, id="results"),
        pytest.param("import vlmtasks.tasks", {"torch", "transformers", "cv2"}, id="tasks"),
        pytest.param("from vlmtasks import detect", {"torch", "transformers"}, id="api"),
        pytest.param("import vqvae", {"torch", "vlmtasks"}, id="vqvae"),
        pytest.param("import vqvae.codec", {"vlmtasks", "transformers", "cv2"}, id="codec"),
        pytest.param(
            "import vlmtasks.engine.engine",
            {"transformers", "pycocotools", "vlmtasks.results", "vlmtasks.tasks", "vlmtasks.api"},
            id="engine",
        ),
    ],
)
def test_import_leaves_unloaded(statement: str, unloaded: set[str]) -> None:
    script = f"{statement}; import sys; print('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert not unloaded & set(done.stdout.split())
