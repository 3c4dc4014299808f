import numpy as np
import pytest
import torch

from pipeline.model import StrandConfig, StrandForMaskedLM
from pipeline.tokens.kmers import KmerCodec
from pipeline.training.initialise import COMPOSED_STD, compose_kmers, fresh


def network(codec, seed=3, width=64):
    sizes = {"hidden_size": width, "num_hidden_layers": 1, "num_attention_heads": 2}
    return fresh(StrandForMaskedLM, StrandConfig(vocab_size=len(codec.vocabulary), **sizes), codec, seed)


@pytest.fixture(scope="module", params=[(3, True), (4, False)], ids=["3 overlapping", "4"])
def codec(request):
    return KmerCodec("dna", *request.param)


@pytest.fixture(scope="module")
def table(codec):
    return network(codec).get_input_embeddings().weight.detach().double().numpy()


def letters_of(codec):
    """Return (k-mers, 4 k) ones for the letter at each place, from the tokens' names."""
    kmers = [token for token in codec.vocabulary if len(token) == codec.k and not token.startswith("<")]
    rows = [[token[place] == letter for place in range(codec.k) for letter in "ACGT"] for token in kmers]
    return [codec.vocabulary[token] for token in kmers], np.array(rows, float)


def test_a_kmer_is_the_sum_of_its_letters_at_their_places(codec, table):
    ids, ones = letters_of(codec)
    kmers = table[ids]
    parts = np.linalg.lstsq(ones, kmers, rcond=None)[0]
    assert np.abs(ones @ parts - kmers).max() < 1e-6
    # A constant, and 3 free letters for every place.
    assert np.linalg.matrix_rank(kmers, tol=1e-4) == 1 + 3 * codec.k


def test_neighbours_differ_by_the_letter_that_they_differ_in(codec, table):
    ids = codec.vocabulary
    tail, other = "G" * (codec.k - 2), "T" * (codec.k - 2)
    swapped = table[ids["CA" + tail]] - table[ids["TA" + tail]]
    assert table[ids["CG" + other]] - table[ids["TG" + other]] == pytest.approx(swapped, abs=1e-6)
    elsewhere = table[ids["AC" + tail]] - table[ids["AT" + tail]]
    assert np.abs(swapped - elsewhere).max() > 0.01, "a letter means the same at every place"


def test_the_size_of_the_vectors_does_not_depend_on_k():
    for k in (2, 3, 6):
        codec = KmerCodec("dna", k, True)
        kmers = network(codec, width=256).get_input_embeddings().weight[codec.first_kmer :]
        assert float(kmers.detach().square().mean().sqrt()) == pytest.approx(COMPOSED_STD, rel=0.1)


def test_only_kmers_are_touched(codec):
    model = network(codec)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    compose_kmers(model, codec)
    for name, value in model.state_dict().items():
        if name in ("model.embeddings.weight", "decoder.weight"):
            assert torch.equal(value[: codec.first_kmer], before[name][: codec.first_kmer])
            assert not torch.equal(value[codec.first_kmer :], before[name][codec.first_kmer :])
        else:
            assert torch.equal(value, before[name]), name
    assert model.decoder.weight is model.model.embeddings.weight
    assert not model.model.embeddings.weight[codec.special("pad")].any()


@pytest.mark.parametrize("alphabet", ["dna", "protein"])
def test_single_letters_are_left_as_they_are(alphabet):
    codec = KmerCodec(alphabet, 1, False)
    model = network(codec)
    before = model.get_input_embeddings().weight.clone()
    compose_kmers(model, codec)
    assert torch.equal(model.get_input_embeddings().weight, before)


def test_weights_are_a_function_of_the_seed(codec):
    one, again, other = (network(codec, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["model.embeddings.weight"], other["model.embeddings.weight"])
    assert not torch.equal(one["model.layers.0.mlp.up.weight"], other["model.layers.0.mlp.up.weight"])
