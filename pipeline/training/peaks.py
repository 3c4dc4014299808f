"""How many FLOPs per second a device can do at most: its maker's figure, or what a large product gives."""

import re
import time

import torch

# Dense matrix products, in 1e12 FLOP/s, from the makers' data sheets and white papers: in bf16 with sums in
# float32, without sparsity; in float32 without TensorFloat-32. What a name has besides (PCIe, a laptop, a
# slice of a GPU) makes it another device, whose figure differs.
PUBLISHED = {
    r"B200": (2250, 75),
    r"H200( 141GB HBM3e)?": (989.4, 66.9),
    r"H200 NVL": (835.5, 60),
    r"H100( 80GB HBM3| SXM5.*)?": (989.4, 66.9),
    r"GH200 (96GB HBM3|480GB|144G HBM3e)": (989.4, 66.9),
    r"H100 PCIe": (756, 51.2),
    r"H100 NVL": (835.5, 60),
    r"A100.SXM4.(40|80)GB": (312, 19.5),
    r"A100.PCIE.40GB|A100 80GB PCIe": (312, 19.5),
    r"A30": (165, 10.3),
    r"A40": (149.7, 37.4),
    r"A10": (125, 31.2),
    r"L40S": (362.05, 91.6),
    r"L40": (181.05, 90.5),
    r"L4": (121, 30.3),
    r"RTX A6000": (154.8, 38.7),
    r"RTX 6000 Ada Generation": (364.2, 91.1),
    r"RTX 4090": (165.2, 82.6),
    r"RTX 3090": (71, 35.6),
    r"V100.SXM2.(16|32)GB": (None, 15.7),
    r"V100.PCIE.(16|32)GB": (None, 14),
    r"T4": (None, 8.1),
}
LONGEST = 0.4  # seconds of measuring


def published_peak(name: str, precision: str) -> float | None:
    """Return the FLOP/s that a GPU's maker states, given torch's name for it; None where that is unknown.

    V100 and T4 have no units for bf16; there, too, it is to be measured.
    """
    bare = re.sub(r"^(NVIDIA |Tesla |GeForce |Quadro )+", "", name)
    for pattern, (half, single) in PUBLISHED.items():
        figure = half if precision == "bf16" else single
        if figure and re.fullmatch(pattern, bare):
            return figure * 1e12
    return None


def measured_peak(device: torch.device, precision: str) -> float:
    """Return the FLOP/s of products of square matrices: the best of what fits in less than half a second.

    The matrices grow as long as there is time: a fast device needs large ones, a slow one has time for few.
    """
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    wait = torch.get_device_module(device).synchronize
    best, size, end = 0.0, 256, time.perf_counter() + LONGEST
    needed = 0.0  # seconds of one product, and three of the next size
    while size <= 8192 and time.perf_counter() + needed < end:
        a, b = torch.randn(2, size, size, device=device).to(dtype)
        torch.mm(a, b)
        seconds = []
        for _ in range(3):
            wait()
            began = time.perf_counter()
            torch.mm(a, b)
            wait()
            seconds.append(time.perf_counter() - began)
        best = max(best, 2 * size**3 / min(seconds))
        size, needed = 2 * size, 8 * 5 * min(seconds)
    return best


def peak_of(device: torch.device, precision: str) -> tuple[float, str]:
    """Return a device's peak in FLOP/s, and in words where the number is from."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        if (figure := published_peak(name, precision)) is not None:
            return figure, f"published for {name}"
    return measured_peak(device, precision), "measured on large matrix products"
