"""What the package exports: complete, sorted, loaded on demand."""

import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

import vlmtasks

ROOT = Path(__file__).resolve().parent.parent

NAMES = """
VLM Detection Detections Generation ParsedObject
answer caption caption_box detect encode_image errors load ocr parse_objects question segment
""".split()


def test_exports_are_these_and_sorted() -> None:
    assert vlmtasks.__all__ == NAMES
    assert set(vlmtasks.__all__) <= set(dir(vlmtasks))


@pytest.mark.parametrize("name", NAMES)
def test_name_can_be_used(name: str) -> None:
    value = getattr(vlmtasks, name)
    assert isinstance(value, types.ModuleType) or callable(value)
    assert value.__doc__


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'detct'"):
        vlmtasks.detct  # noqa: B018


def test_star_import_gives_all_names() -> None:
    script = "from vlmtasks import *; print(sorted(n for n in dir() if n[0] != '_'))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == repr(sorted(NAMES))


def test_verbs_of_the_model_and_of_the_module_are_the_same() -> None:
    verbs = "caption answer question ocr detect segment caption_box encode_image".split()
    for verb in verbs:
        assert getattr(vlmtasks, verb).__func__ is getattr(vlmtasks.VLM, verb)


def test_version_is_that_of_the_project_file() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert vlmtasks.__version__ == project["version"]


def test_every_error_is_of_our_tree_and_in_its_drawing() -> None:
    errors = [
        value
        for value in vars(vlmtasks.errors).values()
        if isinstance(value, type) and issubclass(value, Exception)
    ]
    assert len(errors) > 5
    for error in errors:
        assert issubclass(error, vlmtasks.errors.VlmtasksError)
        assert error.__name__ in (vlmtasks.errors.__doc__ or "")
        assert error.__doc__
