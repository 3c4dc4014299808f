# Sequence files to tokens.


rule simulate:
    input:
        needs,
        plan=".plan/{name}.json",
        hashes=".inputs/{name}.json",
    output:
        ".receipts/{name}.json",
    log:
        "logs/{name}.log",
    wildcard_constraints:
        name=names("simulate"),
    params:
        launcher=launcher,
    threads: 1
    resources:
        mem_mb=4000,
        runtime=30,
    shell:
        STAGE.format("simulate")


rule prepare:
    input:
        needs,
        plan=".plan/{name}.json",
        hashes=".inputs/{name}.json",
    output:
        ".receipts/{name}.json",
    log:
        "logs/{name}.log",
    wildcard_constraints:
        name=names("prepare"),
    params:
        launcher=launcher,
    threads: 1
    resources:
        mem_mb=8000,
        runtime=240,
    shell:
        STAGE.format("prepare")


rule tokenize:
    input:
        needs,
        plan=".plan/{name}.json",
        hashes=".inputs/{name}.json",
    output:
        ".receipts/{name}.json",
    log:
        "logs/{name}.log",
    wildcard_constraints:
        name=names("tokenize"),
    params:
        launcher=launcher,
    threads: 1
    resources:
        mem_mb=8000,
        runtime=240,
    shell:
        STAGE.format("encode")


rule build_tokenizer:
    input:
        needs,
        plan=".plan/{name}.json",
        hashes=".inputs/{name}.json",
    output:
        ".receipts/{name}.json",
    log:
        "logs/{name}.log",
    wildcard_constraints:
        name=names("build-tokenizer"),
    params:
        launcher=launcher,
    threads: 1
    resources:
        mem_mb=2000,
        runtime=10,
    shell:
        STAGE.format("build_tokenizer")
