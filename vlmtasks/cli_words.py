"""Words for people, beside the results on stdout."""

import re
import sys

# Characters by which a file's name could move the cursor of a terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def say(line: str) -> None:
    """One line for people. Where they cannot be reached, results matter more."""
    printable = line.encode("utf-8", "backslashreplace").decode()  # names in another encoding
    printable = _CONTROL.sub(lambda found: repr(found[0])[1:-1], printable)
    try:
        print(printable, file=sys.stderr, flush=True)
    except OSError:
        pass
