import ast
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch.nn.functional import cross_entropy
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

import pipeline.model
from pipeline.config import MaskingConfig, ModelConfig
from pipeline.model import (
    StrandConfig,
    StrandForMaskedLM,
    StrandForSequenceClassification,
    StrandForTokenClassification,
    StrandModel,
)
from pipeline.model.modeling_strand import StrandRotaryEmbedding, rotate
from pipeline.tokens.vocabulary import build_tokenizer

AUTO = (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
HEADS = (
    StrandModel,
    StrandForMaskedLM,
    StrandForSequenceClassification,
    StrandForTokenClassification,
)
ESM_LIKE = {"norm": "layernorm", "activation": "gelu", "use_bias": True}


def padded(lengths=(5, 50, 17), vocab=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, vocab, (len(lengths), max(lengths)), generator=generator)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return {"input_ids": ids * mask, "attention_mask": mask.long()}


def additive(mask_BL):
    return (~mask_BL.bool()).float()[:, None, None] * torch.finfo(torch.float).min


# -- the encoder against other people's


def decoder_states(model, layer_class, config_class, batch):
    """Our weights in a stack of transformers' own layers, run in both directions."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    c = model.config
    theirs = config_class(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        num_attention_heads=c.num_attention_heads,
        num_key_value_heads=c.num_attention_heads,
        head_dim=c.hidden_size // c.num_attention_heads,
        rms_norm_eps=c.norm_eps,
        attn_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )
    x = model.embeddings.weight[batch["input_ids"]]
    angles = LlamaRotaryEmbedding(theirs)(x, torch.arange(x.shape[1])[None])
    for i, ours in enumerate(model.layers):
        layer = layer_class(theirs, i).eval()
        q, k, v = ours.attention.qkv.weight.chunk(3)
        gate, up = ours.mlp.up.weight.chunk(2)
        state = {"self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": v}
        state |= {"self_attn.o_proj": ours.attention.out.weight, "mlp.down_proj": ours.mlp.down.weight}
        state |= {"mlp.gate_proj": gate, "mlp.up_proj": up}
        state |= {"input_layernorm": ours.attention_norm.weight}
        state |= {"post_attention_layernorm": ours.mlp_norm.weight}
        if c.qk_norm:
            state |= {"self_attn.q_norm": ours.attention.query_norm.weight}
            state |= {"self_attn.k_norm": ours.attention.key_norm.weight}
        layer.load_state_dict({f"{name}.weight": value for name, value in state.items()})
        x = layer(x, attention_mask=additive(batch["attention_mask"]), position_embeddings=angles)
        x = x[0] if isinstance(x, tuple) else x
    scale = x.double().square().mean(-1, keepdim=True) + c.norm_eps
    return (x / scale.sqrt() * model.norm.weight).float()


def esm_states(model, batch):
    from transformers import EsmConfig, EsmModel

    c = model.config
    esm = EsmModel(
        EsmConfig(
            vocab_size=c.vocab_size,
            hidden_size=c.hidden_size,
            intermediate_size=c.intermediate_size,
            num_hidden_layers=c.num_hidden_layers,
            num_attention_heads=c.num_attention_heads,
            layer_norm_eps=c.norm_eps,
            position_embedding_type="rotary",
            emb_layer_norm_before=False,
            token_dropout=False,
            pad_token_id=0,
            mask_token_id=4,
            attn_implementation="eager",
        ),
        add_pooling_layer=False,
    ).eval()
    state = {}

    def copy(name, module):
        state[f"{name}.weight"], state[f"{name}.bias"] = module.weight, module.bias

    for i, ours in enumerate(model.layers):
        for part, weight, bias in zip(
            ("query", "key", "value"),
            ours.attention.qkv.weight.chunk(3),
            ours.attention.qkv.bias.chunk(3),
            strict=True,
        ):
            state[f"encoder.layer.{i}.attention.self.{part}.weight"] = weight
            state[f"encoder.layer.{i}.attention.self.{part}.bias"] = bias
        copy(f"encoder.layer.{i}.attention.output.dense", ours.attention.out)
        copy(f"encoder.layer.{i}.attention.LayerNorm", ours.attention_norm)
        copy(f"encoder.layer.{i}.LayerNorm", ours.mlp_norm)
        copy(f"encoder.layer.{i}.intermediate.dense", ours.mlp.up)
        copy(f"encoder.layer.{i}.output.dense", ours.mlp.down)
    copy("encoder.emb_layer_norm_after", model.norm)
    state["embeddings.word_embeddings.weight"] = model.embeddings.weight
    missing, unexpected = esm.load_state_dict(state, strict=False)
    assert not unexpected
    assert not any(name.endswith(("weight", "bias")) for name in missing if "contact_head" not in name)
    return esm(**batch).last_hidden_state


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "qwen3", "esm"])
def test_the_encoder_equals_an_independent_one_with_the_same_weights(tiny_model, name):
    batch = padded()
    if name == "esm":
        model = tiny_model(StrandModel, **ESM_LIKE)
        expected = esm_states(model, batch)
    elif name == "llama":
        from transformers.models.llama.modeling_llama import LlamaConfig, LlamaDecoderLayer

        model = tiny_model(StrandModel)
        expected = decoder_states(model, LlamaDecoderLayer, LlamaConfig, batch)
    else:
        from transformers.models.qwen3.modeling_qwen3 import Qwen3Config, Qwen3DecoderLayer

        model = tiny_model(StrandModel, qk_norm=True)
        expected = decoder_states(model, Qwen3DecoderLayer, Qwen3Config, batch)
    real = batch["attention_mask"].bool()
    torch.testing.assert_close(model(**batch).last_hidden_state[real], expected[real], rtol=1e-4, atol=1e-5)


# -- attention, padding, neighbours


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, ESM_LIKE | {"qk_norm": True}])
def test_kernels_agree_on_every_real_token(tiny_model, options):
    model, batch = tiny_model(**options), padded()
    real = batch["attention_mask"].bool()
    model.set_attn_implementation("eager")
    expected = model(**batch).logits[real]
    model.set_attn_implementation("sdpa")
    torch.testing.assert_close(model(**batch).logits[real], expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_padding_and_neighbours_change_nothing(tiny_model, kernel):
    model, lengths = tiny_model(StrandModel), (5, 50, 500)
    model.set_attn_implementation(kernel)
    batch = padded(lengths)
    together = model(**batch).last_hidden_state
    reversed_order = model(**{k: v.flip(0) for k, v in batch.items()}).last_hidden_state.flip(0)
    wider = model(**{k: torch.nn.functional.pad(v, (0, 12)) for k, v in batch.items()}).last_hidden_state
    to_the_left = torch.nn.functional.pad(batch["input_ids"][:1, :5], (7, 0))
    left = model(to_the_left, (to_the_left > 0).long()).last_hidden_state
    for row, n in enumerate(lengths):
        alone = model(batch["input_ids"][row : row + 1, :n]).last_hidden_state[0]
        for other in (together, reversed_order, wider):
            torch.testing.assert_close(other[row, :n], alone, rtol=1e-5, atol=1e-5)
        if n == 5:
            torch.testing.assert_close(left[0, 7:], alone, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("kind", HEADS)
def test_an_omitted_attention_mask_is_read_off_the_padding(tiny_model, kind):
    model, batch = tiny_model(kind), padded()
    real = batch["attention_mask"].bool()
    given, derived = model(**batch)[0], model(batch["input_ids"])[0]
    if kind is not StrandForSequenceClassification:
        given, derived = given[real], derived[real]
    assert torch.equal(given, derived)


@torch.no_grad()
def test_attention_rows_are_distributions_over_real_tokens(tiny_model):
    model, batch = tiny_model(), padded()
    expected = model(**batch).logits
    model.set_attn_implementation("eager")
    output = model(**batch, output_attentions=True, output_hidden_states=True)
    assert len(output.attentions) == model.config.num_hidden_layers == len(output.hidden_states) - 1
    for weights_BHLL in output.attentions:
        assert weights_BHLL.shape == (3, 2, 50, 50)
        torch.testing.assert_close(weights_BHLL.sum(-1), torch.ones_like(weights_BHLL[..., 0]))
        padding = ~batch["attention_mask"].bool()
        assert weights_BHLL.transpose(1, 3)[padding].abs().max() == 0
    real = batch["attention_mask"].bool()
    torch.testing.assert_close(output.logits[real], expected[real], rtol=1e-5, atol=1e-5)


def test_a_kernel_without_weights_says_so_when_they_are_asked_for(tiny_model):
    model = tiny_model()
    model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match=r"sdpa attention keeps no weights.*attn_implementation='eager'"):
        model(**padded(), output_attentions=True)


# -- rotary positions


@pytest.mark.parametrize("theta", [10_000.0, 500.0])
def test_rotary_tables_and_rotation_equal_llamas(theta):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    rope = {"rope_type": "default", "rope_theta": theta}
    theirs = LlamaRotaryEmbedding(LlamaConfig(hidden_size=64, num_attention_heads=4, rope_parameters=rope))
    ours = StrandRotaryEmbedding(StrandConfig(hidden_size=64, rope_parameters=rope))
    x, positions = torch.randn(2, 4, 7, 16), torch.arange(7)[None]
    expected, _ = apply_rotary_pos_emb(x, x, *theirs(x, positions))
    torch.testing.assert_close(rotate(x, *ours(x, positions)), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shift", [1, 100, 0.37])
def test_rotary_scores_depend_only_on_distance(shift):
    torch.manual_seed(0)
    rotary = StrandRotaryEmbedding(StrandConfig(hidden_size=64))
    q, k = torch.randn(2, 1, 1, 1, 16)

    def score(i, j):
        at = [rotary(q, torch.tensor([[float(place)]])) for place in (i, j)]
        return (rotate(q, *at[0]) * rotate(k, *at[1])).sum()

    torch.testing.assert_close(score(5, 2), score(5 + shift, 2 + shift), rtol=1e-4, atol=1e-4)
    assert abs(score(5, 2) - score(2, 5)) > 1e-2


@torch.no_grad()
def test_places_may_be_real_numbers_and_are_used(tiny_model):
    model, batch = tiny_model(StrandModel), padded()
    plain = model(**batch).last_hidden_state
    counted = torch.arange(50)[None].float()
    shifted = model(**batch, position_ids=counted + 0.25).last_hidden_state
    stretched = model(**batch, position_ids=counted * 1.5).last_hidden_state
    torch.testing.assert_close(shifted, plain, rtol=1e-4, atol=1e-4)
    assert (stretched - plain).abs().max() > 1e-2


# -- heads and losses


@torch.no_grad()
def test_logits_at_target_positions_are_those_of_the_full_head(tiny_model):
    model, batch = tiny_model(), padded()
    places = torch.tensor([0, 3, 51, 120])
    expected = model(**batch).logits.flatten(0, 1)[places]
    assert model(**batch, target_positions=places).logits.shape == (4, 40)
    torch.testing.assert_close(model(**batch, target_positions=places).logits, expected)


@torch.no_grad()
def test_the_masked_loss_is_the_mean_over_labelled_tokens(tiny_model):
    model, batch = tiny_model(), padded()
    labels = torch.full_like(batch["input_ids"], -100)
    labels[0, 2], labels[1, 7] = 9, 11
    output = model(**batch, labels=labels)
    expected = cross_entropy(torch.stack([output.logits[0, 2], output.logits[1, 7]]), torch.tensor([9, 11]))
    torch.testing.assert_close(output.loss, expected)
    shared = model(**batch, labels=labels, num_items_in_batch=4).loss
    torch.testing.assert_close(shared, expected / 2)


@torch.no_grad()
@pytest.mark.parametrize("with_mask", [True, False])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_the_classifier_reads_real_tokens_alone(tiny_model, with_mask, pooling):
    model = tiny_model(StrandForSequenceClassification, num_labels=3, classifier_pooling=pooling)
    batch = padded((5, 50))
    given = batch if with_mask else {"input_ids": batch["input_ids"]}
    output = model(**given, labels=torch.tensor([2, 0]))
    states = model.model(**batch).last_hidden_state
    for row, n in enumerate((5, 50)):
        pooled = states[row, 0] if pooling == "cls" else states[row, :n].mean(0)
        torch.testing.assert_close(output.logits[row], model.classifier(pooled))
        ids = batch["input_ids"][row : row + 1, :n]
        torch.testing.assert_close(model(ids).logits[0], output.logits[row], rtol=1e-5, atol=1e-5)
        on_the_left = torch.nn.functional.pad(ids, (7, 0))
        mask = (on_the_left > 0).long() if with_mask else None
        left = model(on_the_left, attention_mask=mask).logits[0]
        torch.testing.assert_close(left, output.logits[row], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(output.loss, cross_entropy(output.logits, torch.tensor([2, 0])))


def test_embeddings_may_be_given_instead_of_ids_but_not_both(tiny_model):
    model, batch = tiny_model(), padded((9,))
    given = model(inputs_embeds=model.get_input_embeddings()(batch["input_ids"])).logits
    torch.testing.assert_close(given, model(**batch).logits)
    for arguments in ({}, {"input_ids": batch["input_ids"], "inputs_embeds": torch.zeros(1, 9, 32)}):
        with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
            model(**arguments)


def test_gradient_checkpointing_leaves_gradients_alone(tiny_model):
    model, batch = tiny_model().train(), padded()

    def gradients():
        model.zero_grad()
        model(**batch, labels=batch["input_ids"]).loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    plain = gradients()
    model.activation_checkpointing_enable()
    assert model.model.layers[0].gradient_checkpointing
    for name, gradient in gradients().items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(gradient, plain[name], msg=name)


# -- what goes wrong silently between saving and loading


def table(config):
    size = config.hidden_size // config.num_attention_heads
    return torch.tensor([10_000.0 ** (-2 * i / size) for i in range(size // 2)])


@pytest.mark.parametrize("auto", AUTO)
def test_a_reloaded_model_has_its_rotary_table_and_nothing_on_meta(tiny_model, tmp_path, auto):
    model = tiny_model()
    model.save_pretrained(tmp_path)
    again = auto.from_pretrained(tmp_path)
    rotary = getattr(again, "model", again).rotary
    torch.testing.assert_close(rotary.inv_freq, table(model.config))
    torch.testing.assert_close(rotary.original_inv_freq, table(model.config))
    for name, tensor in (*again.named_parameters(), *again.named_buffers()):
        assert tensor.device.type == "cpu", name
    loose = [v for m in again.modules() for v in vars(m).values() if isinstance(v, torch.Tensor)]
    assert not loose, "plain tensor attributes stay on meta"


def test_half_precision_leaves_the_rotary_tables_in_float32(tiny_model, tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path)
    x, far = torch.zeros(1, 1, 32), torch.tensor([[1023]])
    expected = model.model.rotary(x, far)
    loaded = StrandForMaskedLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    cast = StrandForMaskedLM.from_pretrained(tmp_path).to(torch.bfloat16)
    for half in (loaded, cast, tiny_model().half()):
        assert half.decoder.weight.dtype in (torch.bfloat16, torch.float16)
        assert half.model.rotary.inv_freq.dtype == torch.float32
        for ours, reference in zip(half.model.rotary(x.to(half.dtype), far), expected, strict=True):
            assert torch.equal(ours, reference)
    assert loaded(**padded()).logits.dtype == torch.bfloat16
    assert tiny_model().double().model.rotary.inv_freq.dtype == torch.float32


def test_a_missing_bias_does_not_overwrite_loaded_weights(tiny_model, tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path)
    again, report = StrandForMaskedLM.from_pretrained(tmp_path, use_bias=True, output_loading_info=True)
    assert report["missing_keys"]
    assert all(name.endswith(".bias") for name in report["missing_keys"])
    for name, weight in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name
    assert all(again.get_parameter(name).abs().max() == 0 for name in report["missing_keys"])


def test_fine_tuning_starts_from_the_pretrained_encoder(tiny_model, tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path)
    tuned, report = StrandForSequenceClassification.from_pretrained(
        tmp_path, num_labels=3, output_loading_info=True
    )
    assert report["missing_keys"] == {"classifier.weight", "classifier.bias"}
    assert report["unexpected_keys"] == {"decoder.bias"}
    for name, weight in model.model.state_dict().items():
        assert torch.equal(tuned.model.state_dict()[name], weight), name


def test_a_new_network_starts_from_the_configured_spread():
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "vocab_size": 400, "initializer_range": 0.05}
    model = StrandForMaskedLM(StrandConfig(**sizes | ESM_LIKE))
    for name, parameter in model.named_parameters():
        if name.endswith(("attention.out.weight", "mlp.down.weight")):
            assert parameter.std().item() == pytest.approx(0.05 / 8**0.5, rel=0.05), name
        elif parameter.ndim > 1:
            assert parameter.std().item() == pytest.approx(0.05, rel=0.05), name
        else:
            assert set(parameter.tolist()) == {1.0 if name.endswith("norm.weight") else 0.0}, name
    assert model.model.embeddings.weight[0].abs().max() == 0, "padding has a vector"


@pytest.mark.parametrize("kind", HEADS)
def test_every_head_saves_the_whole_auto_map(tiny_model, tmp_path, kind):
    tiny_model(kind).save_pretrained(tmp_path)
    assert StrandConfig.from_pretrained(tmp_path).auto_map == {
        "AutoConfig": "configuration_strand.StrandConfig",
        "AutoModel": "modeling_strand.StrandModel",
        "AutoModelForMaskedLM": "modeling_strand.StrandForMaskedLM",
        "AutoModelForSequenceClassification": "modeling_strand.StrandForSequenceClassification",
        "AutoModelForTokenClassification": "modeling_strand.StrandForTokenClassification",
    }
    for auto, head in zip(AUTO, HEADS, strict=True):
        assert type(auto.from_pretrained(tmp_path)) is head


def test_tied_weights_are_stored_once_and_stay_tied(tiny_model, tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert "decoder.weight" not in file.keys()  # noqa: SIM118
    again, report = StrandForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    batch = padded()
    with torch.no_grad():
        assert torch.equal(again(**batch).logits, model(**batch).logits)
    optimizer = torch.optim.AdamW(again.parameters())
    again(**batch, labels=batch["input_ids"]).loss.backward()
    optimizer.step()
    assert again.decoder.weight is again.model.embeddings.weight
    assert not torch.equal(again.decoder.weight, model.decoder.weight)


def test_an_untied_head_keeps_its_own_weights(tiny_model, tmp_path):
    model = tiny_model(tie_word_embeddings=False)
    model.save_pretrained(tmp_path)
    again = StrandForMaskedLM.from_pretrained(tmp_path)
    assert torch.equal(again.decoder.weight, model.decoder.weight)
    assert not torch.equal(again.decoder.weight, again.model.embeddings.weight)


def test_a_compiled_model_saves_the_names_of_the_plain_one(tiny_model, tmp_path):
    model = tiny_model()
    torch.compile(model).save_pretrained(tmp_path)  # compiles nothing before the first call
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert set(file.keys()) == set(model.state_dict()) - {"decoder.weight"}


# -- configuration


def test_misspelt_settings_are_refused_by_our_schema_though_not_by_transformers():
    """``StrandConfig`` keeps what it does not know, as every transformers config must (checkpoints of later
    versions); what a user writes goes through ``pipeline.config``, which refuses it."""
    assert StrandConfig(hiden_size=64).hidden_size == StrandConfig().hidden_size
    with pytest.raises(ValueError, match="hiden_size"):
        ModelConfig(hiden_size=64)
    with pytest.raises(ValueError, match="hidden_size"):
        ModelConfig(hidden_size="wide")
    with pytest.raises(Exception, match=r"hidden_size.*expected int, got str"):
        StrandConfig(hidden_size="64")


def test_whole_numbers_are_taken_where_yaml_may_write_them():
    assert ModelConfig(rope_theta=10_000).rope_theta == 10_000.0
    assert MaskingConfig(replace=0, keep=1).keep == 1.0
    config = StrandConfig(attention_dropout=0, hidden_dropout=0, rope_parameters={"rope_theta": 500})
    again = StrandConfig(**config.to_dict())
    assert (again.rope_parameters["rope_theta"], again.attention_dropout) == (500, 0)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"hidden_size": 30, "num_attention_heads": 4}, "not divisible"),
        ({"hidden_size": 12, "num_attention_heads": 4}, "is odd"),
        ({"norm": "batchnorm"}, "'batchnorm' is not one of rmsnorm, layernorm"),
        ({"activation": "relu"}, "'relu' is not one of swiglu, gelu"),
        ({"classifier_pooling": "max"}, "'max' is not one of cls, mean"),
    ],
)
def test_impossible_shapes_are_refused(sizes, message):
    with pytest.raises(Exception, match=message):
        StrandConfig(**sizes)


# -- beside a tokenizer


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("scheme", [("dna", 3, True), ("dna", 3, False), ("protein", 1, False)])
def test_what_a_tokenizer_returns_can_be_passed_on_whole(tiny_model, kind, scheme):
    tokenizer = build_tokenizer(*scheme, max_length=64)
    model = tiny_model(kind, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id)
    single = tokenizer(["ACGTACGATTACA", "ACG"], padding=True, return_tensors="pt")
    pair = tokenizer("ACGTAC", "GATTACA", return_tensors="pt")
    for encoded in (single, pair):
        assert set(encoded) == {"input_ids", "attention_mask"}
        assert torch.isfinite(model(**encoded)[0]).all()


def test_travelling_files_import_only_torch_transformers_and_siblings():
    folder = Path(pipeline.model.__file__).parent
    ours = {"torch", "transformers", "huggingface_hub"}
    allowed = ours | {"collections", "itertools", "json", "pathlib", "re"}
    for path in folder.glob("*_strand.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                roots = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1, path
                assert node.module, f"{path}: 'from . import x' is not copied"
                assert (folder / f"{node.module}.py").is_file(), path
                continue
            elif isinstance(node, ast.ImportFrom):
                roots = {node.module.split(".")[0]}
            else:
                continue
            assert roots <= allowed, path
