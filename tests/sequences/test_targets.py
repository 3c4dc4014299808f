"""What a scan reads, against a look at every window."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from pipeline.config import LettersConfig
from pipeline.errors import UserError
from pipeline.sequences import targets
from pipeline.sequences.genomes import open_genome
from pipeline.sequences.records import Notes
from pipeline.sequences.targets import Shuffled, find_targets

LENGTHS = {"one": 60, "two": 40, "short": 7}


@pytest.fixture
def genome(tmp_path):
    path, rng = tmp_path / "g.fa", np.random.default_rng(0)
    path.write_text(
        "".join(f">{name}\n{''.join(rng.choice(list('ACGTN'), n))}\n" for name, n in LENGTHS.items())
    )
    with open_genome(path, LettersConfig(), Notes()) as genome:
        yield genome


REGIONS = [("two", 30, 52), ("one", 3, 20), ("one", 12, 30), ("one", 30, 34), ("one", 50, 55)]


@pytest.mark.parametrize("stride", [1, 3])
def test_windows_lie_in_regions_that_may_run_over_the_origin(genome, tmp_path, stride):
    path, notes = tmp_path / "r.bed", Notes()
    path.write_text("".join(f"{name}\t{start}\t{end}\n" for name, start, end in REGIONS))
    found = find_targets(genome, 8, ["two"], path, notes)
    covered = {
        name: {b % LENGTHS[name] for n, s, e in REGIONS if n == name for b in range(s, e)} for name in LENGTHS
    }
    assert [target.name for target in found] == ["one", "two"]
    assert notes["records_too_short"] == 1
    for target in found:
        n, last = target.length, target.length if target.name == "two" else target.length - 7
        inside = [
            s for s in range(0, last, stride) if {b % n for b in range(s, s + 8)} <= covered[target.name]
        ]
        assert sorted(target.starts(8, stride, 0, n).tolist()) == inside
        halves = [target.starts(8, stride, *half).tolist() for half in ((0, 17), (17, n))]
        assert sorted(halves[0] + halves[1]) == inside


def test_without_regions_all_is_read(genome):
    one, two = find_targets(genome, 8, ["two"], None, Notes())
    assert one.starts(8, 4, 0, 60).tolist() == list(range(0, 53, 4))
    assert two.starts(8, 4, 0, 40).tolist() == list(range(0, 40, 4))
    with pytest.raises(UserError, match=r"g.fa: no record is as long as a window, 61 bases; nothing to read"):
        find_targets(genome, 61, [], None, Notes())


def test_a_shuffled_sample_keeps_pairs_and_unknown_bases(genome, monkeypatch):
    monkeypatch.setattr(targets, "BLOCK", 20)
    monkeypatch.setattr(targets, "SAMPLE", 70)
    sample = Shuffled(genome, find_targets(genome, 8, [], None, Notes()), 8, seed=3)
    assert sum(sample.lengths.values()) == 80
    assert sample.lengths == {target.name: target.length for target in sample.targets()}
    changed = 0
    for name, length in sample.lengths.items():
        record, span = name.split(":")
        given, made = genome.fetch(record, *map(int, span.split("-"))), sample.fetch(name, 0, length)
        assert Counter(pairwise(made)) == Counter(pairwise(given))
        assert [b == ord("N") for b in made] == [b == ord("N") for b in given]
        changed += made != given
    assert changed
    again = Shuffled(genome, find_targets(genome, 8, [], None, Notes()), 8, seed=3)
    assert [again.fetch(name, 0, 20) for name in again.lengths] == [
        sample.fetch(n, 0, 20) for n in sample.lengths
    ]
