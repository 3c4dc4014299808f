"""Planted contacts, found again: simulated families, factored attention beside mean field, five seeds.

    python benchmarks/planted_contacts.py --output planted-contacts

Each world is another family with other contacts (Potts model, random tree); the stages that make it, train
on it and read it are those of configs/demo.yaml, with other seeds. One run folder for each seed; what is
finished is not made again. Target: at least .95 of the precision of mean field, at L and averaged over seeds.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import yaml

DEMO = Path(__file__).parent.parent / "configs" / "demo.yaml"
STAGES = ("world", "family", "family_tokens", "family_model", "family_contacts")
SHOWN = {"factored": "value", "mean_field": "mean_field", "mutual_information": "baseline"}


def one_seed(folder: Path, seed: int) -> dict[str, float]:
    """Return the precision at L of each method on a family of its own."""
    config = yaml.safe_load(DEMO.read_text())
    stages = {name: config["stages"][name] for name in STAGES}
    stages["world"]["promoters"] = 50
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.with_suffix(".yaml")
    path.write_text(yaml.safe_dump({"simulated": True, "seed": seed, "stages": stages}, sort_keys=False))
    command = [sys.executable, "-m", "pipeline.cli", "run", "--config", path, "--output", folder]
    subprocess.run(command, check=True, stdout=sys.stderr)
    metrics = json.loads((folder / "family_contacts" / "metrics.json").read_text())
    return {method: metrics["contact_precision_at_l"][key] for method, key in SHOWN.items()}


def main() -> None:
    """Run all seeds and print one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    found = [one_seed(options.output / f"seed-{seed}", seed) for seed in range(options.seeds)]
    by_method = {method: [round(each[method], 3) for each in found] for method in SHOWN}
    mean = {method: round(float(np.mean(values)), 3) for method, values in by_method.items()}
    line = {"simulated": True, "precision_at_l": by_method, "mean": mean}
    print(json.dumps(line | {"share_of_mean_field": round(mean["factored"] / mean["mean_field"], 3)}))


if __name__ == "__main__":
    main()
