"""The problems that users of comparable tools reported: each is a test that shows its id."""

import re
from pathlib import Path

import pytest

REPORTED = {
    "parsing": "P01 P02 P05 P07 P09 P11 P13 P16 P18 P19 P24 P26 P29",
    "pictures": "I01 I03 I05 I07 I09 I11 I13",
    "prompts": "T01 T03 T05 T08 T10 T11",
    "masks": "M01 M03 M05 M08 M10",
    "COCO": "C01 C02 C05 C07 C09 C11 C13 C15 C18 C20",
    "weights": "W01 W03 W05 W07 W09 W10 W13 W16",
    "generation": "G01 G03 G05 G07 G10",
    "training data": "F01 F03 F05 F07 F09 F11 F14 F16",
    "command line": "S01 S03 S05 S07",
}
IDS = [number for numbers in REPORTED.values() for number in numbers.split()]


def test_there_are_66() -> None:
    assert len(set(IDS)) == len(IDS) == 66


@pytest.mark.parametrize("number", IDS)
def test_it_is_a_test(number: str) -> None:
    named = re.compile(rf"""def test_{number}_|["']{number}[-"']""", re.IGNORECASE)
    files = Path(__file__).parent.glob("test_*.py")
    assert any(named.search(path.read_text("utf-8")) for path in files if path != Path(__file__))
