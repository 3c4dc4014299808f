import ast
import copy
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM

import pipeline.model
from pipeline.attention.contacts import in_context
from pipeline.attention.couplings import coupling_scores
from pipeline.model.configuration_factored import FactoredConfig
from pipeline.model.modeling_factored import FactoredForMaskedLM, FactoredModel

RESIDUES = [4, 6, 5, 9]
GAP = 8
L, H, K, V = 7, 3, 4, 11


@pytest.fixture
def model():
    torch.manual_seed(1)
    config = FactoredConfig(
        num_columns=L,
        residue_token_ids=RESIDUES,
        vocab_size=V,
        num_attention_heads=H,
        hidden_size=H * K,
        value_initializer_range=0.7,
    )
    model = FactoredForMaskedLM(config)
    torch.nn.init.normal_(model.bias)
    return model.eval()


def rows(n=5, tokens=(*RESIDUES, GAP, 0)):
    generator = torch.Generator().manual_seed(n)
    return torch.tensor(tokens)[torch.randint(len(tokens), (n, L), generator=generator)]


def slow_attention(model):
    """A[h][i][j] by its definition, in double precision."""
    q, k = model.model.queries.detach().double(), model.model.keys.detach().double()
    A = torch.zeros(H, L, L, dtype=torch.double)
    for h in range(H):
        for i in range(L):
            e = {j: math.exp(float(q[h, i] @ k[h, j]) / math.sqrt(K)) for j in range(L) if j != i}
            for j, value in e.items():
                A[h, i, j] = value / sum(e.values())
    return A


def slow_couplings(model):
    """J[i][j] by its definition, residue told of in the first axis, residue told in the second."""
    A, W = slow_attention(model), model.model.values.detach().double() / K**0.5
    ways = [[(A[:, i, j, None, None] * W).sum(0) for j in range(L)] for i in range(L)]
    return [[(ways[i][j] + ways[j][i].T) / 2 for j in range(L)] for i in range(L)]


def slow_logits(model, ids):
    J, bias = slow_couplings(model), model.bias.double().view(L, V)
    logits = bias.repeat(len(ids), 1, 1)
    for b, row in enumerate(ids.tolist()):
        for i in range(L):
            for j, token in enumerate(row):
                if token in RESIDUES:
                    told = J[i][j][RESIDUES.index(token)]
                    for r, residue in enumerate(RESIDUES):
                        logits[b, i, residue] += told[r]
    return logits


def test_forward_is_the_definition(model):
    ids = rows()
    with torch.no_grad():
        out = model(ids, output_attentions=True)
        torch.testing.assert_close(out.logits.double(), slow_logits(model, ids), atol=1e-6, rtol=0)
        torch.testing.assert_close(out.attentions[0][2].double(), slow_attention(model), atol=1e-6, rtol=0)
    assert model(ids).attentions is None


def test_targets_are_the_same_numbers(model):
    ids, positions = rows(), torch.tensor([0, 8, 13, 34])
    with torch.no_grad():
        chosen = model(ids, target_positions=positions).logits
        torch.testing.assert_close(chosen, model(ids).logits.flatten(0, 1)[positions], atol=1e-7, rtol=0)


def test_no_position_sees_its_own_token(model):
    ids = rows()
    with torch.no_grad():
        before = model(ids).logits
        for i in range(L):
            for token in (*RESIDUES, GAP):
                changed = ids.clone()
                changed[:, i] = token
                after = model(changed).logits
                assert torch.equal(after[:, i], before[:, i])
    assert not torch.equal(after, before)


def test_gaps_and_masked_tokens_tell_nothing(model):
    ids = rows(tokens=RESIDUES)
    gapped, mask = ids.clone(), torch.ones_like(ids)
    gapped[:, 3] = GAP
    mask[:, 3] = 0
    with torch.no_grad():
        unseen = model(gapped).logits
        assert torch.equal(model(ids, attention_mask=mask).logits, unseen)
        alone = model(torch.full((1, L), GAP)).logits[0]
    assert torch.equal(alone, model.bias.view(L, V))
    assert not torch.equal(unseen, model(ids).logits)


def test_loss_is_the_mean_over_targets(model):
    ids = rows()
    labels = torch.where(torch.isin(ids, torch.tensor(RESIDUES)), ids, -100)
    out = model(ids, labels=labels)
    chosen = out.logits.log_softmax(-1)[labels != -100]
    expected = -chosen[torch.arange(len(chosen)), labels[labels != -100]].mean()
    torch.testing.assert_close(out.loss, expected, atol=1e-6, rtol=0)
    out.loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_contacts_are_corrected_coupling_norms_in_context(model):
    J = slow_couplings(model)
    norms = torch.zeros(L, L, dtype=torch.double)
    for i in range(L):
        for j in range(L):
            pair = J[i][j]
            pair = pair - pair.mean(0, keepdim=True) - pair.mean(1, keepdim=True) + pair.mean()
            norms[i, j] = pair.norm() if i != j else 0
    expected = norms - norms.sum(1)[:, None] * norms.sum(0)[None] / norms.sum()
    expected.fill_diagonal_(0)
    expected = torch.from_numpy(in_context(expected.numpy()))
    scores = model.predict_contacts()
    torch.testing.assert_close(scores.double(), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(scores, scores.T, atol=1e-6, rtol=0)


def test_couplings_have_no_direction(model):
    with torch.no_grad():
        J = model.model.couplings()
    assert torch.equal(J, J.permute(1, 0, 3, 2))
    assert J.abs().max() > 0.1


def test_penalty_is_the_squares_of_all_pairs_and_only_in_training(model):
    ids = rows()
    J = slow_couplings(model)
    squares = sum(J[i][j].square().sum() for i in range(L) for j in range(i + 1, L))
    assert model.train()(ids).penalty is None
    clean = model(ids, labels=ids).loss
    model.config.coupling_decay = 0.3
    out = model(ids, labels=ids)
    torch.testing.assert_close(out.penalty.double(), 0.3 * squares, atol=1e-5, rtol=0)
    torch.testing.assert_close(out.loss, clean + out.penalty, atol=1e-6, rtol=0)
    out.penalty.backward()
    assert all(p.grad.abs().sum() > 0 for p in model.model.parameters())
    assert model.eval()(ids, labels=ids).penalty is None
    assert torch.equal(model(ids, labels=ids).loss, clean)


def test_planted_pair_is_found_by_training():
    torch.manual_seed(0)
    config = FactoredConfig(
        num_columns=10, residue_token_ids=RESIDUES, vocab_size=V, num_attention_heads=4, hidden_size=32
    )
    model = FactoredForMaskedLM(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    tokens = torch.tensor(RESIDUES)
    for _ in range(150):
        ids = tokens[torch.randint(4, (64, 10))]
        ids[:, 8] = ids[:, 1]
        optimizer.zero_grad()
        model(ids, labels=ids).loss.backward()
        optimizer.step()
    scores = model.predict_contacts()
    assert divmod(int(scores.argmax()), 10) in {(1, 8), (8, 1)}
    others = [(i, j) for i in range(10) for j in range(i + 1, 10) if abs(i - 1) > 1 or abs(j - 8) > 1]
    assert scores[1, 8] > 2 * max(scores[pair] for pair in others)
    corrected = coupling_scores(model.model.couplings().detach().numpy())
    assert corrected[1, 8] > 5 * max(corrected[pair] for pair in others)


def test_saved_and_loaded_model_is_the_same(model, tmp_path):
    model.save_pretrained(tmp_path)
    loaded, info = AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded).__name__ == "FactoredForMaskedLM"
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    ids = rows()
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)
        assert loaded(ids).logits.isfinite().all()
        assert torch.equal(loaded.predict_contacts(), model.predict_contacts())
        base = AutoModel.from_pretrained(tmp_path)
        told = base(ids).last_hidden_state
    assert isinstance(base, FactoredModel)
    assert told.shape == (5, L, 4)
    assert torch.equal(told, model.model(ids).last_hidden_state)
    assert AutoConfig.from_pretrained(tmp_path).residue_token_ids == RESIDUES


def test_a_checkpoint_of_another_version_is_refused(model, tmp_path):
    """Those that name none are older than symmetric couplings, by which other logits are had."""
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    settings = json.loads(path.read_text())
    assert settings.pop("factored_version") == 3
    for changed, named in (({}, "1: written by older"), ({"factored_version": 4}, "4: written by newer")):
        path.write_text(json.dumps(settings | changed))
        for auto in (AutoConfig, AutoModelForMaskedLM):
            with pytest.raises(Exception, match=f"factored_version={named} code, .*train again, use the"):
                auto.from_pretrained(tmp_path)
    model.save_pretrained(tmp_path)
    assert copy.deepcopy(AutoConfig.from_pretrained(tmp_path)).factored_version == 3


def test_missing_weights_are_filled_and_loaded_ones_kept(model, tmp_path):
    from safetensors.torch import load_file, save_file

    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.values"], tensors["bias"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded = FactoredForMaskedLM.from_pretrained(tmp_path)
    assert torch.equal(loaded.model.queries, model.model.queries)
    assert torch.equal(loaded.bias, torch.zeros(L * V))
    assert 0.1 < loaded.model.values.std() < 2


def test_new_weights_are_finite_and_spread():
    model = FactoredForMaskedLM(FactoredConfig(num_columns=50, residue_token_ids=list(range(4, 24))))
    assert model.model.queries.std().item() == pytest.approx(1.0, abs=0.02)
    assert model.model.values.std().item() == pytest.approx(0.4, abs=0.02)
    assert model.predict_contacts().isfinite().all()


def test_a_process_without_the_package_opens_the_checkpoint(model, tmp_path):
    model.save_pretrained(tmp_path / "checkpoint")
    ids = rows()
    code = (
        "import sys, torch\nfrom transformers import AutoModelForMaskedLM\n"
        "model = AutoModelForMaskedLM.from_pretrained(sys.argv[1], trust_remote_code=True)\n"
        "assert 'pipeline' not in sys.modules\n"
        "torch.save(model(torch.load(sys.argv[2])).logits.detach(), sys.argv[3])\n"
    )
    torch.save(ids, tmp_path / "ids.pt")
    paths = [str(tmp_path / name) for name in ("checkpoint", "ids.pt", "logits.pt")]
    environment = {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-I", "-c", code, *paths]
    if subprocess.run([sys.executable, "-I", "-c", "import pipeline"], cwd=tmp_path).returncode == 0:
        pytest.skip("pipeline is installed in this environment: no stranger to be had")
    subprocess.run(command, check=True, cwd=tmp_path, env=environment)
    with torch.no_grad():
        assert torch.equal(torch.load(tmp_path / "logits.pt"), model(ids).logits)


@pytest.mark.parametrize("shape", [(2, L + 2), (2, L - 1), (L,)])
def test_rows_of_another_length_are_refused(model, shape):
    with pytest.raises(ValueError, match=rf"alignment of {L} columns"):
        model(torch.full(shape, RESIDUES[0]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"self_attention": True}, "self_attention: factored attention has no such option"),
        ({"residual": True, "num_hidden_layers": 2}, "num_hidden_layers, residual"),
        ({"num_columns": 1}, "num_columns=1"),
        ({"hidden_size": 13}, "hidden_size=13"),
        ({"coupling_decay": -0.1}, "coupling_decay=-0.1"),
        ({"residue_token_ids": [4, 4]}, "different tokens"),
        ({"residue_token_ids": [4, 99]}, "vocab_size=11"),
    ],
)
def test_configurations_that_make_no_sense_are_refused(change, message):
    good = {
        "num_columns": L,
        "residue_token_ids": RESIDUES,
        "vocab_size": V,
        "num_attention_heads": H,
        "hidden_size": H * K,
    }
    FactoredConfig(**good)
    with pytest.raises(Exception, match=message):
        FactoredConfig(**(good | change))


def test_columns_must_be_given():
    with pytest.raises(TypeError, match="num_columns"):
        FactoredConfig(residue_token_ids=RESIDUES)


def test_travelling_files_import_only_each_other():
    folder = Path(pipeline.model.__file__).parent
    for path in folder.glob("*_factored.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                top = (node.module or "").split(".")[0]
                assert node.level == 1 or top in {
                    "dataclasses",
                    "torch",
                    "transformers",
                    "huggingface_hub",
                }, top
            assert not isinstance(node, ast.Import) or [name.name for name in node.names] == ["torch"]
