"""Fuzzing: damaged and hostile input for every way into the package.

    python -m tests.fuzz                        every target, ten minutes each (make fuzz)
    python -m tests.fuzz picture --seconds 60   one target
    python -m tests.fuzz picture --seed 5 --case 1234    one input again, with its traceback

A target makes an input from a random number generator and feeds it to the package. The generator
is seeded with the name of the target, the seed and the number of the case, so that these three are
the input. Most inputs are valid ones with a few changes: bytes, nodes of a JSON tree, chunks of a
PNG, records of an answer.

A case fails when anything but an error of our own comes out, when a warning of another kind than
DatasetWarning leaks, and when it takes longer than some seconds or more memory than there is.
"""
