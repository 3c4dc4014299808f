import numpy as np
import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertModel,
    AutoModel,
    BertConfig,
    BertModel,
    EsmConfig,
    EsmForMaskedLM,
    EsmModel,
    LlamaConfig,
    LlamaModel,
)

from pipeline.attention import capture
from pipeline.attention.capture import letter_attention, received_attention, spread_to_letters
from pipeline.attention.words import high_regions
from pipeline.errors import UserError
from pipeline.model import (
    FactoredConfig,
    FactoredForMaskedLM,
    StrandForMaskedLM,
    StrandForSequenceClassification,
    StrandModel,
)
from pipeline.tokens.kmers import KmerCodec, Tokens
from pipeline.tokens.windows import Context
from pipeline.training.classifier import encode, pad

CODECS = [KmerCodec("dna", 3, True), KmerCodec("dna", 6, True), KmerCodec("dna", 6, False)]
CODECS += [KmerCodec("dna", 1, False)]


def random_dna(length, seed, share_n=0.0):
    rng = np.random.default_rng(seed)
    letters = rng.choice(list("ACGT"), length)
    letters[rng.random(length) < share_n] = "N"
    return "".join(letters)


# -- the attention that a token gets


@pytest.fixture
def batch():
    """Three sequences of different lengths, padded."""
    codec = KmerCodec("dna", 3, True)
    return pad([encode(random_dna(n, seed=n), codec) for n in (9, 23, 14)], codec)


@pytest.mark.parametrize("kind", [StrandForMaskedLM, StrandForSequenceClassification])
@pytest.mark.parametrize("queries", ["cls", "all"])
@pytest.mark.parametrize("block", [1, 4, 128])
def test_it_is_what_the_eager_kernel_gives(tiny_model, batch, kind, queries, block, monkeypatch):
    monkeypatch.setattr(capture, "BLOCK", block)
    model = tiny_model(kind, vocab_size=74)
    received = received_attention(model, batch, queries)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = model(**batch, output_attentions=True).attentions
    assert received.shape == (2, 3, 2, batch["input_ids"].shape[1])
    assert received.dtype == np.float32
    for layer, map_BHLL in enumerate(maps):
        for row, length in enumerate(batch["attention_mask"].sum(1).tolist()):
            asked = map_BHLL[row, :, :1] if queries == "cls" else map_BHLL[row, :, :length]
            expected = asked.double().mean(1).numpy()
            assert received[layer, row] == pytest.approx(expected, abs=1e-6)
            assert received[layer, row].sum(-1) == pytest.approx(1, abs=1e-5)
            assert not received[layer, row, :, length:].any(), "padding was attended to"


@pytest.mark.parametrize("queries", ["cls", "all"])
def test_it_does_not_depend_on_the_batch(tiny_model, batch, queries):
    model = tiny_model(vocab_size=74)
    together = received_attention(model, batch, queries)
    for row, length in enumerate(batch["attention_mask"].sum(1).tolist()):
        alone = {name: value[row : row + 1, :length] for name, value in batch.items()}
        expected = received_attention(model, alone, queries)[:, 0]
        assert together[:, row, :, :length] == pytest.approx(expected, abs=1e-6)


def test_the_model_is_left_as_it_was(tiny_model, batch):
    model = tiny_model(vocab_size=74)
    with torch.no_grad():
        before = model(**batch).logits
    kernel = model.config._attn_implementation
    received_attention(model, batch, "cls")
    with pytest.raises(IndexError):
        received_attention(model, {**batch, "input_ids": batch["input_ids"] + 100}, "all")
    assert model.config._attn_implementation == model.model.config._attn_implementation == kernel
    assert capture._Request.reduction is None
    with torch.no_grad():
        assert torch.equal(model(**batch).logits, before)


# -- any model: position by position what eager attention keeps

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
FOREIGN = {**SIZES, "vocab_size": 80, "pad_token_id": 0, "max_position_embeddings": 64}
ESM = {"mask_token_id": 4, "position_embedding_type": "rotary", "token_dropout": True}
STRAND = {
    "plain": {},
    "qk_norm": {"qk_norm": True},
    "qk_norm_over_all": {"qk_norm": True, "qk_norm_over": "model"},
    "windowed": {"sliding_window": 3, "global_every": 3},
    "post_norm": {"norm_placement": "post", "norm": "layernorm", "positions": "sinusoidal"},
    "esm2": {"token_dropout": True, "mask_token_id": 4, "use_bias": True, "activation": "gelu"},
}
OTHERS = {
    "esm": lambda: EsmModel(EsmConfig(**FOREIGN, **ESM)),
    "esm_lm": lambda: EsmForMaskedLM(EsmConfig(**FOREIGN, **ESM)),
    "esm1": lambda: EsmModel(EsmConfig(**FOREIGN, mask_token_id=4, position_embedding_type="absolute")),
    "bert": lambda: BertModel(BertConfig(**FOREIGN)),
    "albert": lambda: AlbertModel(AlbertConfig(**FOREIGN, embedding_size=16)),  # one module for all layers
    "llama": lambda: LlamaModel(LlamaConfig(**FOREIGN, num_key_value_heads=2)),  # causal, shared keys
}


@pytest.fixture(params=[*STRAND, *OTHERS])
def any_model(request, tiny_model):
    if request.param in STRAND:
        return tiny_model(**SIZES | {"vocab_size": 80, "pad_token_id": 0} | STRAND[request.param])
    torch.manual_seed(0)
    model = OTHERS[request.param]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
    return model


def padded(lengths=(9, 23, 14)):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 80, (len(lengths), max(lengths)), generator=generator)
    ids[:, 3] = 4  # a mask token, which token dropout counts
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


@torch.no_grad()
def eager_maps(model, inputs):
    """Return the maps of all layers, (Y, B, H, L, L)."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    maps = torch.stack(model(**inputs, output_attentions=True).attentions).numpy()
    model.set_attn_implementation(before)
    return maps


def test_any_model_tells_what_eager_keeps_position_by_position(any_model, monkeypatch):
    monkeypatch.setattr(capture, "BLOCK", 200)
    inputs = padded()
    maps, real = eager_maps(any_model, inputs), inputs["attention_mask"].numpy().astype(bool)
    for query in range(maps.shape[-1]):
        weights = np.zeros(real.shape, np.float32)
        weights[:, query] = real[:, query]
        received = received_attention(any_model, inputs, weights)
        expected = maps[:, :, :, query] * real[None, :, None, query, None]
        np.testing.assert_allclose(received, expected, rtol=0, atol=1e-6)
        asked = received[:, real[:, query]]
        np.testing.assert_allclose(asked.sum(-1), 1, rtol=0, atol=1e-5)
        assert not received.transpose(0, 2, 1, 3)[:, :, ~real].any(), "padding was attended to"


def test_a_batch_without_padding(any_model):
    """Masks may then be left out; windows and causality still hold."""
    inputs = padded((21, 21))
    expected = eager_maps(any_model, inputs).mean(3)
    np.testing.assert_allclose(received_attention(any_model, inputs, "all"), expected, rtol=0, atol=1e-6)


def test_what_the_model_returns_is_what_sdpa_gives(any_model):
    inputs = padded()
    before = any_model.config._attn_implementation
    any_model.set_attn_implementation("sdpa")
    with torch.no_grad():
        expected = any_model(**inputs)[0]
    any_model.set_attn_implementation(before)
    found = capture.capture(any_model, inputs, lambda layer, attention: None)[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert any_model.config._attn_implementation == before


def test_chosen_layers_heads_and_queries(tiny_model):
    model, inputs = tiny_model(StrandModel, **SIZES, vocab_size=80, pad_token_id=0), padded()
    maps = eager_maps(model, inputs)
    found = received_attention(model, inputs, "all", layers=[2, 0], heads=[3])
    np.testing.assert_allclose(found, received_attention(model, inputs, "all")[[2, 0]][:, :, [3]], atol=1e-7)
    chosen = np.zeros((3, 23), bool)
    chosen[0, [2, 5]], chosen[1, 22], chosen[2, :14] = True, True, True
    means = [maps[:, row, :, chosen[row]].mean(0) for row in range(3)]
    np.testing.assert_allclose(received_attention(model, inputs, chosen), np.stack(means, 1), atol=1e-6)
    signed = torch.where(torch.as_tensor(chosen), -0.5, 0.0)
    sums = [-0.5 * maps[:, row, :, chosen[row]].sum(0) for row in range(3)]
    np.testing.assert_allclose(received_attention(model, inputs, signed), np.stack(sums, 1), atol=2e-6)


def test_the_first_token_is_that_after_padding_on_the_left():
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]])
    assert capture.query_weights(mask, "cls").tolist() == [[0, 0, 1, 0], [1, 0, 0, 0]]


def test_places_that_are_real_numbers_reach_the_captured_model(tiny_model):
    model, inputs = tiny_model(StrandModel, **SIZES, vocab_size=80, pad_token_id=0), padded()
    inputs["position_ids"] = torch.arange(23)[None] * 1.7
    found = received_attention(model, inputs, "cls")
    np.testing.assert_allclose(found, eager_maps(model, inputs)[:, :, :, 0], rtol=0, atol=1e-6)
    del inputs["position_ids"]
    assert np.abs(found - received_attention(model, inputs, "cls")).max() > 0.01


def test_masks_that_are_added_and_a_scaling_that_is_left_to_the_kernel():
    """A mask of the caller's own, one for each head, and attention layers that name no scaling."""
    torch.manual_seed(0)
    model = BertModel(BertConfig(**FOREIGN, initializer_range=0.2)).eval()
    for module in model.modules():
        if hasattr(module, "scaling"):
            module.scaling = None
    inputs = padded()
    inputs["attention_mask"] = torch.randn(3, 4, 23, 23) * 2
    maps, found = eager_maps(model, inputs), np.zeros((3, 3, 4, 23, 23), np.float32)

    def keep(layer, attention):
        for b, h, q, part in attention.blocks(torch.arange(4), torch.arange(23)):
            found[layer, b, h, q] = part

    capture.capture(model, inputs, keep)
    np.testing.assert_allclose(found, maps, rtol=0, atol=1e-6)


def test_half_precision_is_captured_in_float32(tiny_model):
    model, inputs = tiny_model(StrandModel, **SIZES, vocab_size=80, pad_token_id=0), padded()
    fine = received_attention(model, inputs, "all")
    coarse = received_attention(model.bfloat16(), inputs, "all")
    assert coarse.dtype == np.float32
    np.testing.assert_allclose(coarse.sum(-1), 1, rtol=0, atol=1e-5)
    np.testing.assert_allclose(coarse, fine, rtol=0, atol=0.05)


def test_nothing_as_large_as_the_maps_of_a_layer_is_made(tiny_model, monkeypatch, largest_tensor):
    monkeypatch.setattr(capture, "BLOCK", 1024)
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 8}
    model = tiny_model(StrandModel, **shape, vocab_size=80)
    inputs = padded((96,))
    with largest_tensor() as largest:
        received_attention(model, inputs, "all")
    assert largest.size <= 96 * 16 * 3 < 96 * 96, "a map of a single head is larger"


def test_wrong_requests_are_told(tiny_model):
    model, inputs = tiny_model(StrandModel, **SIZES, vocab_size=80, pad_token_id=0), padded()
    nothing = np.zeros((3, 23), bool)
    nothing[1:, 0] = True
    for queries, told in (
        ("mean", "'mean' is neither"),
        (nothing[:, :9], r"shape \(3, 9\), tokens have \(3, 23\)"),
        (nothing, "none in row 0"),
        (np.ones((3, 23), bool), "padding is among them"),
    ):
        with pytest.raises(ValueError, match=f"queries: {told}"):
            received_attention(model, inputs, queries)
    with pytest.raises(ValueError, match="layers: 3 chosen; there are 0 to 2"):
        received_attention(model, inputs, "cls", layers=[3])
    with pytest.raises(ValueError, match="heads: none chosen"):
        received_attention(model, inputs, "cls", heads=[])


def test_attention_that_is_not_seen_is_an_error():
    """A layer that goes another way, a model without such layers, cross-attention, scores that are capped."""
    model = BertModel(BertConfig(**FOREIGN)).eval()
    model.encoder.layer[1].attention.self.config = BertConfig(**FOREIGN, attn_implementation="eager")
    with pytest.raises(ValueError, match="BertModel: 2 of 3 layers attend through"):
        received_attention(model, padded(), "cls")
    assert model.config._attn_implementation == "sdpa"
    columns = {"num_columns": 8, "residue_token_ids": [5, 6, 7], "num_attention_heads": 2}
    factored = FactoredForMaskedLM(FactoredConfig(vocab_size=10, hidden_size=8, **columns))
    with pytest.raises(ValueError, match="FactoredForMaskedLM: no model with layers"):
        received_attention(factored, padded((8,)), "cls")
    capture._Request.reduction = lambda layer, attention: None
    try:
        x = torch.ones(1, 1, 4, 2)
        with pytest.raises(ValueError, match="only self-attention"):
            capture._kernel(model, x, x[:, :, :3], x[:, :, :3], None)
        with pytest.raises(ValueError, match="causal attention without a mask"):
            capture._kernel(model, x, x, x, None)  # as sdpa takes it, where nobody says otherwise
        with pytest.raises(ValueError, match="softcap cannot be captured"):
            capture._kernel(model, x, x, x, None, softcap=5.0)
    finally:
        capture._Request.reduction = None


@torch.no_grad()
def test_output_attentions_of_a_checkpoint_are_maps_or_an_error(tiny_model, tmp_path):
    """AutoModel with its default kernel says what to do; with eager it gives maps."""
    tiny_model(StrandForMaskedLM, vocab_size=80, pad_token_id=0).save_pretrained(tmp_path)
    inputs, real = padded(), padded()["attention_mask"].bool()
    model = AutoModel.from_pretrained(tmp_path, trust_remote_code=True)
    expected = model(**inputs)[0]
    with pytest.raises(ValueError, match=r"sdpa attention keeps no weights.*attn_implementation='eager'"):
        model(**inputs, output_attentions=True)
    model = AutoModel.from_pretrained(tmp_path, trust_remote_code=True, attn_implementation="eager")
    outputs = model(**inputs, output_attentions=True)
    maps = torch.stack(outputs.attentions)
    assert maps.shape == (2, 3, 2, 23, 23)
    torch.testing.assert_close(maps.sum(-1), torch.ones_like(maps[..., 0]), rtol=0, atol=1e-6)
    assert not maps.movedim(-1, 2)[:, ~real].any(), "padding was attended to"
    torch.testing.assert_close(outputs[0][real], expected[real], rtol=0, atol=1e-5)


# -- from tokens to letters


def slow_spread(scores, tokens, length):
    """Ask of every letter which tokens cover it."""
    letters = []
    for place in range(length):
        over = [s for s, a, n in zip(scores, tokens.starts, tokens.spans, strict=True) if a <= place < a + n]
        letters.append(float(np.mean(over, dtype=float)) if over else np.nan)
    return letters


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize(("length", "share_n"), [(1, 0), (4, 0), (6, 0), (41, 0), (40, 0.1), (43, 0.5)])
def test_letters_get_the_mean_of_the_tokens_over_them(codec, length, share_n):
    sequence = random_dna(length, seed=length, share_n=share_n)
    tokens = codec.tokens(codec.codes(sequence))
    scores = np.random.default_rng(1).random(len(tokens.ids)).astype(np.float32)
    letters = spread_to_letters(scores, tokens, length)
    assert len(letters) == len(sequence)
    assert np.isfinite(letters).all(), "every letter is in some token"
    assert letters == pytest.approx(np.array(slow_spread(scores, tokens, length)), abs=1e-12)


def test_letters_that_no_token_covers_have_no_score():
    tokens = Tokens(np.zeros(2, int), np.array([1, 5]), np.array([3, 2]))
    letters = spread_to_letters(np.array([0.25, 0.5]), tokens, 8)
    assert letters.tolist()[1:4] + letters.tolist()[5:7] == [0.25] * 3 + [0.5] * 2
    assert np.flatnonzero(np.isnan(letters)).tolist() == [0, 4, 7]


@pytest.mark.parametrize(
    ("codec", "sequence", "attended"),
    [
        (KmerCodec("dna", 3, True), random_dna(40, 2), [20, 21, 22, 23]),
        (KmerCodec("dna", 6, True), random_dna(40, 2), [20]),
        (KmerCodec("dna", 6, False), "NN" + random_dna(38, 2), [20]),
        (KmerCodec("dna", 1, False), random_dna(40, 2), [20, 21, 22, 23, 24, 25]),
    ],
    ids=str,
)
def test_attention_on_a_word_is_reported_at_its_bases(codec, sequence, attended):
    """Attention lies on the tokens wholly inside bases 20 to 25 (from 0), and on no others."""
    tokens = codec.tokens(codec.codes(sequence))
    inside = np.isin(tokens.starts, attended)
    assert inside.sum() == len(attended)
    letters = spread_to_letters(inside / inside.sum(), tokens, len(sequence))
    assert np.flatnonzero(letters > 1e-9).tolist() == [20, 21, 22, 23, 24, 25]
    assert high_regions(letters, 6) == [(20, 26)]


# -- data sets of any size


def records_of(lengths):
    return [(f"r{i}", random_dna(length, seed=i)) for i, length in enumerate(lengths)]


def model_for(tiny_model, kind=StrandForSequenceClassification):
    return tiny_model(kind, vocab_size=74)


@pytest.mark.parametrize("queries", ["cls", "all"])
@pytest.mark.parametrize(("records", "letters"), [(4096, 2**20), (3, 2**20), (4096, 50)])
def test_records_come_in_order_whatever_is_read_together(tiny_model, queries, records, letters, monkeypatch):
    monkeypatch.setattr(capture, "CHUNK_RECORDS", records)
    monkeypatch.setattr(capture, "CHUNK_BYTES", letters * 4 * 4)
    model, codec, data = (
        model_for(tiny_model),
        KmerCodec("dna", 3, True),
        records_of([9, 40, 3, 17, 40, 5, 12]),
    )
    drawn = []

    def stream():
        for record in data:
            drawn.append(record[0])
            yield record

    found = letter_attention(model, Context(codec, 60), stream(), queries, budget=64)
    for i, (name, sequence, scores) in enumerate(found):
        assert (name, sequence) == data[i]
        assert len(drawn) <= max(i + records + 1, 1) or letters == 50
        assert len(drawn) < len(data) or i >= 3 or records > 3, "all was read ahead"
        alone = received_attention(model, pad([encode(sequence, codec)], codec), queries)[:, 0, :, 1:-1]
        tokens = codec.tokens(codec.codes(sequence))
        assert scores.shape == (2, 2, len(sequence))
        assert scores.dtype == np.float32
        for layer in range(2):
            for head in range(2):
                expected = slow_spread(alone[layer, head], tokens, len(sequence))
                np.testing.assert_allclose(scores[layer, head], expected, rtol=0, atol=1e-6)
    assert i == len(data) - 1


def test_letters_of_windows_get_the_mean_over_windows(tiny_model):
    model, codec = model_for(tiny_model), KmerCodec("dna", 3, True)
    context = Context(codec, 16, "window", overlap=5)
    sequence = random_dna(45, seed=1)
    reading = Context(codec, 16, "window", overlap=5).read("x", sequence)
    assert len(reading.bounds) > 2
    each = []
    for first, stop in reading.bounds.tolist():
        part = Tokens(
            *(a[first:stop] for a in (reading.tokens.ids, reading.tokens.starts, reading.tokens.spans))
        )
        framed = np.concatenate(([codec.special("cls")], part.ids, [codec.special("eos")]))
        received = received_attention(model, pad([framed], codec), "all", [1], [0])[0, 0, 0, 1:-1]
        each.append(slow_spread(received, part, 45))
    ((_, _, scores),) = letter_attention(model, context, [("x", sequence)], "all", [1], [0])
    np.testing.assert_allclose(scores[0, 0], np.nanmean(each, 0), rtol=0, atol=1e-6)


@pytest.mark.parametrize("codec", [KmerCodec("dna", 3, True), KmerCodec("dna", 6, True)], ids=str)
@pytest.mark.parametrize("most", [40, 80])
def test_a_planted_word_is_at_its_place_whatever_is_cut_off(tiny_model, codec, most, monkeypatch):
    """60 letters with the word at 20, of which the first tokens alone may be read."""
    sequence = random_dna(20, 1) + "TATAAT" + random_dna(34, 2)
    tokens = codec.tokens(codec.codes(sequence))
    size = int((tokens.starts + tokens.spans <= min(most, 60)).sum())

    def attended(model, inputs, queries, layers, heads):
        scores = np.full((2, 1, 2, inputs["input_ids"].shape[1]), 0.01, np.float32)
        inside = (tokens.starts >= 20) & (tokens.starts + tokens.spans <= 26)
        scores[..., 1:-1] += inside[:size]
        return scores

    monkeypatch.setattr(capture, "received_attention", attended)
    found = letter_attention(
        model_for(tiny_model), Context(codec, size, "truncate"), [("x", sequence)], "all"
    )
    ((_, _, scores),) = found
    assert scores.shape == (2, 2, 60)
    assert np.isnan(scores[0, 0]).tolist() == [letter >= most for letter in range(60)]
    assert high_regions(scores[0, 0], 6) == [(20, 26)]


def test_records_that_do_not_fit_are_an_error_or_have_no_scores(tiny_model):
    model, codec, data = model_for(tiny_model), KmerCodec("dna", 3, True), records_of([10, 30])
    found = [scores for *_, scores in letter_attention(model, Context(codec, 20, "skip"), data, "all")]
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1]).all()
    assert found[1].shape == (2, 2, 30)
    with pytest.raises(UserError, match="record 'r1': 30 letters are"):
        list(letter_attention(model, Context(codec, 20), data, "all"))
    assert list(letter_attention(model, Context(codec, 20), [], "all")) == []
