"""`python stubbed_cli.py ANSWER ARGUMENT…`: the command line on an engine that says ANSWER.

For tests that need a process of its own. ANSWER is JSON text, so that it can be ASCII. Each answer
takes STUB_PAUSE seconds.
"""

import json
import os
import sys
import time

from stub_engine import StubEngine

from vlmtasks import api, cli
from vlmtasks.api import VLM

if __name__ == "__main__":
    answer = json.loads(sys.argv[1])

    def say(prompt: str, image: object) -> str:
        time.sleep(float(os.environ.get("STUB_PAUSE", "0")))
        return answer

    api._load = lambda source, **options: VLM(StubEngine(say))
    cli.main(sys.argv[2:])
