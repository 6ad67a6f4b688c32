"""Notices an answer that goes round in circles."""

from array import array

MAX_PERIOD = 64  # tokens; a segment record with a long label has about 30
MAX_REPEATS = 20
MIN_TOKENS = 100  # shorter runs are legitimate text: "-----…", "0000…" in OCR


class LoopGuard:
    """True once the last tokens repeat one period of at most 64 tokens more than 20 times.

    One period may be a record (`<loc>`·4, label, separator), a word or a whole list of records. The
    repeating stretch must also span 100 tokens. Decoding stops there with finish reason "length":
    nothing after it would be new.
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        # _matches[p]: how many of the last tokens in a row equal the one p places before
        self._matches = array("l", [0] * (MAX_PERIOD + 1))

    def add(self, token: int) -> bool:
        """Takes the next token; whether the answer is now going round in circles."""
        tokens, matches = self._tokens, self._matches
        looping = False
        for period in range(1, min(MAX_PERIOD, len(tokens)) + 1):
            if tokens[-period] != token:
                matches[period] = 0
                continue
            matches[period] += 1
            stretch = matches[period] + period
            looping = looping or (matches[period] >= MAX_REPEATS * period and stretch >= MIN_TOKENS)
        tokens.append(token)
        return looping
