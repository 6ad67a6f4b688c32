"""The README tells the truth: its Python runs, its command lines parse, its files exist."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from vlmtasks import api, cli

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")

BLOCK = re.compile(
    r"(?P<mark><!-- not run: .+ -->\n)?```(?P<kind>\w+)\n(?P<code>.*?)```", re.DOTALL
)
PYTHON = [m["code"] for m in BLOCK.finditer(README) if m["kind"] == "python" and not m["mark"]]
COMMANDS = [
    line.removeprefix("$ ").partition("  #")[0]
    for match in BLOCK.finditer(README)
    if match["kind"] == "console"
    for line in match["code"].splitlines()
]
VLMTASKS = [command for command in COMMANDS if command.startswith("vlmtasks ")]


def test_python_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (api.BUNDLED["demo"] / "config.json").is_file():
        pytest.skip("the bundled checkpoint is not in vlmtasks/demo/checkpoint yet")
    (tmp_path / "vlmtasks").symlink_to(ROOT / "vlmtasks")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VLMTASKS_MODEL", raising=False)
    names: dict[str, object] = {}
    for place, code in enumerate(PYTHON):
        exec(compile(code, f"README block {place}", "exec"), names)
    assert (tmp_path / "overlay.png").is_file()


def test_blocks_were_found() -> None:
    assert len(PYTHON) >= 4
    assert len(VLMTASKS) >= 6


@pytest.mark.parametrize("line", VLMTASKS)
def test_command_line_parses(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = typer.main.get_command(cli.app)
    arguments = shlex.split(line)[1:]
    context = command.make_context("vlmtasks", list(arguments))
    while hasattr(command, "resolve_command"):
        _, command, arguments = command.resolve_command(context, arguments)  # type: ignore[attr-defined]
        context = command.make_context(command.name, list(arguments), parent=context)
    assert context.params


@pytest.mark.parametrize(
    "target", [c.split()[1] for c in COMMANDS if c.startswith("make ")], ids=lambda name: name
)
def test_make_target_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("link", re.findall(r"\]\((?!https?:)([^)]+)\)", README))
def test_linked_file_exists(link: str) -> None:
    if link == "docs/images/demo.jpg" and not (api.BUNDLED["demo"] / "config.json").is_file():
        pytest.skip("make demo draws it, when the bundled checkpoint is there")
    assert (ROOT / link).exists()
