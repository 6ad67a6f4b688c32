"""How fast a checkpoint answers: `python -m benchmarks.speed [--model DIR] [--batch 1 8]`.

Each figure is the median of several runs after a warm-up, on generated pictures. Machine and
versions are printed with it, because a figure without them says nothing.
"""

import argparse
import platform
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch

from vlmtasks.api import VLM, default_source, load


def main() -> None:
    """Measure loading, the vision tower and generation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=default_source())
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=64, help="longest answer")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()

    start = time.perf_counter()
    vlm = load(options.model, device=options.device, dtype=options.dtype)
    seconds = time.perf_counter() - start
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads")
    print(f"Python {platform.python_version()}, torch {torch.__version__}")
    print(f"{options.model} on {vlm.engine.device} in {vlm.engine.dtype}: load {seconds:.2f} s")
    for batch in options.batch:
        print(measure(vlm, batch, options.tokens, options.runs))


def measure(vlm: VLM, batch: int, tokens: int, runs: int) -> str:
    """One line: the vision tower, the prefill, and the steps after it."""
    side = vlm.engine.config.vision_config.image_size
    noise = np.random.default_rng(0).integers(0, 256, (batch, side, side, 3), dtype=np.uint8)
    pictures = list(noise)
    encoded = vlm.encode_image(pictures, batch_size=batch)

    def answer(limit: int) -> int:
        """The number of tokens that were generated."""
        answers = vlm.generate(encoded, "caption en", max_new_tokens=limit, batch_size=batch)
        return sum(len(one.token_ids) for one in answers)

    vision = timed(lambda: vlm.encode_image(pictures, batch_size=batch), runs)
    prefill = timed(lambda: answer(1), runs)
    whole = timed(lambda: answer(tokens), runs)
    steps = answer(tokens) - answer(1)
    line = f"batch {batch}: vision {vision * 1e3:.1f} ms, prefill {prefill * 1e3:.1f} ms"
    if steps > 0:
        line += f", {steps / (whole - prefill):.0f} tokens/s over {steps} tokens"
    return line


def timed(work: Callable[[], object], runs: int) -> float:
    """Median seconds of a run."""
    seconds = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return median(seconds[1:])


if __name__ == "__main__":
    main()
