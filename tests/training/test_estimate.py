import time

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from pipeline.config import MaskingConfig, OptimizerConfig, PretrainConfig
from pipeline.keyed import generator
from pipeline.model import FactoredConfig, FactoredForMaskedLM, StrandConfig, StrandForMaskedLM
from pipeline.tokens.kmers import KmerCodec
from pipeline.tokens.masking import mask_batch
from pipeline.training.estimate import estimate, flops_per_token, targets_share
from pipeline.training.optimizer import make_optimizers
from pipeline.training.peaks import measured_peak, peak_of, published_peak

SHAPE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
CPU = torch.device("cpu")


def strand(**changes):
    return StrandForMaskedLM(StrandConfig(**{"vocab_size": 70, **SHAPE, **changes})).train()


def factored():
    residues = list(range(4, 24))
    config = FactoredConfig(num_columns=30, residue_token_ids=residues, num_attention_heads=8, hidden_size=64)
    return FactoredForMaskedLM(config)


def settings(**changes):
    return PretrainConfig(output="out", data=["tokens"], **changes)


# -- work


def counted(model, ids, **inputs):
    """FLOPs of matrix products in a forward and a backward pass, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, **inputs).logits.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    "changes", [{}, {"activation": "gelu", "lm_head": "dense"}, {"tie_word_embeddings": False}]
)
def test_the_work_of_a_strand_model_is_what_torch_counts(changes):
    model = strand(**changes)
    model.set_attn_implementation("eager")
    ids, targets = torch.randint(5, 70, (3, 40)), torch.arange(0, 120, 5)
    expected = counted(model, ids, target_positions=targets)
    assert flops_per_token(model, 40, 1 / 5, 3) * ids.numel() == pytest.approx(expected, rel=1e-12)


def test_windowed_layers_do_the_work_of_their_window():
    every, some = strand(), strand(sliding_window=4, global_every=3)
    saved = flops_per_token(every, 40, 0.2, 1) - flops_per_token(some, 40, 0.2, 1)
    assert saved == 12 * 64 * (40 - 9) * 2  # two of three layers see nine tokens
    assert flops_per_token(every, 9, 0.2, 1) == flops_per_token(some, 9, 0.2, 1)


def test_the_work_of_a_factored_model_is_what_torch_counts():
    model, ids = factored(), torch.randint(4, 24, (16, 30))
    into_vocabulary = 2 * 2 * ids.numel() * 20 * 33  # a product with zeros and ones, there and back
    expected = counted(model, ids) - into_vocabulary
    assert flops_per_token(model, 30, 1.0, 16) * ids.numel() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("k", "overlapping", "run"), [(1, False, None), (3, True, None), (3, True, 6), (6, True, 1)]
)
def test_targets_are_the_share_that_masking_gives(k, overlapping, run):
    codec, masking = KmerCodec("dna", k, overlapping), MaskingConfig(run=run, fraction=0.1)
    rng = generator(0)
    truth = codec.batch([rng.integers(0, 4, 500).astype("uint8") for _ in range(20)])
    masked = mask_batch(truth, codec, masking, rng.integers(0, 2**63, 20).astype("uint64"))
    share = len(masked.targets) / len(truth.ids)
    assert targets_share(masking, k, overlapping) == pytest.approx(share, rel=0.1)


# -- the plan


def test_steps_and_epochs_are_counted_in_letters():
    config = settings(tokens_per_step=1000, steps=300, micro_batch_tokens=500)
    plan = estimate(strand(k=6), config, 50_000, 100, 0.25, 2)
    assert (plan.steps_per_epoch, plan.epochs) == (50, 6)
    assert (plan.length, plan.tokens_per_step) == (125, 250)
    assert plan.flops == plan.flops_per_token * 250 * 300
    assert plan.parameters == sum(p.numel() for p in strand().parameters())
    assert plan.parameters - plan.without_embeddings == 70 * 64


def test_the_plan_in_words():
    lines = estimate(strand(), settings(steps=2000), 4_641_652, 9101, 1.002, 2).lines()
    assert lines[0] == "109,446 parameters, 104,966 without embeddings"
    assert "4,641,652 letters of training text, 9,101 windows of 511 tokens on average" in lines[1]
    assert lines[2].startswith("2,000 steps of 16,384 letters (16,417 tokens) are 7.06 epochs (283.3 ")
    assert "FLOPs per token" in lines[3]
    assert "for each of 2 process(es): weights " in lines[4]


def peak_while(step):
    """Bytes that a step allocates at its peak, as torch's profiler sees them."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    held = peak = 0
    events = profiler.profiler.kineto_results.events()
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


@pytest.mark.parametrize(
    ("changes", "training"),
    [
        ({}, {}),
        ({"activation": "gelu", "norm": "layernorm", "use_bias": True}, {}),
        ({"intermediate_size": 768}, {}),
        ({"vocab_size": 8197, "num_hidden_layers": 1}, {}),
        ({}, {"optimizer": OptimizerConfig(method="muon")}),
        ({"num_hidden_layers": 8}, {"gradient_checkpointing": True}),
        ({}, {"precision": "bf16"}),
    ],
    ids=str,
)
def test_memory_is_within_a_quarter_of_what_a_step_takes(changes, training):
    model, config = strand(hidden_size=96, **changes), settings(micro_batch_tokens=1024, **training)
    model.set_attn_implementation("strand_cpu")
    if config.gradient_checkpointing:
        model.activation_checkpointing_enable()
    ids, targets = torch.randint(5, 70, (16, 64)), torch.arange(0, 1024, 7)
    optimizers = make_optimizers(model, config.optimizer)

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=config.precision == "bf16"):
            logits = model(input_ids=ids, target_positions=targets).logits
        torch.nn.functional.cross_entropy(logits.float(), ids.flatten()[targets]).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    step()  # from here on the optimizer has its states
    states = [state for optimizer in optimizers for state in optimizer.state.values()]
    of_states = sum(tensor.nbytes for state in states for tensor in state.values())
    held = of_states + sum(parameter.nbytes for parameter in model.parameters())
    memory = estimate(model, config, 1024, 16, 1.0, 1).memory
    assert memory.optimizer == pytest.approx(of_states, rel=0.01)
    assert memory.total == pytest.approx(held + peak_while(step), rel=0.25)


def test_several_processes_hold_buffers_to_exchange_gradients():
    alone, two = (estimate(strand(), settings(), 1000, 10, 1.0, n) for n in (1, 2))
    assert two.memory.gradients == 2 * alone.memory.gradients == 8 * alone.parameters


# -- the peak of a device


@pytest.mark.parametrize(
    ("name", "bf16", "float32"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4e12, 66.9e12),
        ("NVIDIA H200", 989.4e12, 66.9e12),
        ("NVIDIA A100-SXM4-80GB", 312e12, 19.5e12),
        ("NVIDIA A100 80GB PCIe", 312e12, 19.5e12),
        ("NVIDIA L40S", 362.05e12, 91.6e12),
        ("NVIDIA A10", 125e12, 31.2e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12, 82.6e12),
        ("Tesla V100-SXM2-16GB", None, 15.7e12),
        ("Tesla T4", None, 8.1e12),
        ("NVIDIA A10G", None, None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None, None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None, None),
    ],
)
def test_published_peaks_are_of_one_device_each(name, bf16, float32):
    assert published_peak(name, "bf16") == (bf16 and pytest.approx(bf16))
    assert published_peak(name, "no") == (float32 and pytest.approx(float32))


@pytest.mark.parametrize("rate", [1e9, 1e11, 1e15])
def test_a_device_that_no_one_published_is_measured_in_half_a_second(rate, monkeypatch):
    clock = [0.0]

    def product(a, b):
        clock[0] += 2 * len(a) ** 3 / rate

    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    monkeypatch.setattr(torch, "mm", product)
    monkeypatch.setattr(torch, "randn", lambda *shape, device: torch.empty(1).expand(shape))
    assert peak_of(CPU, "no") == (pytest.approx(rate), "measured on large matrix products")
    assert 0 < clock[0] < 0.5


def test_what_is_measured_is_what_this_processor_does():
    """The best of many products, as others may use the processor at the same time."""
    a, b = torch.randn(2, 512, 512)
    seconds = []
    for _ in range(50):
        began = time.perf_counter()
        torch.mm(a, b)
        seconds.append(time.perf_counter() - began)
    assert 0.5 < measured_peak(CPU, "no") / (2 * 512**3 / min(seconds)) < 5
