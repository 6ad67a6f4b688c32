"""The tokens that write one of some class names, and the separator behind it.

A tree of characters holds every text that may stand between the box (or its mask codes) and the
next box; a token may be taken where its text is a way down the tree. So every way of cutting a name
into tokens is found, whatever the tokenizer, and names that begin alike are no special case. The
exception are characters that only several tokens together write (bytes of UTF-8): these tokens
follow each other as the tokenizer itself has them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from vlmtasks.tokens import TokenVocabulary

UNREACHABLE = 1 << 30  # tokens

_UNREADABLE = "\ufffd"  # what decoders write for half a character
_LONGEST_TOKEN = 48  # characters; no token that spans more of a name is looked for


class LabelVocabulary(TokenVocabulary, Protocol):
    """What the tree has to know of a tokenizer."""

    def encode(self, text: str, /) -> list[int]:
        """The ids of a text, without <bos> and <eos>."""
        ...

    def ids_of(self, text: str, /) -> Sequence[int]:
        """Every single token that is written as just this text."""
        ...


@dataclass(eq=False)
class Node:
    """A place in the texts of a tree.

    is_whole: whether the answer may end here. is_named: whether a name has been written by then.
    separates: whether the next box may follow.
    """

    depth: float
    is_whole: bool = False
    is_named: bool = False
    separates: bool = False
    children: dict[str, "Node"] = field(default_factory=dict)  # by the next character
    chains: dict[int, "Node"] = field(default_factory=dict)  # by tokens that write no text alone
    next: "dict[int, Node] | None" = None  # by every token, once somebody asked
    tokens_to_end: int | None = None


class LabelTree:
    """All texts `blank? name blank? ";" blank?`, also broken off at the end of a word.

    names: what may be written, as it is and in lower case.
    optional: whether the name may be missing.

    A name that the vocabulary cannot write is left out; where it can write none at all, the name
    may be missing.
    """

    def __init__(
        self, names: Iterable[str], vocabulary: LabelVocabulary, *, optional: bool
    ) -> None:
        self._vocabulary = vocabulary
        self._box = [vocabulary.loc_start]
        self._box_text = vocabulary.decode(self._box)
        self.root = Node(0)
        texts = {" ;"}
        for form in dict.fromkeys(form for name in names for form in (name, name.lower())):
            texts |= self._add(form)
        # With a token for each character a name can be finished from everywhere in it.
        letters = set().union(*texts)
        self._has_dead_ends = not all(vocabulary.ids_of(letter) for letter in letters)
        self.most_tokens_to_end = max(map(len, texts))
        if self._has_dead_ends:
            self._measure()
            self.most_tokens_to_end *= 4  # bytes
        if optional or self.root.tokens_to_end == UNREACHABLE:
            self._end_name(self.root, is_named=False)
            for node in _all(self.root):
                node.next = node.tokens_to_end = None

    def following(self, node: Node) -> dict[int, Node]:
        """The tokens that may come next in a name or separator, each with where it leads to."""
        if node.next is None:
            ways = dict(node.chains)
            for text, end in _texts_below(node):
                ways.update(dict.fromkeys(self._vocabulary.ids_of(text), end))
            if self._has_dead_ends:
                ways = {i: end for i, end in ways.items() if self.tokens_to_end(end) < UNREACHABLE}
            node.next = ways
        return node.next

    def tokens_to_end(self, node: Node) -> int:
        """The fewest tokens from here to the end of a name; never over `most_tokens_to_end`.

        1 rather than 0 where the name is missing, because only what follows shows that it is.
        """
        if node.tokens_to_end is None:
            self._measure()
        return UNREACHABLE if node.tokens_to_end is None else node.tokens_to_end

    def _add(self, name: str) -> set[str]:
        """Put a name into the tree; every text that stands for it."""
        texts = {name, f" {name}"}
        for text in (name, f" {name}"):
            ids = self._vocabulary.encode(text)
            if all(self._decode([token_id]) for token_id in ids):  # no <unk>
                spelled = self._decode(ids)  # some tokenizers change what they read
                texts.add(spelled)
                self._add_chains(ids, spelled)
        texts = {text for text in texts if text.strip()}
        for text in texts:
            self._end_name(_path(self.root, text), is_named=True)
        return texts

    def _end_name(self, node: Node, *, is_named: bool) -> None:
        """The answer may end at `node`, and the separator may follow."""
        blank = _path(node, " ")
        for place in (node, blank):
            place.is_whole = True
            place.is_named |= is_named
            semicolon = _path(place, ";")
            for end in (semicolon, _path(semicolon, " ")):
                end.is_whole = end.is_named = end.separates = True

    def _add_chains(self, ids: Sequence[int], text: str) -> None:
        """Where the tokenizer writes a text with groups of tokens that are no text alone."""
        start, done = self.root, ""
        group: list[int] = []
        for token_id in ids:
            group.append(token_id)
            piece = self._decode(group)
            if piece and _UNREADABLE not in piece and text.startswith(done + piece):
                end = _path(start, piece)
                if len(group) > 1:
                    _chain(start, group, end)
                start, done, group = end, done + piece, []

    def _decode(self, ids: Sequence[int]) -> str:
        """The text of ids behind a box, since some decoders drop a blank at the very start."""
        return self._vocabulary.decode([*self._box, *ids])[len(self._box_text) :]

    def _measure(self) -> None:
        """Fill in `tokens_to_end` everywhere, from the leaves to the root."""
        for node in sorted(_all(self.root), key=lambda node: -node.depth):
            ends = self.following(node).values()
            if node.is_whole:
                node.tokens_to_end = 0 if node.is_named else 1
            else:
                nearest = min((self.tokens_to_end(end) for end in ends), default=UNREACHABLE)
                node.tokens_to_end = min(1 + nearest, UNREACHABLE)


def _path(node: Node, text: str) -> Node:
    for character in text:
        node = node.children.setdefault(character, Node(node.depth + 1))
    return node


def _chain(start: Node, group: Sequence[int], end: Node) -> None:
    """Lead from `start` to `end` by tokens of which none is a text of its own."""
    place = start
    for number, token_id in enumerate(group[:-1], start=1):
        place = place.chains.setdefault(token_id, Node(start.depth + number / (len(group) + 1)))
    place.chains[group[-1]] = end


def _all(root: Node) -> list[Node]:
    found = {id(root): root}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        for below in (*node.children.values(), *node.chains.values()):
            if id(below) not in found:
                found[id(below)] = below
                waiting.append(below)
    return list(found.values())


def _texts_below(node: Node) -> Iterator[tuple[str, Node]]:
    """Every way down with its text, up to the length of the longest token."""
    waiting = [("", node)]
    while waiting:
        text, place = waiting.pop()
        for character, child in place.children.items():
            yield text + character, child
            if len(text) + 1 < _LONGEST_TOKEN:
                waiting.append((text + character, child))
