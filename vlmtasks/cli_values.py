"""What options of the command line may hold.

"" is a shell variable that nobody set: neither a folder, which would be this one, nor the default.
"""

from pathlib import Path

import typer


def not_empty(text: str) -> str:
    """The text, as a `parser` of typer; its error where there is none."""
    if not text:
        raise typer.BadParameter("it is empty; name something, or leave the option out")
    return text


def path(text: str) -> Path:
    """As `not_empty`, a path."""
    return Path(not_empty(text))
