# Tokens to models.


rule pretrain:
    input:
        needs,
        plan=".plan/{name}.json",
        hashes=".inputs/{name}.json",
    output:
        ".receipts/{name}.json",
    log:
        "logs/{name}.log",
    wildcard_constraints:
        name=names("pretrain"),
    params:
        launcher=launcher,
    threads: 2
    resources:
        mem_mb=16000,
        runtime=2880,
        gpu=1,
    shell:
        STAGE.format("pretrain")


rule finetune:
    input:
        needs,
        plan=".plan/{name}.json",
        hashes=".inputs/{name}.json",
    output:
        ".receipts/{name}.json",
    log:
        "logs/{name}.log",
    wildcard_constraints:
        name=names("finetune"),
    params:
        launcher=launcher,
    threads: 2
    resources:
        mem_mb=16000,
        runtime=720,
        gpu=1,
    shell:
        STAGE.format("finetune")
