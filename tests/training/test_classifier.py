import json
import shutil

import numpy as np
import pytest
import torch

from pipeline.errors import UserError
from pipeline.model import StrandForSequenceClassification
from pipeline.tokens.kmers import KmerCodec
from pipeline.tokens.vocabulary import load_tokenizer
from pipeline.training.classifier import (
    by_length,
    calibrate,
    called,
    check_checkpoint,
    check_lengths,
    class_logits,
    class_names,
    encode,
    enough_memory,
    load_classifier,
    pad,
    softmax,
)

NAMES = ["dna-1mer", "dna-3mer-overlap", "dna-6mer-overlap", "dna-6mer", "protein"]
SEQUENCES = ["ACGTACGTACGTAC", "A", "ACGTNNACGTACGGT", "NNN", "TTTTTT"]


@pytest.mark.parametrize("name", NAMES)
def test_a_padded_batch_is_the_tokenizers(tokenizer_folder, name):
    tokenizer, codec = load_tokenizer(tokenizer_folder(name)), KmerCodec.of(tokenizer_folder(name))
    sequences = SEQUENCES if name != "protein" else ["MKV", "MKTAYIAKQRQX", "C"]
    expected = tokenizer(sequences, padding=True, return_tensors="pt")
    batch = pad([encode(sequence, codec) for sequence in sequences], codec)
    assert set(batch) == {"input_ids", "attention_mask"}
    for key, value in batch.items():
        assert value.dtype == torch.int64
        assert torch.equal(value, expected[key]), key


@pytest.mark.parametrize("size", [1, 2, 7, 50])
def test_batches_hold_each_sequence_once_and_similar_lengths_together(size):
    rng = np.random.default_rng(0)
    pieces = [np.zeros(n) for n in rng.integers(1, 30, 23)]
    batches = by_length(pieces, size)
    assert sorted(i for batch in batches for i in batch) == list(range(23))
    assert {len(batch) for batch in batches[:-1]} <= {size}
    lengths = [len(pieces[i]) for batch in batches for i in batch]
    assert lengths == sorted(lengths)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_logits_come_in_order_whatever_the_batch(tiny_model, size):
    codec = KmerCodec("dna", 3, True)
    model = tiny_model(StrandForSequenceClassification, vocab_size=74, num_labels=3)
    logits = class_logits(model, codec, SEQUENCES, size)
    assert logits.shape == (5, 3)
    for sequence, row in zip(SEQUENCES, logits, strict=True):
        ids = torch.from_numpy(encode(sequence, codec).astype(np.int64))[None]
        with torch.no_grad():
            assert row == pytest.approx(model(ids).logits[0].numpy(), abs=1e-5)
    assert np.ptp(logits[:, 0]) > 0.1


def test_too_little_memory_is_told_and_other_errors_are_not():
    message = r"^batch_size: 7: out of memory; pass a smaller --batch-size$"
    with pytest.raises(UserError, match=message), enough_memory(7):
        torch.empty(1 << 60, dtype=torch.uint8)
    with pytest.raises(UserError, match=message), enough_memory(7):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
    with pytest.raises(RuntimeError, match="must match the size"), enough_memory(7):
        torch.zeros(2).add(torch.zeros(3))


def test_softmax_is_that_of_torch():
    logits = np.random.default_rng(0).normal(size=(6, 3)) * [1, 30, 300]
    expected = torch.from_numpy(logits).softmax(1).numpy()
    assert softmax(logits) == pytest.approx(expected, abs=1e-12)


def test_calibration_divides_the_logits(tiny_model):
    codec = KmerCodec("dna", 3, True)
    model = tiny_model(StrandForSequenceClassification, vocab_size=74, num_labels=3)
    before = class_logits(model, codec, SEQUENCES, 5)
    calibrate(model, 2.5)
    assert class_logits(model, codec, SEQUENCES, 5) == pytest.approx(before / 2.5, abs=1e-6)


def test_classes_are_called_by_the_decision_in_the_config(tiny_model):
    model = tiny_model(StrandForSequenceClassification, num_labels=2)
    probabilities = np.array([[0.7, 0.3], [0.6, 0.4], [0.2, 0.8], [np.nan, np.nan]])
    assert called(model, probabilities).tolist()[:3] == [0, 0, 1]
    model.config.label2id = {"a": 0, "b": 1}
    for decision, expected in (
        ({"positive": "b", "threshold": 0.3}, [0, 1, 1]),
        ({"positive": "a", "threshold": 0.6}, [0, 1, 1]),
        ({"positive": "a", "threshold": 0.1}, [0, 0, 0]),
        ({"positive": "a", "temperature": 2.0}, [0, 0, 1]),
    ):
        model.config.decision = decision
        assert called(model, probabilities).tolist()[:3] == expected, decision


@pytest.mark.parametrize(
    ("scheme", "fits", "too_long", "tokens", "limit"),
    [
        (("dna", 1, False), "A" * 10, "A" * 11, 11, 10),
        (("dna", 3, True), "A" * 12, "A" * 13, 11, 12),
        (("dna", 6, False), "A" * 60, "A" * 61, 11, 60),
        (("dna", 6, False), "A" * 54 + "N", "N" * 11, 11, 10),
        (("dna", 6, False), "A" * 33 + "NN", "A" * 35 + "NNA", 13, 35),
    ],
)
def test_what_does_not_fit_is_refused_with_the_limit(scheme, fits, too_long, tokens, limit):
    """The context has 12 tokens, two of them special."""
    codec = KmerCodec(*scheme)
    check_lengths([("a", fits)], codec, 12)
    with pytest.raises(UserError) as error:
        check_lengths([("a", fits), ("b c", too_long)], codec, 12)
    assert str(error.value) == (
        f"record 'b c': {len(too_long)} letters are {tokens} tokens, more than the model's 10 (the first "
        f"{limit} letters fit); cut it into windows"
    )


def test_a_classifier_is_loaded_with_its_names(classifier_folder):
    model, codec = load_classifier(classifier_folder)
    assert isinstance(model, StrandForSequenceClassification)
    assert not model.training
    assert codec == KmerCodec("dna", 3, True)
    assert class_names(model) == ["background", "promoter"]


def test_other_folders_are_refused(rule_folder, tmp_path):
    with pytest.raises(UserError, match=r"lm holds no trained classifier; run strandlm finetune on it$"):
        load_classifier(rule_folder / "lm")
    with pytest.raises(UserError, match=r"^checkpoint: .*tokens: no config.json.*; pass finetune's folder$"):
        load_classifier(rule_folder / "tokens")
    with pytest.raises(
        UserError, match=r"nowhere: no config.json, so no checkpoint; pass pretrain's folder$"
    ):
        check_checkpoint(tmp_path / "nowhere", "pretrain")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "strand-factored"}))
    with pytest.raises(UserError, match=r": a strand-factored model; pass one of the strand architecture$"):
        load_classifier(tmp_path)


def test_a_checkpoint_of_another_version_is_refused_in_a_line(rule_folder, tmp_path):
    shutil.copytree(rule_folder / "lm", tmp_path / "lm")
    path = tmp_path / "lm" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"strand_version": 2}))
    with pytest.raises(UserError, match=r"^checkpoint: .*lm: .*strand_version=2: written by newer") as caught:
        check_checkpoint(tmp_path / "lm", "pretrain")
    assert "\n" not in str(caught.value)
