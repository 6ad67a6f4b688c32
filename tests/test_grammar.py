"""Answers under a grammar: whole, of the asked classes, and unchanged where they were so."""

import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scripted_network import ScriptedNetwork
from stub_engine import LetterVocabulary
from tiny_checkpoints import tiny_folder, tiny_picture, tiny_tokenizer
from tokenizers import Tokenizer as HuggingFaceTokenizer
from word_vocabulary import WordVocabulary

from benchmarks import grammar_fuzz
from vlmtasks.api import VLM, load
from vlmtasks.demo.tokenizer import build_tokenizer
from vlmtasks.engine import Engine
from vlmtasks.engine.decoding import Answer, decode_steps
from vlmtasks.engine.decoding_options import DecodingOptions
from vlmtasks.engine.prompt_ids import pad_ids
from vlmtasks.engine.token_choice import TokenLimits
from vlmtasks.engine.tokenizer import Tokenizer
from vlmtasks.grammar import ObjectGrammar, RecordConstraint
from vlmtasks.tokens import parse_objects

LOC4, SEG16 = r"(?:<loc\d{4}>){4}", r" ?(?:<seg\d{3}>){16}"
EOS = 1


class Words(WordVocabulary):
    """Words that are one token each; nothing else can be written."""

    def decode(self, ids: Sequence[int], /) -> str:
        return super().decode([token_id for token_id in ids if token_id != 3])

    def encode(self, text: str) -> list[int]:
        ids = []
        while text:
            word = max((w for w in self.tokens if text.startswith(str(w))), key=len, default="")
            ids += self.ids(str(word)) if word else [3]
            text = text[len(word) or 1 :]
        return ids

    def ids_of(self, text: str, /) -> list[int]:
        return [self.tokens.index(text)] if text in self.tokens else []


TOKENIZERS = {
    "demo": lambda: Tokenizer(build_tokenizer()),
    "bytes": lambda: Tokenizer(tiny_tokenizer()),
    "letters": LetterVocabulary,
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def vocabulary(request: pytest.FixtureRequest) -> Any:
    return TOKENIZERS[request.param]()


@pytest.fixture
def gemma(shared_data: Path) -> Tokenizer:
    """The official tokenizer, with PaliGemma's tokens."""
    from benchmarks.parity import paligemma_tokenizer

    return Tokenizer(paligemma_tokenizer(shared_data / "gemma-tokenizer" / "tokenizer.json"))


def grammar(names: Sequence[str], vocabulary: Any, **options: Any) -> ObjectGrammar:
    return ObjectGrammar(names, vocabulary, [EOS], **options)


def follow(rules: RecordConstraint, ids: Sequence[int]) -> list[bool]:
    """For each token whether the grammar allows it there."""
    return [token_id in rules.allowed(list(ids[:n])).tolist() for n, token_id in enumerate(ids)]


def writable(text: str, vocabulary: Any) -> list[int]:
    """The ids of an answer as the tokenizer writes it: markers apart, words between them."""
    ids: list[int] = []
    for piece in re.split(r"(<(?:loc|seg)\d+>)", text):
        if piece.startswith("<loc"):
            ids.append(vocabulary.loc_start + int(piece[4:8]))
        elif piece.startswith("<seg"):
            ids.append(vocabulary.seg_start + int(piece[4:7]))
        elif piece:
            ids += vocabulary.encode(piece)
    return ids


BOX = "<loc0001><loc0002><loc0003><loc0004>"
LOW = "<loc0005><loc0002><loc0006>"
CODES = "".join(f"<seg{code:03d}>" for code in range(16))


# --- what is in the language ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param("", id="nothing"),
        pytest.param(f"{BOX} cat", id="one"),
        pytest.param(f"{BOX}cat", id="no blank"),
        pytest.param(f"{BOX} cat ; {BOX} dog", id="two"),
        pytest.param(f"{BOX} cat;{BOX} dog", id="bare separator"),
        pytest.param(f"{BOX} cat ;", id="separator at the end"),
        pytest.param(f"{BOX} cat food", id="name that goes on"),
        pytest.param(f"{BOX} Red Ball", id="as it was asked"),
        pytest.param(f"{BOX} red ball", id="lower case"),
    ],
)
def test_well_formed_answer_may_be_written(answer: str, vocabulary: Any) -> None:
    rules = grammar(["cat", "cat food", "dog", "Red Ball"], vocabulary).constraint(200)
    ids = writable(answer, vocabulary)
    assert all(follow(rules, [*ids, EOS]))


@pytest.mark.parametrize(
    ("answer", "names", "good"),
    [
        pytest.param("a cat", ["cat", "dog"], "", id="free text"),
        pytest.param(f"{BOX} cow", ["cat", "dog"], f"{BOX} c", id="other class"),
        pytest.param(f"{BOX} catx", ["cat", "dog"], f"{BOX} cat", id="longer class"),
        pytest.param(f"{BOX} ;", ["cat", "dog"], f"{BOX} ", id="no class of two"),
        pytest.param(BOX + BOX, ["cat"], BOX, id="boxes without separator"),
        pytest.param("<loc0001> cat", ["cat"], "<loc0001>", id="one bin"),
        pytest.param("<loc0005><loc0002><loc0004>", ["cat"], "<loc0005><loc0002>", id="y reversed"),
        pytest.param("<loc0005><loc0002><loc0005>", ["cat"], "<loc0005><loc0002>", id="y equal"),
        pytest.param(f"{LOW}<loc0001>", ["cat"], LOW, id="x reversed"),
        pytest.param("<loc1023>", ["cat"], "", id="no room below"),
        pytest.param("<loc0000><loc1023>", ["cat"], "<loc0000>", id="no room to the right"),
        pytest.param(f"{BOX}{CODES}", ["cat"], BOX, id="codes in detect"),
    ],
)
def test_other_answer_is_stopped_where_it_goes_wrong(
    answer: str, names: list[str], good: str, vocabulary: Any
) -> None:
    ids = writable(answer, vocabulary)
    right = follow(grammar(names, vocabulary).constraint(200), ids)
    first_wrong = right.index(False)
    assert good.startswith(vocabulary.decode(ids[:first_wrong]))
    assert not good.startswith(vocabulary.decode(ids[: first_wrong + 1]))
    assert not any(right[first_wrong + 1 :])  # and nothing leads back


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        pytest.param(f"{BOX}{CODES} cat", True, id="codes"),
        pytest.param(f"{BOX} {CODES} cat ; {BOX}{CODES} cat", True, id="blank before codes"),
        pytest.param(f"{BOX}{CODES}", True, id="no name of one class"),
        pytest.param(f"{BOX} cat", False, id="no codes"),
        pytest.param(f"{BOX}{CODES[:-8]} cat", False, id="fifteen codes"),
        pytest.param(f"{BOX}{CODES}<seg001> cat", False, id="seventeen codes"),
    ],
)
def test_segment_takes_exactly_sixteen_codes(answer: str, right: bool, vocabulary: Any) -> None:
    rules = grammar(["cat"], vocabulary, with_codes=True).constraint(200)
    assert all(follow(rules, [*writable(answer, vocabulary), EOS])) == right


def test_one_class_may_stay_unnamed_and_several_may_not(vocabulary: Any) -> None:
    ids = [*writable(BOX, vocabulary), EOS]
    assert all(follow(grammar(["cat"], vocabulary).constraint(50), ids))
    assert not all(follow(grammar(["cat", "dog"], vocabulary).constraint(50), ids))


def test_every_stop_id_may_end(vocabulary: Any) -> None:
    rules = ObjectGrammar(["cat"], vocabulary, [EOS, 2]).constraint(50)
    assert {EOS, 2} <= set(rules.allowed([]).tolist())


# --- names and tokens ----------------------------------------------------------------------------


def labels_by_any_way(names: list[str], vocabulary: Any, tries: int = 300) -> set[str]:
    """The labels of answers whose tokens are picked at random from the allowed ones."""
    rng = random.Random(0)
    rules_of = grammar(names, vocabulary)
    labels = set()
    for _ in range(tries):
        rules, ids = rules_of.constraint(60), writable(BOX, vocabulary)
        while True:
            token_id = rng.choice(rules.allowed(ids).tolist())
            if token_id == EOS or ";" in vocabulary.decode([token_id]):
                break
            ids.append(token_id)
        labels |= {record.label for record in parse_objects(ids, (9, 9), vocabulary=vocabulary)}
    return labels


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["cat", "cat food", "cats", "cat"], id="prefixes of each other"),
        pytest.param(["dog", "a dog on the left, sitting"], id="phrase"),
        pytest.param(["x-ray & co.", "7"], id="signs"),
    ],
)
def test_labels_are_the_asked_ones_by_every_way(names: list[str], vocabulary: Any) -> None:
    assert labels_by_any_way(names, vocabulary) == set(names)


def test_characters_that_are_bytes_are_written_as_the_tokenizer_does() -> None:
    tokenizer = Tokenizer(tiny_tokenizer())
    names = ["naïve 猫", "naé", "ñ"]  # é has a token, ï, ñ and 猫 have not
    assert labels_by_any_way(names, tokenizer, 1000) == set(names)


def test_tokens_that_lead_nowhere_are_not_allowed() -> None:
    words = Words(" cat", " catfish", " cats and", " dogs", " dog", ";", " ")
    rules = grammar(["cat", "cats and dogs"], words).constraint(50)
    ids = words.locs(1, 2, 3, 4)
    assert rules.allowed(ids).tolist() == words.ids(" cat", " cats and")
    rules = grammar(["cat", "cats and cows"], words).constraint(50)
    assert rules.allowed(ids).tolist() == words.ids(" cat")


def test_name_that_cannot_be_written_may_be_missing() -> None:
    words = Words(" cat", " ")
    rules = grammar(["猫", "犬"], words).constraint(50)
    allowed = rules.allowed(words.locs(1, 2, 3, 4)).tolist()
    assert sorted(allowed) == sorted([*words.ids(" ;", " "), EOS])


def test_tokenizer_that_changes_names_may_write_them_its_way() -> None:
    from tokenizers import normalizers

    changing = HuggingFaceTokenizer.from_str(tiny_tokenizer().to_str())
    changing.normalizer = normalizers.Sequence(
        [normalizers.Lowercase(), normalizers.Replace(" ", "▁")]
    )
    tokenizer = Tokenizer(changing)
    assert labels_by_any_way(["DOG"], tokenizer) == {"DOG", "dog", ""}


def test_official_tokenizer(gemma: Tokenizer) -> None:
    names = ["cat", "caterpillar", "łódź 猫 🐈", "fire hydrant"]
    rules = grammar(names, gemma, with_codes=True).constraint(400)
    text = " ; ".join(f"{BOX}{CODES} {name}" for name in names)
    assert all(follow(rules, [*writable(text, gemma), EOS]))
    assert len(rules.compared(writable(BOX, gemma)[:2])) == 1024
    assert labels_by_any_way(names, gemma, 200) <= set(names)


# --- the length of an answer ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("room", "begins"),
    [pytest.param(4, False, id="too short"), pytest.param(5, True, id="just enough")],
)
def test_record_begins_only_where_it_fits(room: int, begins: bool) -> None:
    tokenizer = Tokenizer(build_tokenizer())  # "cat" is one token
    rules = grammar(["cat", "dog"], tokenizer).constraint(room)
    assert (len(rules.allowed([])) > 1) == begins
    assert rules.was_cut([]) != begins


def test_name_is_finished_within_the_length() -> None:
    tokenizer = Tokenizer(build_tokenizer())
    rules = grammar(["cat", "cake"], tokenizer).constraint(5)
    ids = rules.allowed(writable(BOX, tokenizer)).tolist()
    assert sorted(tokenizer.decode([i]).strip() for i in ids) == ["cake", "cake", "cat", "cat"]


def test_answer_without_room_for_more_is_cut_but_not_one_that_ended() -> None:
    tokenizer = Tokenizer(build_tokenizer())
    one = writable(f"{BOX} cat", tokenizer)
    rules = grammar(["cat"], tokenizer).constraint(9)
    more = [*one, *tokenizer.encode(" ;")]
    assert rules.allowed(more).tolist()[:1] == [EOS]
    assert rules.was_cut(more)
    assert not rules.was_cut(one)


# --- decoding ------------------------------------------------------------------------------------


def decode(
    scores: Callable[[tuple[int, ...]], Sequence[float]],
    vocabulary: Any,
    rules: RecordConstraint | None,
    **options: Any,
) -> Answer:
    """The greedy answer of a network with these scores."""
    network = ScriptedNetwork(lambda _, tokens: scores(tokens))
    chosen = DecodingOptions(**{"max_new_tokens": 120, **options})
    limits = TokenLimits(frozenset({EOS}), torch.ones(vocabulary.size, dtype=torch.bool))
    answer = Answer()
    prompt = pad_ids([[2, 4]], 0, "cpu")
    for (step,) in decode_steps(network, prompt, [], chosen, limits, [rules]):
        answer.add(step)
    return answer


def says(ids: Sequence[int], size: int, noise: float = 0.0) -> Callable[..., list[float]]:
    """Scores whose best answer is `ids`, or near it with noise."""

    def scores(tokens: tuple[int, ...]) -> list[float]:
        drawn = np.random.default_rng([len(tokens), *tokens[-3:]]).normal(0, noise, size)
        wanted = ids[len(tokens)] if len(tokens) < len(ids) else EOS
        drawn[wanted] += 4.0
        return drawn.tolist()

    return scores


def random_answer(rng: random.Random, names: list[str], with_codes: bool) -> str:
    """Well-formed, in every manner that the language has."""
    records = []
    for _ in range(rng.randint(0, 3)):
        y, x = rng.randint(0, 1022), rng.randint(0, 1022)
        bins = (y, x, rng.randint(y + 1, 1023), rng.randint(x + 1, 1023))
        text = "".join(f"<loc{number:04d}>" for number in bins)
        if with_codes:
            text += rng.choice(["", " "])
            text += "".join(f"<seg{rng.randrange(128):03d}>" for _ in range(16))
        records.append(text + rng.choice(["", " "]) + rng.choice(names))
    return rng.choice([" ; ", ";", "; ", " ;"]).join(records)


@pytest.mark.parametrize("with_codes", [False, True], ids=["detect", "segment"])
@pytest.mark.parametrize("raw", [False, True], ids=["allowed rows", "whole head"])
def test_well_formed_greedy_answer_is_not_changed(with_codes: bool, raw: bool) -> None:
    vocabulary = Tokenizer(tiny_tokenizer())
    rng = random.Random(5)
    names = ["cat", "cat food", "dog", "Ä 7"]
    rules = grammar(names, vocabulary, with_codes=with_codes)
    for _ in range(25):
        ids = writable(random_answer(rng, names, with_codes), vocabulary)
        free = decode(says(ids, vocabulary.size), vocabulary, None)
        kept = decode(
            says(ids, vocabulary.size), vocabulary, rules.constraint(120), raw_logprobs=raw
        )
        assert (kept.token_ids, kept.finish_reason) == (free.token_ids, free.finish_reason)
        assert kept.token_ids == ids


def test_noisy_greedy_answer_is_changed_only_if_malformed() -> None:
    vocabulary = Tokenizer(build_tokenizer())
    rng = random.Random(7)
    names = ["cat", "dog"]
    rules = grammar(names, vocabulary)
    record = rf"{LOC4} ?(?:cat|dog)"
    same = 0
    for _ in range(30):
        ids = writable(random_answer(rng, names, False), vocabulary)
        scores = says(ids, vocabulary.size, noise=0.95)
        free = decode(scores, vocabulary, None, max_new_tokens=40)
        kept = decode(
            scores, vocabulary, rules.constraint(40), raw_logprobs=False, max_new_tokens=40
        )
        records = parse_objects(kept.token_ids, (9, 9), vocabulary=vocabulary)
        assert [r for r in records if r.problem or r.label not in names] == []
        found = parse_objects(free.token_ids, (9, 9), vocabulary=vocabulary)
        text = vocabulary.decode(free.token_ids)
        is_language = re.fullmatch(rf"(?:{record}(?: ?; ?{record})*(?: ?; ?)?)?", text)
        if is_language and free.finish_reason == "stop" and not any(r.problem for r in found):
            same += 1
            assert kept.token_ids == free.token_ids
    assert 5 < same < 30  # the noise leaves some answers well-formed and breaks others


def test_probabilities_are_among_tokens_of_the_same_kind() -> None:
    vocabulary = Tokenizer(build_tokenizer())
    ids = writable(f"{BOX} cat", vocabulary)
    rules = grammar(["cat", "dog"], vocabulary)
    kept = decode(says(ids, vocabulary.size), vocabulary, rules.constraint(9), raw_logprobs=False)

    def logprob(others: int) -> float:
        return 4 - float(np.log(np.exp(4) + others))

    names = len(rules.following(rules.labels.root)) - 1
    expected = [logprob(1024), *[logprob(1023)] * 3, logprob(names)]
    assert kept.logprobs == pytest.approx(expected, abs=1e-5)  # the first: also against the end


def test_class_is_compared_with_the_whole_vocabulary_where_its_score_is_wanted() -> None:
    vocabulary = Tokenizer(build_tokenizer())
    ids = writable(f"{BOX} cat ; {BOX} dog", vocabulary)
    rules = grammar(["cat", "dog"], vocabulary, class_scores=True).constraint(40)
    network = ScriptedNetwork(lambda _, tokens: says(ids, vocabulary.size)(tokens))
    limits = TokenLimits(frozenset({EOS}), torch.ones(vocabulary.size, dtype=torch.bool))
    options = DecodingOptions(40, raw_logprobs=False)
    list(decode_steps(network, pad_ids([[2]], 0, "cpu"), [], options, limits, [rules]))
    computed = [None if rows is None else len(rows) for rows in network.head_rows]
    assert [place for place, rows in enumerate(computed) if rows is None] == [
        place for place, i in enumerate(ids) if vocabulary.decode([i]) in (" cat", " dog")
    ]
    assert computed[:4] == [1025, 1024, 1024, 1024]


def test_scores_do_not_depend_on_the_other_rows_of_a_batch() -> None:
    vocabulary = Tokenizer(build_tokenizer())
    answers = [writable(f"{BOX} cat", vocabulary), writable(f"{BOX} cat ; {BOX} cat", vocabulary)]
    rules = grammar(["cat"], vocabulary)
    network = ScriptedNetwork(lambda row, tokens: says(answers[row], vocabulary.size)(tokens))
    limits = TokenLimits(frozenset({EOS}), torch.ones(vocabulary.size, dtype=torch.bool))
    options = DecodingOptions(40, raw_logprobs=False)
    found = [Answer(), Answer()]
    both = [rules.constraint(40), rules.constraint(40)]
    prompts = pad_ids([[2], [2]], 0, "cpu")
    for steps in decode_steps(network, prompts, [], options, limits, both):
        for step in steps:
            found[step.row].add(step)
    for answer, ids in zip(found, answers, strict=True):
        scores = says(ids, vocabulary.size)
        alone = decode(scores, vocabulary, rules.constraint(40), raw_logprobs=False)
        assert answer.logprobs == pytest.approx(alone.logprobs)


def test_looping_answer_is_not_cut_within_a_record() -> None:
    vocabulary = Tokenizer(build_tokenizer())
    names = ["cat"]
    ids = writable(f"{BOX} cat ; " * 60, vocabulary)
    kept = decode(
        says(ids, vocabulary.size),
        vocabulary,
        grammar(names, vocabulary).constraint(500),
        raw_logprobs=False,
        max_new_tokens=500,
    )
    records = parse_objects(kept.token_ids, (9, 9), vocabulary=vocabulary)
    assert kept.finish_reason == "length"
    assert len(kept.token_ids) < len(ids)
    assert not any(record.problem for record in records)


# --- networks with random weights ----------------------------------------------------------------


def test_answers_of_untrained_networks_have_no_problems() -> None:
    rng = random.Random(3)
    seen: Any = grammar_fuzz.Counter()
    vlm = grammar_fuzz.random_vlm(rng)
    for _ in range(6):
        grammar_fuzz.check_batch(vlm, rng, seen)
    assert seen["malformed"] == 0
    assert seen["answers"] == 300
    assert seen["objects"] > 100


@pytest.mark.parametrize("model_type", ["gemma", "gemma2"])
def test_untrained_network_keeps_its_well_formed_answers(tmp_path: Path, model_type: str) -> None:
    engine = Engine.load(tiny_folder(tmp_path / "tiny", model_type), device="cpu")
    vlm = VLM(engine)
    pictures = [tiny_picture(seed) for seed in range(4)]
    options: dict[str, Any] = {"max_new_tokens": 30}
    free = vlm.detect(pictures, "cat", constrain=False, **options)
    kept = vlm.detect(pictures, "cat", **options)
    for one, other in zip(free, kept, strict=True):
        assert not other.dropped
        well_formed = len(one) and not one.dropped and set(one.labels) == {"cat"}
        assert not well_formed or one.text == other.text


def test_demo_checkpoint_keeps_its_well_formed_answers(drawings: None) -> None:
    from vlmtasks.demo.scenes import scene_at

    vlm = load("demo", device="cpu")
    scenes = [scene_at(17, index, "val") for index in range(8)]
    seen = vlm.encode_image([scene.picture for scene in scenes])
    for names in (["cat"], ["car", "tree", "ball"]):
        for verb in (vlm.detect, vlm.segment):
            free = verb(seen, names, constrain=False)
            kept = verb(seen, names)
            for one, other in zip(free, kept, strict=True):
                well_formed = not one.dropped and set(one.labels) <= set(names)
                if well_formed and one.finish_reason == "stop" and (len(one) or not one.text):
                    assert other.text == one.text
                assert not other.dropped
