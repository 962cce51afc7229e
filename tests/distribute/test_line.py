"""The queue for a neighbour: an index before its shard, no file twice, and no false report
believed.
"""

from __future__ import annotations

import pytest

from imagenet_prep.dataset.manifest import DatasetFile
from imagenet_prep.distribute.send import Line
from imagenet_prep.hosts.channel import BrokenError

FILES = [DatasetFile(name, 100, "0" * 64) for name in ("labels", "index/a", "a", "index/b", "b")]


def lacking(*names: str, begun: int = 0) -> Line:
    line = Line(FILES)
    for name in names:
        line.lacks(name, begun)
    line.lacks_no_more(len(names))
    return line


def taken(line: Line) -> list[str]:
    names = []
    while (following := line.next()) is not None:
        names.append(following[0].name)
    return names


def test_no_file_is_sent_before_all_are_requested() -> None:
    line = Line(FILES)
    line.lacks("a", 0)
    line.offer(["a"])
    assert line.next() is None
    line.lacks_no_more(1)
    assert line.all_named
    assert taken(line) == ["a"]


def test_requested_files_are_sent_in_order_of_arrival() -> None:
    line = lacking("a", "b", "labels")
    line.offer(["b", "strange", "index/a"])
    line.offer(["labels", "b"])
    assert taken(line) == ["b", "labels"]
    line.offer(["b"])
    assert line.next() is None


def test_shards_are_sent_after_their_index() -> None:
    line = lacking("index/a", "a", "b")
    line.offer(["a", "b"])
    assert taken(line) == ["b"]
    line.offer(["index/a"])
    assert taken(line) == ["index/a", "a"]


def test_shards_are_sent_after_their_table() -> None:
    line = Line([*FILES, DatasetFile("samples/a.csv", 9, "0" * 64)])
    for name in ("a", "samples/a.csv", "index/a"):
        line.lacks(name, 0)
    line.lacks_no_more(3)
    line.offer(["a", "index/a"])
    assert taken(line) == ["index/a"]
    line.offer(["samples/a.csv"])
    assert taken(line) == ["samples/a.csv", "a"]


def test_an_aborted_index_delays_its_shard_again() -> None:
    line = lacking("index/a", "a")
    line.offer(["a", "index/a"])
    following = line.next()
    assert following is not None
    assert following[0].name == "index/a"
    line.put_back("index/a")
    assert line.next() is None
    line.offer(["index/a"])
    assert taken(line) == ["index/a", "a"]


def test_a_partial_file_is_continued_only_once() -> None:
    line = lacking("a", begun=40)
    line.offer(["a"])
    following = line.next()
    assert following is not None
    assert following[1] == 40
    assert line.wrong("a") is False
    following = line.next()
    assert following is not None
    assert following[1] == 0
    assert line.wrong("a") is True


def test_a_host_is_complete_if_all_is_stored() -> None:
    line = lacking("a", "labels")
    line.offer(["a", "labels"])
    taken(line)
    line.stored("a")
    with pytest.raises(BrokenError, match="lacks 1 file"):
        line.finish()
    line.stored("labels")
    line.finish()


def test_contradictory_reports_are_broken_peers() -> None:
    line = Line(FILES)
    line.lacks("a", 0)
    for lie in (
        lambda: line.lacks("a", 0),
        lambda: line.lacks("strange", 0),
        lambda: line.lacks("b", 101),
        lambda: line.lacks_no_more(2),
        lambda: line.stored("a"),
        lambda: line.wrong("a"),
        line.finish,
    ):
        with pytest.raises(BrokenError):
            lie()
    line.lacks_no_more(1)
    for lie in (lambda: line.lacks("b", 0), lambda: line.lacks_no_more(1), line.finish):
        with pytest.raises(BrokenError):
            lie()


def test_the_work_is_linear_in_the_files() -> None:
    """20,000 files arrive one by one: each is examined a few times, not 20,000 times."""
    files = [DatasetFile(f"{number:05}", 1, "0" * 64) for number in range(20_000)]
    line = Line(files)
    for file in files:
        line.lacks(file.name, 0)
    line.lacks_no_more(len(files))
    looked = 0

    class Counting(dict):
        def __contains__(self, name: object) -> bool:
            nonlocal looked
            looked += 1
            return super().__contains__(name)

    line._lacking = Counting(line._lacking)
    for file in files:
        line.offer([file.name])
        assert line.next() is not None
        assert line.next() is None
        line.stored(file.name)
    line.finish()
    assert looked <= 3 * len(files)
