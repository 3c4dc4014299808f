"""KmerTokenizer, code that travels with a checkpoint, against the rules that do the same in JSON."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import LettersConfig
from pipeline.model import KmerTokenizer
from pipeline.tokens import vocabulary
from pipeline.tokens.vocabulary import build_tokenizer, kmer_vocabulary, load_tokenizer

SIZES = (2, 3, 4, 5, 6)
STRICT = LettersConfig(uracil="error", ambiguous="error")


@pytest.fixture(scope="module")
def rules():
    """Rules for every k, also those that would be slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary, "RULES_UP_TO", 8)
        return {
            (k, letters): build_tokenizer("dna", k, True, 64, letters=letters)
            for k in SIZES
            for letters in (LettersConfig(), STRICT)
        }


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    """KmerTokenizer for every k, also those that rules are for, saved and loaded again."""
    folder, made = tmp_path_factory.mktemp("code"), {}
    for k in SIZES:
        for letters in (LettersConfig(), STRICT):
            tokenizer = KmerTokenizer(vocab=kmer_vocabulary(k), k=k, letters=letters.model_dump())
            tokenizer.save_pretrained(folder / str(k))
            made[k, letters] = load_tokenizer(folder / str(k))
    return made


text = st.lists(
    st.one_of(
        st.text("ACGT", max_size=12),
        st.text("acgtuUNnRyx!é", max_size=4),
        st.sampled_from(["<mask>", "<mask>", "<cls>", "<eos>", "<pad>", "<unk>", "[MASK]", "<ma<eos>sk>"]),
        st.sampled_from([" ", "\t ", "\n", " \r\n", "\v", "?", "<", ">", "\ue004", "\u2028", "\xa0"]),
    ),
    max_size=7,
).map("".join)


@pytest.mark.parametrize("letters", [LettersConfig(), STRICT], ids=["fold", "strict"])
@pytest.mark.parametrize("k", SIZES)
@settings(max_examples=60, deadline=None)
@given(text=text)
def test_code_and_rules_agree_on_any_text(rules, code, k, letters, text):
    one, other = rules[k, letters], code[k, letters]
    assert one.is_fast
    assert not other.is_fast
    ids = one(text)["input_ids"]
    try:
        assert other(text)["input_ids"] == ids
        assert other.tokenize(text) == one.tokenize(text)
    except ValueError:
        assert one.unk_token_id in ids
    for skip in (False, True):
        assert other.decode(ids, skip_special_tokens=skip) == one.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("k", SIZES)
@settings(max_examples=40, deadline=None)
@given(letters=st.text("ACGTNacgtn", max_size=30))
def test_kmers_as_words_are_joined(rules, code, k, letters):
    words = " ".join(letters[i : i + k] for i in range(len(letters) - k + 1)) or letters
    for tokenizer in (rules[k, LettersConfig()], code[k, LettersConfig()]):
        assert tokenizer(words)["input_ids"] == tokenizer(letters)["input_ids"]


def test_words_that_are_no_overlapping_kmers_are_refused(code):
    for words, named in (
        ("ACG CGT AAA", "'CGT' and 'AAA'"),
        ("ACGT CGTA", "'ACGT' and 'CGTA'"),
        ("ACG <mask> GTA", "'ACG' and"),
    ):
        with pytest.raises(
            ValueError, match=f"words {named}.* are no 3-mers that overlap by 2 letters"
        ) as error:
            code[3, LettersConfig()](words)
        assert "\n" not in str(error.value)


def test_rows_end_like_whole_sequences(code):
    """A batch is its texts one by one, and a pair is both of them."""
    tokenizer = code[3, LettersConfig()]
    batch = tokenizer(["ACGTA", "", "AC"])["input_ids"]
    assert batch == [tokenizer(text)["input_ids"] for text in ("ACGTA", "", "AC")]
    assert tokenizer("ACGTA", "AC")["input_ids"] == [*batch[0], *batch[2][1:]]
