"""The split and the seed prompt."""

from typing import Any

import pytest

from tests import support  # noqa: F401 - makes board-v1 importable
from verifiers.v1.gepa.config import GEPAConfig
from verifiers.v1.gepa.dataset import Split, SplitError, content_hash, seed_prompt, split_tasks
from verifiers.v1.utils.loaders import load_taskset


def config(size: int = 8, **settings: Any) -> GEPAConfig:
    taskset = {"id": "board-v1", "size": size, **settings.pop("taskset", {})}
    return GEPAConfig(taskset=taskset, local=True, **settings)


def split(size: int = 8, **settings: Any) -> Split:
    made = config(size, **settings)
    return split_tasks(load_taskset(made.taskset), made)


def indices(made: Split) -> list[list[int | None]]:
    return [[task.data.idx for task in part] for part in (made.train, made.val, made.test)]


def test_parts_are_taken_in_order() -> None:
    made = split(20, num_train=3, num_val=2, num_test=4)
    assert indices(made) == [[0, 1, 2], [3, 4], [5, 6, 7, 8]]
    assert made.notes == []


def test_the_seed_does_not_move_the_split() -> None:
    sizes = {"num_train": 3, "num_val": 2, "num_test": 4}
    assert indices(split(20, seed=1, **sizes)) == indices(split(20, seed=2, **sizes))


def test_selection_comes_first() -> None:
    made = split(20, num_train=2, num_val=1, num_test=0, select={"skip": 5})
    assert indices(made) == [[5, 6], [7], []]


def test_explicit_numbers_that_do_not_fit_are_an_error_with_the_numbers() -> None:
    with pytest.raises(SplitError, match=r"has 3 tasks, which can't fill 8 train: lower"):
        split(3, num_train=8)
    with pytest.raises(SplitError, match=r"has 9 tasks, which can't fill 4 train \+ 4 val \+ 2"):
        split(9, num_train=4, num_val=4, num_test=2)


def test_a_small_taskset_is_split_50_25_25_where_nothing_was_asked() -> None:
    made = split(20)
    assert [len(part) for part in (made.train, made.val, made.test)] == [10, 5, 5]
    assert made.notes == [
        "the selection holds 20 distinct tasks: split into 10 train, 5 val, 5 test"
    ]
    assert indices(split(2)) == [[0], [1], []]
    with pytest.raises(SplitError, match="has 1 tasks, which can't fill at least 1 train"):
        split(1)


def test_what_was_not_asked_for_gives_way_to_what_was() -> None:
    made = split(10, num_train=4, num_val=4)
    assert indices(made) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert "4 train, 4 val, 2 test" in made.notes[0]
    assert indices(split(8, num_train=4, num_val=4))[2] == []


def test_copies_go_to_one_part_only_and_are_reported() -> None:
    made = split(6, taskset={"copies": 4}, num_train=4, num_val=2, num_test=0, select={"skip": 0})
    assert indices(made) == [[0, 1, 2, 3], [4, 5], []]
    with pytest.raises(SplitError, match=r"has 6 tasks \(after leaving out 4 copies\)"):
        split(6, taskset={"copies": 4}, num_train=6, num_val=2, num_test=2)
    small = split(6, taskset={"copies": 4})
    assert small.duplicates == {6: 0, 7: 1, 8: 2, 9: 3}
    assert small.record()["duplicates"][0] == {"idx": 6, "same_as": 0}
    assert "4 tasks repeat another one's content" in small.notes[0]
    hashes = [content_hash(task) for task in small.tasks]
    assert len(set(hashes)) == len(hashes) == 6


def test_an_endless_taskset_is_read_no_further_than_needed() -> None:
    made = split(500, taskset={"endless": True}, num_train=3, num_val=2, num_test=1)
    assert indices(made) == [[0, 1, 2], [3, 4], [5]]


def test_an_endless_taskset_that_repeats_itself_ends_in_an_error() -> None:
    with pytest.raises(SplitError, match="has 4 tasks"):
        split(4, taskset={"endless": True}, num_train=3, num_val=2, num_test=1)


def test_the_record_names_every_task() -> None:
    record = split(4, num_train=2, num_val=1, num_test=1).record()
    assert [task["idx"] for task in record["train"]] == [0, 1]
    assert {len(task["hash"]) for part in ("train", "val", "test") for task in record[part]} == {64}


def test_the_seed_prompt() -> None:
    assert seed_prompt(split().tasks, config()) == "Answer."
    assert seed_prompt(split().tasks, config(initial_prompt=" mine\r\n")) == " mine\r\n"


@pytest.mark.parametrize(
    ("system", "message"),
    [("none", "carry no system prompt"), ("different", "8 different system prompts")],
)
def test_no_single_seed_prompt_says_how_to_go_on(system: str, message: str) -> None:
    made = config(taskset={"system": system})
    tasks = split_tasks(load_taskset(made.taskset), made).tasks
    with pytest.raises(SplitError, match=f"{message}.*--initial-prompt"):
        seed_prompt(tasks, made)
    assert seed_prompt(tasks, config(initial_prompt="x")) == "x"


def test_a_minibatch_that_is_larger_than_train_is_said() -> None:
    made = split(9, num_train=2, num_val=4, num_test=2, reflection_minibatch_size=5)
    assert made.notes == [
        "--reflection-minibatch-size 5 is more than the 2 train tasks: a minibatch is all of them"
    ]
    assert split(9, num_train=5, num_val=2, num_test=2, reflection_minibatch_size=5).notes == []
