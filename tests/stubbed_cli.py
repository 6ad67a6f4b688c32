"""`python stubbed_cli.py ANSWER ARGUMENT…`: the command line on an engine that says ANSWER.

For tests that need a process of its own. ANSWER is JSON text, so that it can be ASCII.
"""

import json
import sys

from stub_engine import StubEngine

from vlmtasks import api, cli
from vlmtasks.api import VLM

if __name__ == "__main__":
    answer = json.loads(sys.argv[1])
    api._load = lambda source, **options: VLM(StubEngine(answer))
    cli.main(sys.argv[2:])
