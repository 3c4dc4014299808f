import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from pipeline.errors import UserError
from pipeline.sequences.alphabets import clean
from pipeline.tokens.bytepairs import BytePairCodec
from pipeline.tokens.kmers import Codec, KmerCodec, codec_of
from pipeline.tokens.vocabulary import build_tokenizer, load_tokenizer

# ESM-2's tokens in its order, written out once more by hand.
ESM2 = [
    *("<cls>", "<pad>", "<eos>", "<unk>", "L", "A", "G", "V", "S", "E", "R", "T", "I", "D", "P", "K", "Q"),
    *("N", "F", "Y", "M", "H", "W", "C", "X", "B", "U", "Z", "O", ".", "-", "<null_1>", "<mask>"),
]
SCHEMES = [(k, overlapping) for k in (1, 2, 3, 4, 6) for overlapping in (False, True)]
TOKENIZERS = {scheme: build_tokenizer("dna", *scheme, max_length=512) for scheme in SCHEMES}
BIG = [(7, True), (8, True), (8, False)]
CODECS = [KmerCodec("dna", *scheme) for scheme in SCHEMES + BIG] + [KmerCodec("dna", 3, False, codons=True)]
PROTEIN = build_tokenizer("protein", 1, False, max_length=512)

# Short stretches of each kind, so that every length up to three k-mers and every frame comes up.
stretches = st.one_of(
    st.text("ACGT", max_size=18),
    st.text("acgtuU", max_size=8),
    st.text("N", max_size=8),
    st.text("RYSWKMBDHVn", max_size=3),
)
raw_dna = st.lists(stretches, max_size=5).map("".join)


def by_definition(letters, k, overlapping):
    """The tokens of clean DNA, one at a time, with no arrays."""

    def kmer(i):
        word = letters[i : i + k]
        return word if len(word) == k and "N" not in word and k > 1 else None

    tokens, starts, i = [], [], 0
    while i < len(letters):
        word = kmer(i)
        tokens.append(word or letters[i])
        starts.append(i)
        if overlapping and word and i + k == len(letters):
            break
        i += 1 if overlapping or not word else k
    return tokens, starts


@pytest.mark.parametrize("scheme", SCHEMES)
@settings(max_examples=150, deadline=None)
@given(raw=raw_dna)
def test_codec_tokenizer_and_definition_agree_on_any_dna(scheme, raw):
    k, overlapping = scheme
    letters = clean(raw.encode(), "dna").sequence.decode()
    codec, tokenizer = KmerCodec("dna", k, overlapping), TOKENIZERS[scheme]
    tokens = codec.tokens(codec.codes(letters))
    expected, starts = by_definition(letters, k, overlapping)
    assert tokenizer.convert_ids_to_tokens(tokens.ids.tolist()) == expected
    assert tokens.starts.tolist() == starts
    assert tokens.spans.tolist() == [len(token) for token in expected]
    encoded = tokenizer(raw)["input_ids"]
    assert encoded == [codec.special("cls"), *tokens.ids, codec.special("eos")]
    assert tokenizer.decode(encoded, skip_special_tokens=True) == letters


@pytest.mark.parametrize("scheme", SCHEMES + BIG)
def test_every_length_up_to_three_kmers_with_n_anywhere(scheme):
    k, overlapping = scheme
    codec, rng = KmerCodec("dna", *scheme), np.random.default_rng(k)
    for length in range(3 * k + 1):
        for hole in range(-1, length):
            letters = "".join(rng.choice(list("ACGT"), length))
            if hole >= 0:
                letters = letters[:hole] + "N" + letters[hole + 1 :]
            ids = codec.tokens(codec.codes(letters)).ids
            expected, _ = by_definition(letters, k, overlapping)
            assert ids.tolist() == [codec.vocabulary[token] for token in expected], letters


@pytest.mark.parametrize("k", [1, 3, 6, 8])
@settings(max_examples=50, deadline=None)
@given(letters=st.text("ACGTN", max_size=40))
def test_a_track_has_a_token_for_every_letter_and_gives_the_letters_back(k, letters):
    codec = KmerCodec("dna", k, True)
    codes = codec.codes(letters)
    track = codec.track(codes)
    assert track.dtype == codec.dtype
    names = list(codec.vocabulary)
    for i, token in enumerate(track):
        word = letters[i : i + k]
        assert names[token] == (word if len(word) == k and "N" not in word else letters[i])
    assert codec.codes_of_track(track).tolist() == codes.tolist()


@pytest.mark.parametrize("k", [1, 3, 6])
def test_letter_at_reads_tokens_letter_by_letter(k):
    codec = KmerCodec("dna", k, True)
    for token, i in codec.vocabulary.items():
        for offset in range(k):
            letter = "" if token.startswith("<") else token[offset : offset + 1]
            expected = codec.letters.index(letter) if letter else 255
            assert codec.letter_at[offset, i] == expected, (token, offset)


def test_the_smallest_type_that_holds_every_id():
    kinds = {k: np.dtype(KmerCodec("dna", k, True).dtype).name for k in (1, 3, 4, 7, 8)}
    assert kinds == {1: "uint8", 3: "uint8", 4: "uint16", 7: "uint16", 8: "uint32"}


def test_residues_are_numbered_as_in_esm2():
    codec = KmerCodec("protein", 1, False)
    assert list(codec.vocabulary) == ESM2
    assert list(codec.vocabulary.values()) == list(range(33))
    assert PROTEIN.get_vocab() == codec.vocabulary
    assert (PROTEIN.cls_token_id, PROTEIN.pad_token_id, PROTEIN.eos_token_id, PROTEIN.mask_token_id) == (
        0,
        1,
        2,
        32,
    )
    assert PROTEIN("MKV")["input_ids"] == [0, 20, 15, 7, 2]


@settings(max_examples=150, deadline=None)
@given(raw=st.text("ACDEFGHIKLMNPQRSTVWYBZXUOJacdefghiklmnpqrstvwybzxuoj-", max_size=40))
def test_codec_and_tokenizer_agree_on_any_protein(raw):
    letters = clean(raw.encode(), "protein", aligned=True).sequence.decode()
    codec = KmerCodec("protein", 1, False)
    ids = codec.tokens(codec.codes(letters)).ids
    encoded = PROTEIN(raw)["input_ids"]
    assert encoded == [0, *ids, 2]
    assert ids.tolist() == [ESM2.index(letter) for letter in letters]
    assert PROTEIN.decode(encoded, skip_special_tokens=True) == letters
    assert (codec.codes(letters) < codec.n_real).tolist() == [
        letter in "ACDEFGHIKLMNPQRSTVWY" for letter in letters
    ]


def test_a_letter_outside_the_alphabet_is_named_with_its_place():
    with pytest.raises(UserError, match="letter 'E' at position 3 is no dna letter"):
        KmerCodec("dna", 3, True).codes("ACE")


def test_a_codec_is_read_from_a_folder_of_ours_only(tmp_path, tokenizer_folder):
    assert codec_of(tokenizer_folder("dna-6mer-overlap")) == KmerCodec("dna", 6, True)
    assert codec_of(tokenizer_folder("codons")) == KmerCodec("dna", 3, False, codons=True)
    assert isinstance(codec_of(tokenizer_folder("dna-bpe")), BytePairCodec)
    with pytest.raises(UserError, match="holds no tokenizer"):
        codec_of(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"alphabet": "dna"}')
    with pytest.raises(UserError, match=r"no key 'k'.*build-tokenizer"):
        codec_of(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    for read in (codec_of, load_tokenizer):
        with pytest.raises(UserError, match=r"tokenizer_config.json: not JSON: .*; copy it once more"):
            read(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("[]")
    with pytest.raises(UserError, match=r"tokenizer.json: holds list, not keys with values"):
        load_tokenizer(tmp_path)
    with pytest.raises(UserError, match=r"tokenizer_config.json: no such file"):
        load_tokenizer(tmp_path / "nowhere")


@pytest.fixture(scope="module")
def byte_pairs(tokenizer_folder):
    return BytePairCodec(tokenizer_folder("dna-bpe"))


def check_batch(codec: Codec, texts: list[str]):
    """A batch is its windows' own tokens between special tokens, and its letters are the windows' letters."""
    windows = [codec.codes(text) for text in texts]
    batch = codec.batch(windows)
    assert len(batch.offsets) == len(texts) + 1
    for number, window in enumerate(windows):
        own = slice(batch.offsets[number], batch.offsets[number + 1])
        alone = codec.tokens(window)
        assert batch.ids[own].tolist() == [codec.special("cls"), *alone.ids, codec.special("eos")]
        begin = batch.begins[number]
        assert (batch.starts[own][1:-1] - begin).tolist() == alone.starts.tolist()
        assert batch.spans[own].tolist() == [1, *alone.spans, 1]
        assert batch.codes[begin : begin + batch.sizes[number]].tolist() == window.tolist()
    assert batch.offsets[-1] == len(batch.ids)


windows = st.lists(
    st.text("ACGT", min_size=1, max_size=20) | st.text("ACGN", min_size=1), min_size=1, max_size=4
)


@pytest.mark.parametrize("codec", CODECS, ids=str)
@settings(max_examples=60, deadline=None)
@given(texts=windows)
def test_a_batch_holds_the_tokens_of_each_window(codec, texts):
    check_batch(codec, texts)


@settings(max_examples=60, deadline=None)
@given(texts=windows)
def test_a_batch_of_byte_pairs_holds_the_tokens_of_each_window(byte_pairs, texts):
    check_batch(byte_pairs, texts)


@settings(max_examples=100, deadline=None)
@given(letters=st.text("ACGT", max_size=60) | st.text("ACGTN", max_size=30))
def test_byte_pairs_are_those_of_the_tokenizer_and_tile_the_sequence(byte_pairs, letters):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(byte_pairs.folder)
    codes = byte_pairs.codes(letters)
    tokens = byte_pairs.tokens(codes)
    words = tokenizer.tokenize(letters)
    assert tokenizer.convert_ids_to_tokens(tokens.ids.tolist()) == words
    assert "".join(words) == letters
    assert tokens.spans.tolist() == [len(word) for word in words]
    assert tokens.starts.tolist() == (np.cumsum([0, *map(len, words)])[:-1]).tolist()
    assert byte_pairs.codes_of_track(byte_pairs.track(codes)).tolist() == codes.tolist()
    assert byte_pairs.text(codes) == letters


@settings(max_examples=100, deadline=None)
@given(letters=st.text("ACGTN", max_size=24))
def test_codons_keep_their_frame_whatever_comes_between(letters):
    codec = KmerCodec("dna", 3, False, codons=True)
    expected = []
    for i in range(0, len(letters), 3):
        word = letters[i : i + 3]
        expected += [word] if len(word) == 3 and "N" not in word else list(word)
    tokens = codec.tokens(codec.codes(letters))
    assert [list(codec.vocabulary)[i] for i in tokens.ids] == expected
    assert tokens.spans.tolist() == [len(word) for word in expected]


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_real_letters_are_encoded_anew_as_the_tokens_that_stand_there(codec):
    codes = np.random.default_rng(0).integers(0, 4, 100).astype(np.uint8)
    tokens = codec.tokens(codes)
    assert codec.reencode(codes, tokens.starts, tokens.spans).tolist() == tokens.ids.tolist()


def test_a_long_track_is_that_of_its_blocks(monkeypatch):
    codec = KmerCodec("dna", 6, True)
    codes = np.random.default_rng(0).integers(0, 5, 1000).astype(np.uint8)
    whole = codec.track(codes)
    for block in (1, 5, 6, 7, 333):
        monkeypatch.setattr("pipeline.tokens.kmers._BLOCK", block)
        assert codec.track(codes).tolist() == whole.tolist()
