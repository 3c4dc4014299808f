# What the models found.


rule predict:
    input:
        needs,
        plan=".plan/{name}.json",
        hashes=".inputs/{name}.json",
    output:
        ".receipts/{name}.json",
    log:
        "logs/{name}.log",
    wildcard_constraints:
        name=names("predict"),
    params:
        launcher=launcher,
    threads: 2
    resources:
        mem_mb=8000,
        runtime=720,
    shell:
        STAGE.format("predict")


rule motifs:
    input:
        needs,
        plan=".plan/{name}.json",
        hashes=".inputs/{name}.json",
    output:
        ".receipts/{name}.json",
    log:
        "logs/{name}.log",
    wildcard_constraints:
        name=names("motifs"),
    params:
        launcher=launcher,
    threads: 2
    resources:
        mem_mb=16000,
        runtime=240,
    shell:
        STAGE.format("motifs")


rule contacts:
    input:
        needs,
        plan=".plan/{name}.json",
        hashes=".inputs/{name}.json",
    output:
        ".receipts/{name}.json",
    log:
        "logs/{name}.log",
    wildcard_constraints:
        name=names("contacts"),
    params:
        launcher=launcher,
    threads: 2
    resources:
        mem_mb=16000,
        runtime=240,
    shell:
        STAGE.format("contacts")


rule embed:
    input:
        needs,
        plan=".plan/{name}.json",
        hashes=".inputs/{name}.json",
    output:
        ".receipts/{name}.json",
    log:
        "logs/{name}.log",
    wildcard_constraints:
        name=names("embed"),
    params:
        launcher=launcher,
    threads: 2
    resources:
        mem_mb=8000,
        runtime=720,
    shell:
        STAGE.format("embed")


rule report:
    input:
        needs,
        plan=".plan/{name}.json",
        hashes=".inputs/{name}.json",
    output:
        ".receipts/{name}.json",
    log:
        "logs/{name}.log",
    wildcard_constraints:
        name=names("report"),
    params:
        launcher=launcher,
    threads: 1
    resources:
        mem_mb=4000,
        runtime=30,
    shell:
        STAGE.format("report")
