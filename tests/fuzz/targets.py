"""All targets by their names."""

from tests.fuzz import answers, calls, checkpoints, data_sets, pictures
from tests.fuzz.cases import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for module in (answers, pictures, data_sets, checkpoints, calls)
    for target in module.TARGETS
}
