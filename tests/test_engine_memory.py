"""Resident memory of a loaded checkpoint: the file once, and no second copy."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from tiny_checkpoints import checkpoint_config, save_folder

from vlmtasks.engine.paligemma import PaliGemma

PROBE = """
import json, sys
from pathlib import Path
import torch
from vlmtasks.engine import Engine
from vlmtasks.engine.engine import EncodedImage

def resident():
    pairs = (line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return {k: int(v.split()[0]) * 1024 for k, v in pairs if k in ("VmRSS", "RssAnon", "VmHWM")}

def ask(engine, width):
    image = EncodedImage(torch.zeros(16, width, dtype=engine.dtype), (9, 9), engine.fingerprint)
    engine.generate([image], ["detect cat"], max_new_tokens=3)

warm, real = sys.argv[1:]
small = Engine.load(warm, device="cpu")
ask(small, small.network.config.text_config.hidden_size)  # the kernels' own memory comes first
before = resident()
engine = Engine.load(real, device="cpu")
loaded = resident()
ask(engine, 1024)
after = resident()
print(json.dumps([before, loaded, after]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/status")
def test_resident_memory_is_the_file_once(tmp_path):
    config = checkpoint_config()
    text = replace(config.text_config, hidden_size=1024, intermediate_size=8192)
    network = PaliGemma(replace(config, text_config=replace(text, num_hidden_layers=4)))
    for parameter in network.parameters():
        parameter.data.fill_(0.01)
    folder = save_folder(tmp_path / "real", network.to(torch.bfloat16))
    size = (folder / "model.safetensors").stat().st_size
    small = PaliGemma(config).to(torch.bfloat16)
    command = [sys.executable, "-c", PROBE, save_folder(tmp_path / "warm", small), folder]

    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    before, loaded, after = json.loads(out.splitlines()[-1])
    assert size > 200e6
    assert loaded["VmRSS"] - before["VmRSS"] < 0.1 * size  # mapped, hardly read
    assert after["VmRSS"] - before["VmRSS"] < 1.1 * size
    assert after["VmHWM"] - before["VmRSS"] < 1.1 * size
    assert after["RssAnon"] - before["RssAnon"] < 0.1 * size
