"""The stage that scores sequences with a classifier."""

from pipeline.artifacts import Result, Workspace, produce
from pipeline.config import PredictConfig
from pipeline.log import say

CHUNK = 4096


def run(config: PredictConfig) -> Result:
    """Write scores.tsv: id, one probability for each class, and the likeliest class, in input order."""

    def build(workspace: Workspace) -> None:
        import pandas as pd

        from pipeline.log import track
        from pipeline.sequences.readers import load_sequences
        from pipeline.training.classifier import (
            check_lengths,
            class_logits,
            class_names,
            load_classifier,
            softmax,
        )

        model, codec = load_classifier(config.checkpoint)
        records = load_sequences(config.input, codec.alphabet, config.sequence_column, config.id_column)
        check_lengths(records, codec, model.config.max_position_embeddings)
        names = class_names(model)
        tables = []
        chunks = [records[i : i + CHUNK] for i in range(0, len(records), CHUNK)]
        for chunk in track(chunks, len(chunks), "predicting"):
            probabilities = softmax(class_logits(model, codec, [s for _, s in chunk], config.batch_size))
            table = pd.DataFrame(probabilities, columns=pd.Index(names))
            table.insert(0, "id", [name for name, _ in chunk])
            table["label"] = [names[i] for i in probabilities.argmax(1)]
            tables.append(table)
        scores = pd.concat(tables)
        scores.to_csv(workspace.path / "scores.tsv", sep="\t", index=False, float_format="%.6g")
        workspace.counts |= {"read": len(records), "scored": len(scores)}
        labels = scores["label"].tolist()
        workspace.counts["labels"] = {name: labels.count(name) for name in names}
        say(f"{len(scores)} sequences scored: {config.output / 'scores.tsv'}")

    inputs = {"checkpoint": config.checkpoint, **{f"input{i}": path for i, path in enumerate(config.input)}}
    return produce("predict", config, inputs, build)


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="predict")
