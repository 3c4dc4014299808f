import shutil

import numpy as np
import pytest
import torch

from pipeline.errors import UserError
from pipeline.model import StrandForSequenceClassification
from pipeline.sequences.alphabets import reverse_complement
from pipeline.sequences.targets import Target
from pipeline.tokens.kmers import codec_of
from pipeline.training import scan
from pipeline.training.classifier import class_logits
from pipeline.training.scan import AtContent, Classifier, Tokenizer, Windows, keep_scores, load

KMERS = ["dna-1mer", "dna-3mer-overlap", "dna-6mer", "dna-6mer-overlap"]
RNG = np.random.default_rng(0)
TEXT = "".join(RNG.choice(list("ACGT"), 300))


@pytest.mark.parametrize("name", KMERS)
@pytest.mark.parametrize("size", [81, 6, 5, 2, 1])
def test_tokens_of_windows_are_slices_of_the_track(tokenizer_folder, name, size):
    codec = codec_of(tokenizer_folder(name))
    codes, starts = codec.codes(TEXT), np.arange(0, 300 - size + 1, 7)
    tokenizer = Tokenizer(codec, size)
    found = tokenizer.ids(codec.track(codes), codes, starts)
    assert found.dtype == codec.dtype
    expected = [codec.tokens(codec.codes(TEXT[s : s + size])).ids.tolist() for s in starts]
    assert found.tolist() == expected
    assert tokenizer.tokens == len(expected[0])


@pytest.fixture(params=["dna-3mer-overlap", "dna-6mer", "dna-bpe"])
def classifier(request, tokenizer_folder, tiny_model):
    codec = codec_of(tokenizer_folder(request.param))
    specials = {"pad_token_id": codec.special("pad"), "mask_token_id": codec.special("mask")}
    sizes = {"vocab_size": len(codec.vocabulary), "num_labels": 3, "max_position_embeddings": 64}
    return tiny_model(StrandForSequenceClassification, **specials | sizes), codec


def log_odds(logits, positive):
    odds = torch.softmax(torch.tensor(logits, dtype=torch.float64), 1)[:, positive]
    return torch.logit(odds).numpy()


def test_scores_are_those_of_each_window_by_itself(classifier):
    """On either strand; what touches an N has none."""
    model, codec = classifier
    text = TEXT[:120] + "N" + TEXT[120:200] + "NN" + TEXT[200:]
    starts = np.arange(0, len(text) - 40 + 1, 3)
    scored = Classifier(model, codec, 1, 40, 7, strandless=False)(text.encode(), starts)
    windows = [text[s : s + 40] for s in starts]
    clean = np.array(["N" not in window for window in windows])
    assert 20 < clean.sum() < len(clean)
    assert np.isnan(scored).tolist() == [(~clean).tolist()] * 2
    forward = [window for window in windows if "N" not in window]
    for row, texts in enumerate((forward, [reverse_complement(window) for window in forward])):
        expected = log_odds(class_logits(model, codec, texts, 64), 1)
        assert scored[row, clean] == pytest.approx(expected, abs=1e-4)
    assert not np.allclose(scored[0, clean], scored[1, clean], atol=0.1)
    mean = Classifier(model, codec, 1, 40, 64, strandless=True)(text.encode(), starts)
    assert mean[:, clean] == pytest.approx(np.tile(scored[:, clean].mean(0), (2, 1)), abs=1e-4)


def test_byte_pairs_that_do_not_fit_are_an_error(tokenizer_folder, tiny_model):
    codec = codec_of(tokenizer_folder("dna-bpe"))
    model = tiny_model(
        StrandForSequenceClassification, vocab_size=len(codec.vocabulary), max_position_embeddings=12
    )
    with pytest.raises(
        UserError, match=r"^scan.window: 200 bases are \d+ tokens, more than the classifier's"
    ):
        Classifier(model, codec, 1, 200, 4, strandless=False)(TEXT.encode(), np.array([0]))


def test_at_content():
    shares = AtContent(4)(b"AATTGCNAT" + b"TAA", np.array([0, 1, 2, 3, 8]))
    assert np.array_equal(shares[0], np.array([1, 0.75, 0.5, np.nan, 1], np.float32), equal_nan=True)
    assert np.array_equal(shares[0], shares[1], equal_nan=True)


def test_sites_are_mirrored_on_the_other_strand():
    windows = Windows(81, 60, 10)
    assert windows.sites(np.array([0, 100]), 1, 1000).tolist() == [60, 160]
    assert windows.sites(np.array([0, 100]), -1, 1000).tolist() == [20, 120]
    assert windows.sites(np.array([950]), 1, 1000).tolist() == [10]


class Ends:
    """Records of letters, and a score that is where a window starts, on the record as a whole."""

    lengths = {"a": 1000, "b": 95}
    size = 10

    def __init__(self):
        self.calls = 0

    def fetch(self, name, start, end):
        return bytes([start // 256, start % 256]) + bytes(end - start - 2)

    def __call__(self, letters, starts):
        self.calls += 1
        first = letters[0] * 256 + letters[1]
        return np.stack([starts + first, -starts - first]).astype(np.float32)


TARGETS = [
    Target("a", 1000, np.array([[3, 206], [500, 1000]])),
    Target("b", 95, np.array([[0, 95]]), joined=True),
]


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_windows_are_read_once_whoever_reads_them(tmp_path, monkeypatch, processes):
    monkeypatch.setattr(scan, "CHUNK", 8)
    ends = Ends()
    for process in range(processes):
        scan.scan(ends, ends, TARGETS, 4, tmp_path, "test", process, processes)
    first = [s for s in range(0, 1000, 4) if 3 <= s <= 196 or 500 <= s <= 990]
    for number, (target, expected) in enumerate(zip(TARGETS, (first, list(range(0, 95, 4))), strict=True)):
        starts, scores = load(number, target, 10, 4, tmp_path)
        assert starts.tolist() == expected
        assert scores.tolist() == [expected, [-s for s in expected]]
    calls = ends.calls
    scan.scan(ends, ends, TARGETS, 4, tmp_path, "test")
    assert ends.calls == calls > 10
    next(tmp_path.glob("0000000-*5.npy")).unlink()
    scan.scan(ends, ends, TARGETS, 4, tmp_path, "test")
    assert ends.calls == calls + 1
    damaged = next(tmp_path.glob("0000000-*5.npy"))
    for content in (b"", damaged.read_bytes()[:90]):
        damaged.write_bytes(content)
        with pytest.raises(UserError, match=r"5\.npy: no array of scores; delete the file"):
            load(0, TARGETS[0], 10, 4, tmp_path)


def test_scores_of_other_settings_are_thrown_away(tmp_path, capfd):
    keep_scores(tmp_path / "w", {"a": 1})
    (tmp_path / "w" / "x.npy").touch()
    keep_scores(tmp_path / "w", {"a": 1})
    assert (tmp_path / "w" / "x.npy").exists()
    assert not capfd.readouterr().err
    keep_scores(tmp_path / "w", {"a": 2})
    assert not (tmp_path / "w" / "x.npy").exists()
    assert "of other inputs or settings; they are thrown away" in capfd.readouterr().err
    (tmp_path / "w" / "x.npy").touch()
    (tmp_path / "w" / "settings.json").write_text("{")
    keep_scores(tmp_path / "w", {"a": 2})
    assert not (tmp_path / "w" / "x.npy").exists()
    shutil.rmtree(tmp_path / "w")
