"""`python -m vlmtasks` is the command `vlmtasks`."""

from vlmtasks.cli import main

main()
