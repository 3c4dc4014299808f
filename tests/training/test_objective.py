"""What a batch of masked language modelling holds."""

import dataclasses

import numpy as np
import pytest
import torch

from pipeline.config import MaskingConfig
from pipeline.tokens.kmers import KmerCodec
from pipeline.tokens.store import SoftMask
from pipeline.training.objective import MaskedObjective
from pipeline.training.plan import Window

CODEC = KmerCodec("dna", 3, True)
IGNORED = -100


def test_a_batch_is_framed_padded_and_asks_only_for_hidden_tokens(split):
    objective = MaskedObjective(split, CODEC, MaskingConfig(), 0)
    windows = [Window(0, 0, 0, 10, False), Window(0, 1, 2, 30, False)]
    batch = objective.batch(windows)
    rows, width = batch.input_ids.shape
    assert (rows, width) == (2, 30 - 2 + 2)
    assert batch.attention_mask.sum(1).tolist() == [10 - 2 + 2, 30]
    assert torch.equal(batch.attention_mask, (batch.input_ids != CODEC.special("pad")).long())
    assert set(batch.input_ids[:, 0].tolist()) == {CODEC.special("cls")}
    truth = torch.full((rows, width), IGNORED)
    for row, window in enumerate(windows):
        ids = CODEC.tokens(CODEC.codes_of_track(split.slice(window.record, window.start, window.length))).ids
        truth[row, 1 : len(ids) + 1] = torch.from_numpy(ids.astype(np.int64))
        assert batch.input_ids[row, len(ids) + 1] == CODEC.special("eos")
    assert torch.equal(truth.flatten()[batch.positions], batch.labels)
    unasked = torch.ones(rows * width, dtype=torch.bool)
    unasked[batch.positions] = False
    unasked &= truth.flatten() != IGNORED
    assert torch.equal(batch.input_ids.flatten()[unasked], truth.flatten()[unasked])


def test_a_window_looks_the_same_in_any_batch(split):
    objective = MaskedObjective(split, CODEC, MaskingConfig(), 0)
    one, other = Window(0, 2, 0, 20, True), Window(0, 3, 0, 25, False)
    alone, together = objective.batch([one]), objective.batch([other, one])
    assert torch.equal(together.input_ids[1, : alone.input_ids.shape[1]], alone.input_ids[0])


def test_a_reverse_window_is_read_from_the_other_strand(tokenized):
    letters = "ACGTTNACCA"
    split = tokenized([letters])
    objective = MaskedObjective(split, CODEC, MaskingConfig(replace=0, keep=1), 0)
    shown = objective.batch([Window(0, 0, 0, 10, True)]).input_ids[0, 1:-1].numpy()
    expected = CODEC.tokens(CODEC.codes("TGGTNAACGT")).ids
    assert shown.tolist() == expected.tolist()


def test_a_target_counts_less_by_the_share_of_its_letters_that_are_soft_masked(tokenized):
    letters = "ACGTTGACCATTGACGATCA"
    soft = np.zeros(20, bool)
    soft[3:9] = soft[15:20] = True
    bounds = SoftMask(np.array([3, 9, 15, 20]), np.array([0, 4]))
    split = dataclasses.replace(tokenized([letters]), soft_mask=bounds)
    masking = MaskingConfig(fraction=0.4, soft_mask_weight=0.25)
    for reverse in (False, True):
        for start, length in ((0, 20), (4, 13)):
            seen = soft[start : start + length][:: -1 if reverse else 1]
            batch = MaskedObjective(split, CODEC, masking, 0).batch([Window(0, 0, start, length, reverse)])
            soft_share = np.array([seen[i : i + 3].mean() for i in batch.positions - 1])
            assert batch.weights.tolist() == pytest.approx(0.25 * soft_share + 1 - soft_share)
            assert 0 < soft_share.mean() < 1


def test_the_shares_that_are_logged_are_those_of_the_letters(split):
    objective = MaskedObjective(split, CODEC, MaskingConfig(), 0)
    for epoch in range(400):
        objective.batch([Window(epoch, i, 0, int(n), False) for i, n in enumerate(split.lengths)])
    shares = objective.shares()
    assert shares["hidden"] == pytest.approx(0.15, abs=0.01)
    assert shares["masked"] == pytest.approx(0.8, abs=0.02)
    assert shares["replaced"] == pytest.approx(0.1, abs=0.02)
    assert shares["kept"] == pytest.approx(0.1, abs=0.02)


def test_masks_differ_between_epochs_records_strands_and_occurrences(tokenized):
    split = tokenized(["ACGTTGACCATTGACGATCA" * 4] * 2)
    objective = MaskedObjective(split, CODEC, MaskingConfig(), 0)
    first = Window(0, 0, 0, 80, False)
    others = [
        Window(1, 0, 0, 80, False),
        Window(0, 1, 0, 80, False),
        dataclasses.replace(first, occurrence=1),
    ]
    places = [tuple(objective.batch([window]).positions.tolist()) for window in (first, first, *others)]
    assert places[0] == places[1]
    assert len(set(places)) == 4
