"""Answers that cannot be malformed: which tokens may come next in a list of boxes.

    answer := (record (separator record)* separator?)?
    record := LOC LOC LOC LOC  (blank? SEG×16)?  (blank? name)?
    separator := blank? ";" blank?

This is the language of `vlmtasks.tokens`, made strict: y_max > y_min and x_max > x_min, mask codes
always or never, and names only of the classes that were asked. A name may be missing where one
class was asked, because there is no doubt then. A record begins only where `max_new_tokens` leaves
room for all of it.

So a greedy answer that is in this language comes out unchanged, and from any other the nearest one
that can still be reached. There is no free text: where a model would rather say "nothing here", it
ends the answer or names a box, and a low score tells which.

Everything here is about token ids; no network and no tensors.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vlmtasks.label_tree import LabelTree, LabelVocabulary, Node
from vlmtasks.tokens import LOC_BINS, MASK_CODES, SEG_CODES

Ids = NDArray[np.int64]


class ObjectGrammar:
    """The language of the answers to one prompt; `constraint` applies it to one answer.

    names: the classes that were asked. with_codes: whether each box has a mask.
    stop_ids: what ends an answer.
    class_scores: whether the probability of a name is wanted among all tokens, which costs the
        whole head of the network at that step; see `RecordConstraint.compared`.
    """

    def __init__(
        self,
        names: Sequence[str],
        vocabulary: LabelVocabulary,
        stop_ids: Iterable[int],
        *,
        with_codes: bool = False,
        class_scores: bool = False,
    ) -> None:
        self.labels = LabelTree(names, vocabulary, optional=len(names) == 1)
        self.with_codes = with_codes
        self.class_scores = class_scores
        self.stop_ids = _ids(stop_ids)
        self.locs = np.arange(vocabulary.loc_start, vocabulary.loc_start + LOC_BINS)
        self.segs = np.arange(vocabulary.seg_start, vocabulary.seg_start + SEG_CODES)
        self.blanks = _ids(vocabulary.ids_of(" ")) if with_codes else _ids(())
        self._follow: dict[Node, Ids] = {}

    def has_room(self, tokens: int) -> bool:
        """Whether a record fits into so many tokens."""
        rest = tokens - 4 - MASK_CODES * self.with_codes
        labels = self.labels
        return rest >= labels.most_tokens_to_end or rest >= labels.tokens_to_end(labels.root)

    def constraint(self, max_new_tokens: int) -> "RecordConstraint":
        """The rules for one answer of at most so many tokens."""
        return RecordConstraint(self, max_new_tokens)

    def following(self, node: Node) -> Ids:
        """The tokens that may follow in or behind a name, the end included."""
        if node not in self._follow:
            ends = self.stop_ids if node.is_whole else ()
            self._follow[node] = _ids([*self.labels.following(node), *ends])
        return self._follow[node]


@dataclass(frozen=True)
class _Place:
    """Where an answer stands. bins: of the box that is being written; codes: how many are there;
    node: in the name or behind it, None before; blank: whether one stands before the codes."""

    bins: tuple[int, ...] = ()
    codes: int = 0
    node: Node | None = None
    blank: bool = False

    @property
    def may_begin(self) -> bool:
        """Whether a record may begin here."""
        return (not self.bins) if self.node is None else self.node.separates


_OUTSIDE = _Place(bins=(-1,))  # of the language; nothing leads back


class RecordConstraint:
    """Keeps one answer to a grammar. Implements the engine's constraint protocols.

    `tokens` is the answer so far. One that does not keep to the grammar may only end.
    """

    def __init__(self, grammar: ObjectGrammar, max_new_tokens: int) -> None:
        self.grammar = grammar
        self.max_new_tokens = max_new_tokens
        self._seen: list[int] = []
        self._place = _Place()

    def allowed(self, tokens: Sequence[int], /) -> Ids:
        """The ids that may follow."""
        grammar, place = self.grammar, self.place(tokens)
        room = self.max_new_tokens - len(tokens)
        if place is _OUTSIDE:
            return grammar.stop_ids
        if place.may_begin:
            begin = grammar.locs[:-1] if grammar.has_room(room) else grammar.locs[:0]
            return np.concatenate([begin, grammar.stop_ids, self._rest_of_separator(place)])
        if place.node is not None:
            return self._in_name(place.node, room)
        if len(place.bins) < 4:
            return grammar.locs[_bins_after(place.bins)]
        if place.codes or place.blank or not grammar.has_room(room - 1 + len(place.bins)):
            return grammar.segs
        return np.concatenate([grammar.segs, grammar.blanks])

    def compared(self, tokens: Sequence[int], /) -> Ids | None:
        """The ids among which the probability of the next token is meant.

        At a location token all of them, and the end where the answer may end; at a code all codes;
        in a name all tokens of the vocabulary (None) if the grammar has `class_scores`, otherwise
        what may follow. So a box is compared with the same alternatives wherever it stands, and
        the network has to compute only these rows of its head.
        """
        grammar, place = self.grammar, self.place(tokens)
        if place.may_begin:
            return np.concatenate([grammar.locs, grammar.stop_ids, self._rest_of_separator(place)])
        if place.node is not None:
            in_name = grammar.class_scores and not place.node.is_named
            return None if in_name else grammar.following(place.node)
        if len(place.bins) < 4:
            return grammar.locs
        return np.concatenate([grammar.segs, grammar.blanks])

    def add(self, step: object) -> None:
        """Hears of a new token; everything it needs is in `tokens` already."""

    def was_cut(self, tokens: Sequence[int]) -> bool:
        """Whether a whole answer ended where only the want of room kept a record from beginning."""
        room = self.max_new_tokens - len(tokens)
        return self.place(tokens).may_begin and not self.grammar.has_room(room)

    def place(self, tokens: Sequence[int]) -> "_Place":
        """Where the answer stands after these tokens."""
        known = len(self._seen)
        if list(tokens[:known]) != self._seen:
            self._place, known = _Place(), 0
        for token_id in tokens[known:]:
            self._place = self._after(self._place, token_id)
        self._seen = list(tokens)
        return self._place

    def _rest_of_separator(self, place: _Place) -> Ids:
        return _ids(() if place.node is None else self.grammar.labels.following(place.node))

    def _in_name(self, node: Node, room: int) -> Ids:
        if room > self.grammar.labels.most_tokens_to_end:
            return self.grammar.following(node)
        labels = self.grammar.labels
        after = labels.following(node)
        fitting = [i for i, end in after.items() if labels.tokens_to_end(end) < room]
        return _ids([*fitting, *(self.grammar.stop_ids if node.is_whole else ())])

    def _after(self, place: _Place, token_id: int) -> _Place:
        grammar = self.grammar
        bin_number = token_id - int(grammar.locs[0])
        if 0 <= bin_number < LOC_BINS:
            return self._after_bin(place, bin_number)
        if place.node is not None:
            node = grammar.labels.following(place.node).get(token_id)
            return _OUTSIDE if node is None else replace(place, node=node)
        if place is _OUTSIDE or len(place.bins) < 4:
            return _OUTSIDE
        if token_id in grammar.blanks and not (place.codes or place.blank):
            return replace(place, blank=True)
        if not 0 <= token_id - int(grammar.segs[0]) < SEG_CODES:
            return _OUTSIDE
        codes = place.codes + 1
        node = grammar.labels.root if codes == MASK_CODES else None
        return replace(place, codes=codes, node=node)

    def _after_bin(self, place: _Place, bin_number: int) -> _Place:
        if place.may_begin:
            place = _Place()
        elif place.node is not None or len(place.bins) == 4 or place is _OUTSIDE:
            return _OUTSIDE
        if bin_number not in _bins_after(place.bins):
            return _OUTSIDE
        bins = (*place.bins, bin_number)
        has_name = len(bins) == 4 and not self.grammar.with_codes
        return _Place(bins, node=self.grammar.labels.root if has_name else None)


def _bins_after(bins: tuple[int, ...]) -> range:
    """The next of y_min, x_min, y_max, x_max; a maximum lies above its minimum."""
    if len(bins) < 2:
        return range(LOC_BINS - 1)
    return range(bins[len(bins) - 2] + 1, LOC_BINS)


def _ids(values: Iterable[int]) -> Ids:
    return np.array(list(values), np.int64)
