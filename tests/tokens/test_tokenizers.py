"""All tokenizers against a definition with no arrays and no regular expressions, and against EsmTokenizer."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from pipeline.config import LettersConfig
from pipeline.sequences.alphabets import folding
from pipeline.tokens.kmers import KmerCodec, codec_of
from pipeline.tokens.vocabulary import build_tokenizer, load_tokenizer, retarget

DNA = {
    "1mer": ("k-mers", 1, False),
    "2mer": ("k-mers", 2, False),
    "6mer": ("k-mers", 6, False),
    "2mer-overlap": ("k-mers", 2, True),
    "3mer-overlap": ("k-mers", 3, True),
    "4mer-overlap": ("k-mers", 4, True),
    "6mer-overlap": ("k-mers", 6, True),
    "codons": ("codons", 3, False),
}
PROTEIN_LETTERS = "ACDEFGHIKLMNPQRSTVWYBZXUO"
SPECIALS = ("<pad>", "<unk>", "<cls>", "<eos>", "<mask>")
POLICIES = [LettersConfig(), LettersConfig(uracil="error", ambiguous="error", xle="l", rare="x")]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory, tokenizer_folder):
    """Every tokenizer, of both policies, saved and loaded again."""
    root, made = tmp_path_factory.mktemp("tokenizers"), {}
    for number, letters in enumerate(POLICIES):
        for name, (units, k, overlapping) in DNA.items():
            fresh = build_tokenizer("dna", k, overlapping, 512, units=units, letters=letters)
            fresh.save_pretrained(root / f"{name}{number}")
        build_tokenizer("protein", 1, False, 512, letters=letters).save_pretrained(root / f"protein{number}")
        retarget(tokenizer_folder("dna-bpe"), root / f"bpe{number}", letters)
        for name in (*DNA, "protein", "bpe"):
            made[name, letters] = load_tokenizer(root / f"{name}{number}")
    return made


dna_text = st.lists(
    st.one_of(
        st.text("ACGT", max_size=14),
        st.text("acgtuUNn", max_size=6),
        st.text("RYSWKMBDHVryk", max_size=2),
        st.text("!*-.xJé\u2028[]<>?\ue000\ue004", max_size=2),
        st.sampled_from([*SPECIALS, "<mask>", "[CLS]", "[MASK]", "<c<cls>ls>", "<e<eos>os>", "\n", "\r\n "]),
    ),
    max_size=6,
).map("".join)
protein_text = st.lists(
    st.one_of(
        st.text(PROTEIN_LETTERS + PROTEIN_LETTERS.lower() + "Jj-.", max_size=10),
        st.text("1?*é[]<>\ue003", max_size=2),
        st.sampled_from([*SPECIALS, "[MASK]", " ", "\n", "<u<pad>nk>"]),
    ),
    max_size=6,
).map("".join)


def symbols(text, alphabet, letters):
    """Return what a text says, one item a letter: a letter of the vocabulary, <mask>, or <unk>."""
    if text in SPECIALS:
        return [text]
    table = folding(alphabet, letters) | ({"-": "-", ".": "."} if alphabet == "protein" else {})
    read = []
    for part in re.split("(<pad>|<unk>|<cls>|<eos>|<mask>)", text):
        if part in ("<mask>", "<unk>"):
            read.append(part)
        elif part not in SPECIALS:
            read += [table.get(letter, "<unk>") for letter in part if letter not in " \t\r\n"]
    return read


def by_definition(read, units, k, overlapping):
    """Return the tokens of symbols, taken one after another."""

    def kmer(i):
        word = read[i : i + k]
        if k == 1 or len(word) < k or not all(letter in (*"ACGT", "<mask>") for letter in word):
            return None
        return "<mask>" if "<mask>" in word else "".join(word)

    if overlapping:
        last = len(read) - k if len(read) >= k and kmer(len(read) - k) else len(read) - 1
        return [kmer(i) or read[i] for i in range(last + 1)]
    tokens, i, frame = [], 0, 0
    while i < len(read):
        word = kmer(i) if (i - frame) % k == 0 or units != "codons" else None
        whole = word if word != "<mask>" else None
        tokens.append(whole or read[i])
        frame = i + 1 if read[i] == "<mask>" else frame
        i += k if whole else 1
    return tokens


@pytest.mark.parametrize("letters", POLICIES, ids=["fold", "strict"])
@pytest.mark.parametrize("name", DNA)
@settings(max_examples=60, deadline=None)
@given(text=dna_text)
def test_dna_is_read_as_defined(tokenizers, name, letters, text):
    tokenizer = tokenizers[name, letters]
    units, k, overlapping = DNA[name]
    read = symbols(text, "dna", letters)
    expected = by_definition(read, units, k, overlapping) if text not in SPECIALS else read
    encoded = tokenizer(text)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(encoded) == ["<cls>", *expected, "<eos>"]
    assert tokenizer.tokenize(text) == expected
    if not set(read) & {*SPECIALS}:
        codec, clean = KmerCodec("dna", k, overlapping, units == "codons"), "".join(read)
        ids = codec.tokens(codec.codes(clean)).ids.tolist()
        assert encoded == [codec.special("cls"), *ids, codec.special("eos")]
        assert tokenizer.decode(encoded, skip_special_tokens=True) == clean
        assert tokenizer.decode(encoded) == f"<cls>{clean}<eos>"


@pytest.mark.parametrize("letters", POLICIES, ids=["fold", "strict"])
@settings(max_examples=60, deadline=None)
@given(text=dna_text)
def test_byte_pairs_lose_no_letter(tokenizers, letters, text):
    tokenizer = tokenizers["bpe", letters]
    read = symbols(text, "dna", letters)
    encoded = tokenizer(text)["input_ids"]
    assert "".join(tokenizer.convert_ids_to_tokens(encoded)) == f"<cls>{''.join(read)}<eos>"
    assert tokenizer.decode(encoded, skip_special_tokens=True) == "".join(x for x in read if x[0] != "<")


@pytest.mark.parametrize("letters", POLICIES, ids=["fold", "strict"])
@settings(max_examples=60, deadline=None)
@given(text=protein_text)
def test_proteins_are_read_as_defined(tokenizers, letters, text):
    tokenizer = tokenizers["protein", letters]
    read = symbols(text, "protein", letters)
    encoded = tokenizer(text)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(encoded) == ["<cls>", *read, "<eos>"]
    assert tokenizer.decode(encoded, skip_special_tokens=True) == "".join(x for x in read if x[0] != "<")


@pytest.fixture(scope="module")
def esm(tmp_path_factory):
    """EsmTokenizer with the vocabulary that ESM-2 has, written out by hand."""
    from transformers import EsmTokenizer

    order = "<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O . - <null_1> <mask>"
    path = tmp_path_factory.mktemp("esm") / "vocab.txt"
    path.write_text("\n".join(order.split()))
    return EsmTokenizer(str(path))


@settings(max_examples=100, deadline=None)
@given(text=st.lists(st.sampled_from([*PROTEIN_LETTERS, *"-.", "<mask>"]), max_size=60).map("".join))
def test_proteins_are_numbered_as_in_esm2(tokenizers, esm, text):
    ours = tokenizers["protein", POLICIES[0]]
    assert ours(text)["input_ids"] == esm(text)["input_ids"]
    assert len(ours) == len(esm) == 33
    assert ours.get_vocab() == esm.get_vocab()


# -- by hand, so that the definition above is checked, too


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("3mer-overlap", "ACGTA", "ACG CGT GTA"),
        ("3mer-overlap", "ACGTN", "ACG CGT G T N"),
        ("3mer-overlap", "ACNACGT", "A C N ACG CGT"),
        ("3mer-overlap", "AC", "A C"),
        ("3mer-overlap", "AAAC<mask>GTTT", "AAA AAC <mask> <mask> <mask> GTT TTT"),
        ("3mer-overlap", "AAA<mask><mask>TTT", "AAA <mask> <mask> <mask> <mask> TTT"),
        ("3mer-overlap", "<mask>CGT", "<mask> CGT"),
        ("3mer-overlap", "AACG<mask>", "AAC ACG <mask>"),
        ("3mer-overlap", "AC<mask>N", "<mask> C <mask> N"),
        ("6mer-overlap", "ACGTAC<mask>ACGTAC", "ACGTAC " + "<mask> " * 6 + "ACGTAC"),
        ("6mer", "ACGTACGT<mask>ACGTACA", "ACGTAC G T <mask> ACGTAC A"),
        ("6mer", "ACGTANACGTAC", "A C G T A N ACGTAC"),
        ("codons", "NAACGTT", "N A A CGT T"),
        ("codons", "ACGNATG", "ACG N A T G"),
        ("codons", "A!GACG", "A <unk> G ACG"),
        ("codons", "ACG<mask>ATG", "ACG <mask> ATG"),
        ("1mer", "acg<mask>U", "A C G <mask> T"),
        ("1mer", "<cls>ACG<eos><pad>", "A C G"),
        ("1mer", "A<e<eos>os>", "A <unk> <unk> <unk> N <unk>"),
        ("1mer", "AC[MASK]", "A C <unk> N A N N <unk>"),
        ("protein", "MKUOBZJX*", "M K U O B Z X X <unk>"),
    ],
)
def test_texts_read_by_hand(tokenizers, name, text, expected):
    assert tokenizers[name, POLICIES[0]].tokenize(text) == expected.split()


@pytest.mark.parametrize("name", [*DNA, "bpe", "protein"])
def test_special_tokens_appear_once(tokenizers, name):
    """Only a text that is nothing but one special token still gives that token."""
    tokenizer = tokenizers[name, POLICIES[0]]
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("<cls>AC\nGT<eos>")["input_ids"])
    assert tokens == tokenizer.convert_ids_to_tokens(tokenizer("ACGT")["input_ids"])
    assert (tokens.count("<cls>"), tokens.count("<eos>")) == (1, 1)
    for token in SPECIALS:
        assert tokenizer.tokenize(token) == [token]
    assert (
        tokenizer(["", "<cls><eos>"])["input_ids"] == [[tokenizer.cls_token_id, tokenizer.eos_token_id]] * 2
    )
    assert (tokenizer.unk_token, tokenizer.mask_token) == ("<unk>", "<mask>")


@pytest.mark.parametrize("name", [*DNA, "bpe", "protein"])
def test_truncation_knows_the_context(tokenizers, name):
    tokenizer = tokenizers[name, POLICIES[0]]
    cut = tokenizer("ACGTTGCA" * 1000, truncation=True)["input_ids"]
    assert len(cut) == tokenizer.model_max_length == 512
    assert cut[-1] == tokenizer.eos_token_id
    padded = tokenizer(["", "ACGTACGTACGT"], padding=True)
    assert len({len(ids) for ids in padded["input_ids"]}) == 1
    assert padded["input_ids"][0][-1] == tokenizer.pad_token_id


def test_kmers_of_another_kind_are_not_read_as_a_wrong_sequence(tokenizers):
    for name, words, letters in (
        ("3mer-overlap", "ACG CGT GTA", "ACGTA"),
        ("6mer-overlap", "ACGTAC\tcgtacg", "ACGTACG"),
        ("6mer", "ACGTAC ACGTAC", "ACGTACACGTAC"),
    ):
        tokenizer = tokenizers[name, POLICIES[0]]
        assert tokenizer(words)["input_ids"] == tokenizer(letters)["input_ids"]
    rules, code = tokenizers["3mer-overlap", POLICIES[0]], tokenizers["6mer-overlap", POLICIES[0]]
    for words in ("ACG TAC", "ACGTA CGTAC", "ACG CG", "ACG <mask> GTA"):
        assert "<unk>" in rules.tokenize(words)
        with pytest.raises(ValueError, match=r"are no 6-mers that overlap by 5 letters"):
            code(words)


@pytest.mark.parametrize("number", [0, 1])
def test_a_token_that_somebody_adds_stays_what_it_is(tokenizers, tmp_path, number):
    from pipeline.model import StrandConfig, StrandForMaskedLM

    old = tokenizers["protein", POLICIES[number]]
    tokenizer = build_tokenizer("protein", 1, False, 512, letters=POLICIES[number])
    assert tokenizer.tokenize("MKJL") == ["M", "K", "XL"[number], "L"]
    assert tokenizer.add_tokens(["J"]) == 1
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = StrandForMaskedLM(StrandConfig(vocab_size=33, **sizes))
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again, model = AutoTokenizer.from_pretrained(tmp_path), StrandForMaskedLM.from_pretrained(tmp_path)
    assert again.get_vocab() == old.get_vocab() | {"J": 33}
    assert model.get_input_embeddings().weight.shape[0] == len(again) == 34
    encoded = again("MKjJL?", return_special_tokens_mask=True)
    assert again.convert_ids_to_tokens(encoded["input_ids"])[1:-1] == ["M", "K", "J", "J", "L", "<unk>"]
    assert again.decode(encoded["input_ids"], skip_special_tokens=True) == "MKJJL"
    assert 33 not in again.all_special_ids
    assert encoded["special_tokens_mask"][3:5] == [0, 0]


def test_kmer_tokenizers_keep_a_token_that_somebody_adds(tokenizers, tmp_path):
    for name in ("6mer-overlap", "6mer"):
        tokenizer = AutoTokenizer.from_pretrained(tokenizers[name, POLICIES[0]].name_or_path)
        assert tokenizer.add_tokens(["X"]) == 1
        tokenizer.save_pretrained(tmp_path / name)
        again = AutoTokenizer.from_pretrained(tmp_path / name)
        assert again.tokenize("ACGTACXACGTAC") == ["ACGTAC", "X", "ACGTAC"]


@pytest.mark.parametrize("name", ["dna-3mer-overlap", "dna-6mer-overlap", "dna-bpe", "codons", "protein"])
def test_a_tokenizer_takes_over_the_policy_of_a_corpus(tokenizer_folder, tmp_path, name):
    source, policy = tokenizer_folder(name), POLICIES[1]
    assert retarget(source, tmp_path / "same", LettersConfig()) == {}
    assert {f.name: f.read_bytes() for f in (tmp_path / "same").iterdir()} == {
        f.name: f.read_bytes() for f in source.iterdir()
    }
    before, after = LettersConfig().model_dump(), policy.model_dump()
    changed = retarget(source, tmp_path / "other", policy)
    assert changed == {key: (before[key], after[key]) for key in after if before[key] != after[key]} != {}
    assert {f.suffix for f in (tmp_path / "other").iterdir()} == {".json"}
    old, new = load_tokenizer(source), load_tokenizer(tmp_path / "other")
    assert new.get_vocab() == old.get_vocab()
    assert new.init_kwargs["letters"] == policy.model_dump()
    assert codec_of(tmp_path / "other").vocabulary == codec_of(source).vocabulary
    text, read = ("MJUK", "M L X K") if name == "protein" else ("AURA", "A <unk> <unk> A")
    assert new.tokenize(text) == read.split()
    assert old.tokenize(text) != new.tokenize(text)
    retarget(tmp_path / "other", tmp_path / "back", LettersConfig())
    assert load_tokenizer(tmp_path / "back").tokenize(text) == old.tokenize(text)
