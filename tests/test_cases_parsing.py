"""The reported problems of output parsing (P…), one line each: input, size, what must come out."""

import pytest

from vlmtasks.tokens import parse_objects

CAT = "<loc0256><loc0128><loc0768><loc0512>"
DOG = "<loc0100><loc0200><loc0300><loc0400>"
CAT_BOX = (80.0, 120.0, 320.0, 360.0)  # of 640×480
DOG_BOX = (125.0, 46.875, 250.0, 140.625)
CODES = (8, 104, 3, 92, 77, 10, 54, 120, 0, 127, 63, 41, 5, 99, 31, 70)
SEG = "".join(f"<seg{code:03d}>" for code in CODES)
VGA = (640, 480)

# id, answer, (width, height), good objects as (label, box, codes), problems of the dropped records
CASES = [
    ("P01", f"{CAT} cat", (1280, 720), [("cat", (160.0, 180.0, 640.0, 540.0), None)], []),
    (
        "P02-A",
        f"{CAT} cat ; {DOG} dog",
        VGA,
        [("cat", CAT_BOX, None), ("dog", DOG_BOX, None)],
        [],
    ),
    (
        "P02-B",
        f"{CAT} person ; {DOG} person",
        VGA,
        [("person", CAT_BOX, None), ("person", DOG_BOX, None)],
        [],
    ),
    ("P05", CAT, VGA, [("", CAT_BOX, None)], []),
    (
        "P07-A",
        f"{CAT} cat ; <loc0100><loc0200><loc03",
        VGA,
        [("cat", CAT_BOX, None)],
        ["truncated"],
    ),
    ("P07-B", f"{CAT} cat ; <loc0100><loc0200>", VGA, [("cat", CAT_BOX, None)], ["truncated"]),
    ("P09-A", f"There are two of them: {CAT} cat", VGA, [("cat", CAT_BOX, None)], []),
    ("P09-B", f"Sure.\nHere is the result:\n{CAT} cat", VGA, [("cat", CAT_BOX, None)], []),
    ("P09-C", f"\n{CAT} cat", VGA, [("cat", CAT_BOX, None)], []),
    ("P09-echo", f"detect cat\n{CAT} cat", VGA, [("cat", CAT_BOX, None)], []),
    ("P11-eos", f"{CAT} cat<eos>\n", VGA, [("cat", CAT_BOX, None)], []),
    ("P11-crlf", f"{CAT} cat\r\n", VGA, [("cat", CAT_BOX, None)], []),
    ("P11-semicolon", f"{CAT} cat;", VGA, [("cat", CAT_BOX, None)], []),
    ("P11-separator", f"{CAT} cat ; ", VGA, [("cat", CAT_BOX, None)], []),
    ("P11-pad", f"<pad><pad>\n{CAT} cat", VGA, [("cat", CAT_BOX, None)], []),
    ("P13-A", "<loc0256><loc0128><loc0768> cat", VGA, [], ["bad box count"]),
    ("P13-B", f"{CAT}<loc0512> cat", VGA, [], ["bad box count"]),
    (
        "P13-C",
        f"{CAT}<loc0512> cat ; {DOG} dog",
        VGA,
        [("dog", DOG_BOX, None)],
        ["bad box count"],
    ),
    (
        "P16",
        f"<loc0768><loc0128><loc0256><loc0512> cat ; {DOG} dog",
        VGA,
        [("dog", DOG_BOX, None)],
        ["reversed box"],
    ),
    ("P18-3", " ; ".join([f"{CAT} cat"] * 3), VGA, [("cat", CAT_BOX, None)] * 3, []),
    ("P18-50", " ; ".join([f"{CAT} cat"] * 50), VGA, [("cat", CAT_BOX, None)] * 50, []),
    ("P19", f"{CAT}{SEG} cat", VGA, [("cat", CAT_BOX, CODES)], []),
    (
        "P19-two",
        f"{CAT}{SEG} cat ; {DOG}{SEG} dog",
        VGA,
        [("cat", CAT_BOX, CODES), ("dog", DOG_BOX, CODES)],
        [],
    ),
    ("P19-blank", f"{CAT} {SEG} cat", VGA, [("cat", CAT_BOX, CODES)], []),
    (
        "P24",
        f"{CAT}{SEG} cat ; {DOG} dog",
        VGA,
        [("cat", CAT_BOX, CODES), ("dog", DOG_BOX, None)],
        [],
    ),
    ("P26-empty", "", VGA, [], []),
    ("P26-blank", " \n", VGA, [], []),
    ("P26-no", "no", VGA, [], []),
    ("P26-cat", "cat", VGA, [], []),
    ("P26-words", "the quick brown fox", VGA, [], []),
    ("P29", f"{CAT} stop  sign", VGA, [("stop  sign", CAT_BOX, None)], []),
    # the same kinds, not on the list
    ("two-labels-one-line-each", f"{CAT} cat\n{DOG} dog", VGA,
     [("cat", CAT_BOX, None), ("dog", DOG_BOX, None)], []),
    ("no-separator", f"{CAT} cat {DOG} dog", VGA,
     [("cat", CAT_BOX, None), ("dog", DOG_BOX, None)], []),
    ("no-blank-before-label", f"{CAT}cat", VGA, [("cat", CAT_BOX, None)], []),
    ("blanks-before-label", f"{CAT} \t  cat", VGA, [("cat", CAT_BOX, None)], []),
    ("line-end-before-label", f"{CAT}\ncat", VGA, [("cat", CAT_BOX, None)], []),
    ("blanks-between-tokens", f"{CAT} cat".replace("><", "> <"), VGA,
     [("cat", CAT_BOX, None)], []),
    ("blanks-between-codes", f"{CAT} {SEG} cat".replace("><", ">  <"), VGA,
     [("cat", CAT_BOX, CODES)], []),
    ("line-end-before-codes", f"{CAT}\r\n{SEG}\ncat", VGA, [("cat", CAT_BOX, CODES)], []),
    ("eight-in-a-row", f"{CAT}{DOG} dog", VGA,
     [("", CAT_BOX, None), ("dog", DOG_BOX, None)], []),
    ("unlabelled-then-labelled", f"{CAT} ; {DOG} dog", VGA,
     [("", CAT_BOX, None), ("dog", DOG_BOX, None)], []),
    ("unlabelled-mask", f"{CAT}{SEG}", VGA, [("", CAT_BOX, CODES)], []),
    ("unlabelled-eos", f"{CAT}<eos><pad><pad>", VGA, [("", CAT_BOX, None)], []),
    ("nine-in-a-row", f"{CAT}{DOG}<loc0000> dog", VGA, [], ["bad box count"]),
    ("six-then-good", f"{CAT}<loc0001><loc0002>\n{DOG} dog", VGA,
     [("dog", DOG_BOX, None)], ["bad box count"]),
    ("three-at-end-with-eos", "<loc0256><loc0128><loc0768><eos>", VGA, [], ["bad box count"]),
    ("one-at-end", f"{CAT} cat ; <loc0100>", VGA, [("cat", CAT_BOX, None)], ["truncated"]),
    ("cut-<", f"{CAT} cat ; <", VGA, [("cat", CAT_BOX, None)], ["truncated"]),
    ("cut-<l", f"{CAT} cat ; <l", VGA, [("cat", CAT_BOX, None)], ["truncated"]),
    ("cut-<loc", f"{CAT} cat ; <loc", VGA, [("cat", CAT_BOX, None)], ["truncated"]),
    ("cut-<loc0123", f"{CAT} cat ; <loc0123", VGA, [("cat", CAT_BOX, None)], ["truncated"]),
    ("cut-behind-label", f"{CAT} cat<loc01", VGA, [("cat", CAT_BOX, None)], ["truncated"]),
    ("cut-fourth", f"{CAT} cat ; <loc0100><loc0200><loc0300><loc04", VGA,
     [("cat", CAT_BOX, None)], ["truncated"]),
    ("cut-codes", f"{CAT} cat ; {DOG}{SEG[:72]}", VGA, [("cat", CAT_BOX, None)], ["truncated"]),
    ("cut-code", f"{CAT} cat ; {DOG}{SEG[:75]}", VGA, [("cat", CAT_BOX, None)], ["truncated"]),
    ("separator-at-end", f"{CAT} cat ;", VGA, [("cat", CAT_BOX, None)], []),
    ("fifteen-codes", f"{CAT}{SEG[:-8]} cat ; {DOG}{SEG} dog", VGA,
     [("dog", DOG_BOX, CODES)], ["bad code count"]),
    ("seventeen-codes", f"{CAT}{SEG}<seg001> cat ; {DOG}{SEG} dog", VGA,
     [("dog", DOG_BOX, CODES)], ["bad code count"]),
    ("one-code", f"{CAT}<seg001> cat", VGA, [], ["bad code count"]),
    ("codes-alone", f"{SEG} cat", VGA, [], ["codes without a box"]),
    ("codes-first", f"{SEG}{CAT} cat", VGA, [("cat", CAT_BOX, None)], ["codes without a box"]),
    ("codes-behind-label", f"{CAT} cat {SEG}", VGA,
     [("cat", CAT_BOX, None)], ["codes without a box"]),
    ("code-128", f"{CAT}{SEG[:-8]}<seg128> cat", VGA, [], ["bad code token"]),
    ("code-two-digits", f"{CAT}{SEG[:-8]}<seg12> cat", VGA, [], ["bad code token"]),
    ("loc-1024", f"<loc1024>{CAT[9:]} cat ; {DOG} dog", VGA,
     [("dog", DOG_BOX, None)], ["bad location token"]),
    ("loc-1024-last", f"{CAT[:-9]}<loc1024> cat", VGA, [], ["bad location token"]),
    ("loc-9999-fifth", f"{CAT}<loc9999> cat", VGA, [], ["bad location token"]),
    ("loc-two-digits", f"<loc12>{CAT[9:]} cat", VGA, [], ["bad location token"]),
    ("loc-five-digits", f"<loc00256>{CAT[9:]} cat", VGA, [], ["bad location token"]),
    ("loc-no-digits", f"<loc>{CAT[9:]} cat", VGA, [], ["bad location token"]),
    ("loc-arabic-digits", "<loc٠٢٥٦><loc٠١٢٨><loc٠٧٦٨><loc٠٥١٢> cat", VGA,
     [], ["bad location token"]),
    ("loc-upper-case", "<LOC0256><LOC0128><LOC0768><LOC0512> cat", VGA, [], []),
    ("loc-words", "loc0256 loc0128 loc0768 loc0512 cat", VGA, [], []),
    ("degenerate-y", "<loc0256><loc0128><loc0256><loc0512> cat", VGA, [], ["degenerate box"]),
    ("degenerate-x", "<loc0256><loc0128><loc0768><loc0128> cat", VGA, [], ["degenerate box"]),
    ("degenerate-point", f"<loc0000><loc0000><loc0000><loc0000> cat ; {DOG} dog", VGA,
     [("dog", DOG_BOX, None)], ["degenerate box"]),
    ("reversed-x", "<loc0256><loc0512><loc0768><loc0128> cat", VGA, [], ["reversed box"]),
    ("reversed-and-flat", "<loc0256><loc0512><loc0256><loc0128> cat", VGA, [], ["reversed box"]),
    ("reversed-with-mask", f"<loc0768><loc0128><loc0256><loc0512>{SEG} cat", VGA,
     [], ["reversed box"]),
    ("label-dots", f"{CAT} St. John's / R&D, (left) ; {DOG} dog", VGA,
     [("St. John's / R&D, (left)", CAT_BOX, None), ("dog", DOG_BOX, None)], []),
    ("label-hyphen-digits", f"{CAT} t-shirt 2-in-1 #3", VGA,
     [("t-shirt 2-in-1 #3", CAT_BOX, None)], []),
    ("label-unicode", f"{CAT} 猫 ; {DOG} Hündin 🐕", VGA,
     [("猫", CAT_BOX, None), ("Hündin 🐕", DOG_BOX, None)], []),
    ("label-angle-brackets", f"{CAT} a<b>c < d > e", VGA,
     [("a<b>c < d > e", CAT_BOX, None)], []),
    ("label-colon-quote", f'{CAT} sign: "stop"', VGA, [('sign: "stop"', CAT_BOX, None)], []),
    ("label-semicolon-wide", f"{CAT} 猫；犬", VGA, [("猫；犬", CAT_BOX, None)], []),
    ("label-inner-blanks", f"{CAT}  traffic   light  ", VGA,
     [("traffic   light", CAT_BOX, None)], []),
    ("label-nbsp", f"{CAT}\u00a0cat\u00a0", VGA, [("cat", CAT_BOX, None)], []),
    ("label-end-of-turn", f"{CAT} cat<end_of_turn>", VGA, [("cat", CAT_BOX, None)], []),
    ("label-bos", f"{CAT} cat<bos>", VGA, [("cat", CAT_BOX, None)], []),
    ("bos-first", f"<bos>{CAT} cat<eos><eos>", VGA, [("cat", CAT_BOX, None)], []),
    ("image-first", f"<image><image><bos>detect cat\n{CAT} cat", VGA,
     [("cat", CAT_BOX, None)], []),
    ("carriage-return", f"{CAT} cat\r{DOG} dog", VGA,
     [("cat", CAT_BOX, None), ("dog", DOG_BOX, None)], []),
    ("words-behind", f"{CAT} cat\nThat is all.", VGA, [("cat", CAT_BOX, None)], []),
    ("semicolons", f";;; ; {CAT} cat ;; ; {DOG} dog ;;", VGA,
     [("cat", CAT_BOX, None), ("dog", DOG_BOX, None)], []),
    ("whole-picture", "<loc0000><loc0000><loc1023><loc1023> x", (20000, 100),
     [("x", (0.0, 0.0, 19980.46875, 99.90234375), None)], []),
    ("html-escaped", CAT.replace("<", "&lt;").replace(">", "&gt;") + " cat", VGA, [], []),
    ("commas-between", f"{CAT} cat".replace("><", ">, <"), VGA, [], ["bad box count"] * 4),
    ("label-first", f"cat {CAT}", VGA, [("", CAT_BOX, None)], []),
    ("box-behind-record", f"{CAT} cat {DOG}", VGA,
     [("cat", CAT_BOX, None), ("", DOG_BOX, None)], []),
    ("code-fence", f"```\n{CAT} cat\n```", VGA, [("cat", CAT_BOX, None)], []),
    ("tabs", f"{CAT}\tcat\t;\t{DOG}\tdog", VGA,
     [("cat", CAT_BOX, None), ("dog", DOG_BOX, None)], []),
    ("digit-label", f"{CAT} 2", VGA, [("2", CAT_BOX, None)], []),
    ("bad-between-good", f"{CAT} cat ; {CAT}<seg001><seg002> b ; {DOG} dog", VGA,
     [("cat", CAT_BOX, None), ("dog", DOG_BOX, None)], ["bad code count"]),
    ("vertical-tab-in-label", f"{CAT} a\x0bb", VGA, [("a\x0bb", CAT_BOX, None)], []),
    ("invisible-letters-stay", f"{CAT} \u200bcat\ufeff", VGA,
     [("\u200bcat\ufeff", CAT_BOX, None)], []),
    ("single-pixel", f"{CAT} x", (1, 1), [("x", (0.125, 0.25, 0.5, 0.75), None)], []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "size", "good", "problems"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_case(text, size, good, problems):
    found = parse_objects(text, size)
    kept = [(o.label, o.box_xyxy, o.mask_codes) for o in found if o.problem is None]
    assert kept == good
    assert [o.problem for o in found if o.problem is not None] == problems


@pytest.mark.parametrize("text", [case[1] for case in CASES], ids=[c[0] for c in CASES])
def test_case_spans_are_the_records_in_order(text):
    stop = 0
    for found in parse_objects(text, VGA):
        assert stop <= found.span[0] < found.span[1] <= len(text)
        stop = found.span[1]
        record = text[found.span[0] : stop]
        assert record.startswith("<")
        assert record == record.rstrip() or found.problem == "truncated"
        assert record.endswith(found.label)


def test_p16_reversed_box_gives_no_box_of_negative_width():
    [cat, _] = parse_objects(f"<loc0768><loc0128><loc0256><loc0512> cat ; {DOG} dog", VGA)
    assert cat.box_xyxy is None
    assert cat.loc_yxyx == (768, 128, 256, 512)
    assert cat.label == "cat"
