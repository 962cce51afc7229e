"""Runs `imagenet-prep VERB`. Only the module of the verb is imported, to keep --help fast."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from imagenet_prep.core import errors, program, spelling, terminal, version

VERBS = {
    "demo": "run all steps on a miniature ILSVRC2012 of real photographs",
    "download": "download the archives of ILSVRC2012, CIFAR-10 or MNIST, and verify them",
    "prepare": "resize the images of archives or folders, and write them as TFRecord shards",
    "preprocess-imagenet": "run step 1 of the 2018 AWS tutorial with its flags",
    "verify": "check that a dataset matches its manifest",
    "resize": "make a dataset with smaller images from TFRecord shards that any program wrote",
    "adopt": "add a manifest, an index and labels to TFRecord shards from other programs",
    "amend": "make a new version of a dataset, with images excluded, relabelled or added",
    "forget": "find an image and its copies everywhere, and remove them from a dataset for good",
    "remove-column": "remove a column of a dataset, also an unfinished one",
    "replicate": "copy a dataset to a folder, a bucket or all nodes of a cluster, and verify it",
    "diff": "compare the images of two datasets: presence, labels, bytes and sizes",
    "show": "show a dataset, its images by key or class, a shard, or the steps of a run",
    "duplicates": "find duplicate images in one or two datasets, and list them for exclusion",
    "export": "convert a dataset to folders, TFDS, WebDataset, Parquet or RecordIO; export a model",
    "report": "write an HTML page with the checks, contents, images and history of a dataset",
    "train": "train a ResNet or a small network on a dataset, with one process or many",
    "score": "score predictions against the labels of a dataset and other label lists",
    "launch": "check all hosts of a hosts file, then train on them",
    "sagemaker": "start training as an Amazon SageMaker job",
    "sagemaker-container": "train inside a SageMaker container (SageMaker runs this command)",
    "run-on-hosts": "run a command on all hosts at once",
    "install-horovod": "build Horovod for TensorFlow, MXNet or PyTorch, and test it",
    "doctor": "check this machine, and show how to fix each problem",
    "completion": "print the script that completes verbs and flags in bash, zsh or fish",
    "bench-read": "measure how fast this host reads a dataset for training",
    "bench-train": "measure the training speed of N ranks, and forecast the cost of 90 epochs",
}
# Scripts of the AWS tutorial, and the commands that replace them.
_REPLACED = {
    "runclust": "imagenet-prep run-on-hosts HOSTS -- COMMAND",
    "copyclust": "imagenet-prep replicate SET hosts:HOSTS:PATH",
}
# These verbs do no linear algebra, so they need no BLAS threads.
_WITHOUT_BLAS = ("prepare", "verify", "resize", "adopt", "amend", "duplicates", "forget")
MODULES = {
    "prepare": "imagenet_prep.pipelines.prepare",
    "launch": "imagenet_prep.pipelines.launch",
    "sagemaker": "imagenet_prep.pipelines.sagemaker",
    "sagemaker-container": "imagenet_prep.pipelines.sagemaker_container",
}


def module_of(verb: str) -> str:
    """Returns the name of the module that implements a verb."""
    return MODULES.get(verb, f"imagenet_prep.{verb.replace('-', '_')}")


def main() -> NoReturn:
    """Runs the verb named first on the command line; never returns."""
    arguments = sys.argv[1:]
    if len(arguments) == 2 and arguments[0] == "help":
        arguments = [arguments[1], "--help"]
    if arguments and arguments[0] in VERBS:
        verb = arguments[0]
        if verb in _WITHOUT_BLAS:
            # By default, NumPy starts one thread per core in each worker; each spins for 20 ms.
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        program.main(module_of(verb), arguments[1:])
    else:
        program.finish(lambda: _without_verb(arguments))


def _without_verb(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "--help-all", "help"):
        print(_usage())
        return errors.EXIT_DONE if arguments else errors.UsageError.exit_code
    if arguments[0] in ("--version", "-V", "version"):
        print(f"imagenet-prep {version.version()}")
        return errors.EXIT_DONE
    verb = arguments[0]
    if verb in _REPLACED:
        terminal.say(f"{verb} was replaced. Run: {_REPLACED[verb]}")
    else:
        meant = spelling.meant_by(verb, VERBS)
        terminal.say(f"unknown verb {verb!r}.{meant} All verbs: imagenet-prep --help")
    return errors.UsageError.exit_code


def _usage() -> str:
    verbs = "\n".join(f"  {verb:<19} {summary}" for verb, summary in VERBS.items())
    return (
        "usage: imagenet-prep VERB [flags]\n\n"
        f"verbs:\n{verbs}\n\n"
        "Examples:\n"
        "  imagenet-prep demo\n"
        "  imagenet-prep prepare --source /data/ilsvrc2012 --out /data/imagenet-480\n"
        "  imagenet-prep VERB --help\n\n"
        "Every verb accepts --log-format json and --metrics-file FILE. Manual: docs/monitoring.md"
    )


if __name__ == "__main__":
    main()
