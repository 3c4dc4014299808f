import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import pipeline.embed
import pipeline.model  # teaches the Auto classes
from pipeline.config import EmbedConfig
from pipeline.errors import UserError
from pipeline.model import StrandModel
from pipeline.tokens.vocabulary import load_tokenizer

WIDTH = 32


def random_dna(length, seed):
    return "".join(np.random.default_rng(seed).choice(list("ACGT"), length))


RECORDS = [(f"r{n}", random_dna(n, n)) for n in (40, 7, 23, 2, 31)]
RECORDS[2] = ("n", RECORDS[2][1][:9] + "NN" + RECORDS[2][1][11:])


@pytest.fixture
def embed(rule_folder, tmp_path):
    """Embed the records; return the rows as dictionaries, and the result."""

    def run(name="vectors", records=RECORDS, **changes):
        fasta = tmp_path / "records.fa"
        fasta.write_text("".join(f">{i}\n{s}\n" for i, s in records))
        settings = {"checkpoint": rule_folder / "lm", "input": [fasta]}
        result = pipeline.embed.run(EmbedConfig(output=tmp_path / name, **settings | changes))
        table = pq.read_table(result.folder / "embeddings.parquet")
        return table, result

    return run


def states(folder, sequence, layer):
    """Return the vectors (T, D) of a sequence's tokens alone, by the Hugging Face road."""
    model = StrandModel.from_pretrained(folder).eval()
    inputs = load_tokenizer(folder)(sequence, return_tensors="pt")
    with torch.no_grad():
        outputs = model(**inputs, output_hidden_states=True)
    chosen = outputs.last_hidden_state if layer == "last" else outputs.hidden_states[layer]
    return chosen[0, 1:-1].numpy()


def test_a_records_vector_is_the_mean_of_its_tokens(embed, rule_folder):
    table, result = embed()
    assert table.schema.names == ["id", "vector"]
    assert table.schema.field("vector").type.list_size == WIDTH
    assert table["id"].to_pylist() == [name for name, _ in RECORDS]
    for row, (_, sequence) in zip(table.to_pylist(), RECORDS, strict=True):
        expected = states(rule_folder / "lm", sequence, "last").mean(0)
        assert row["vector"] == pytest.approx(expected.tolist(), abs=1e-5)
    assert result.manifest["counts"] == {"read": 5, "rows": 5}


def test_tokens_have_vectors_and_the_letters_they_cover(embed, rule_folder):
    table, _ = embed(pooling="none")
    assert table.schema.names == ["id", "start", "end", "vector"]
    rows = table.to_pylist()
    tokenizer = load_tokenizer(rule_folder / "lm")
    for name, sequence in RECORDS:
        own = [row for row in rows if row["id"] == name]
        tokens = tokenizer.tokenize(sequence)
        assert [sequence[row["start"] : row["end"]] for row in own] == tokens
        covered = {place for row in own for place in range(row["start"], row["end"])}
        assert covered == set(range(len(sequence)))
        expected = states(rule_folder / "lm", sequence, "last")
        assert np.array([row["vector"] for row in own]) == pytest.approx(expected, abs=1e-5)


def test_tokens_and_records_agree(embed):
    means, tokens = embed("means")[0].to_pandas(), embed("tokens", pooling="none")[0].to_pandas()
    grouped = tokens.groupby("id")["vector"].apply(lambda vectors: np.stack(vectors.tolist()).mean(0))
    for _, row in means.iterrows():
        assert row["vector"] == pytest.approx(grouped[row["id"]], abs=1e-6)


@pytest.mark.parametrize(("layer", "same_as"), [(0, 0), (1, "last"), (-1, "last"), (-2, 0)])
def test_any_layer_may_be_chosen(embed, rule_folder, layer, same_as):
    """The model has one layer; 0 is the token table itself."""
    table, _ = embed(layer=layer, pooling="none", records=RECORDS[:1])
    sequence = RECORDS[0][1]
    vectors = np.array(table["vector"].to_pylist())
    if same_as == 0:
        ids = load_tokenizer(rule_folder / "lm")(sequence)["input_ids"][1:-1]
        expected = StrandModel.from_pretrained(rule_folder / "lm").embeddings.weight[ids].detach().numpy()
    else:
        expected = states(rule_folder / "lm", sequence, same_as)
    assert vectors == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("size", [1, 2])
def test_the_batch_does_not_matter(embed, size):
    usual, other = embed("usual")[0], embed("other", batch_size=size)[0]
    assert usual["id"] == other["id"]
    ours, theirs = (np.array(table["vector"].to_pylist()) for table in (usual, other))
    assert ours == pytest.approx(theirs, abs=1e-5)


def test_a_classifier_has_vectors_too(embed, classifier_folder):
    table, _ = embed(checkpoint=classifier_folder)
    expected = states(classifier_folder, RECORDS[0][1], "last").mean(0)
    assert table["vector"][0].as_py() == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checkpoint": "corpus"}, r"corpus: no config.json, so no checkpoint; pass pretrain's folder"),
        ({"checkpoint": "nowhere"}, "nowhere: no such file or folder"),
        ({"layer": 2}, r"^layer: 2: the model has 0 \(embedding\) to 1, or -1 \(last\)$"),
        ({"layer": -3}, r"^layer: -3: the model has 0 "),
        (
            {"records": [("a", "ACG"), ("long", "A" * 50)]},
            "^record 'long': 50 letters are 48 tokens, more than",
        ),
        ({"records": []}, "records.fa: no records in it; nothing to read"),
    ],
)
def test_mistakes_are_told_in_a_line(embed, rule_folder, tmp_path, changes, message):
    if "checkpoint" in changes:
        changes = {"checkpoint": rule_folder / changes["checkpoint"]}
    with pytest.raises(UserError, match=message):
        embed(**changes)
    assert not (tmp_path / "vectors").exists()
