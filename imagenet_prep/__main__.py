"""Runs `imagenet-prep VERB ...`; imports only the module of this verb, so that help is instant."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import imagenet_prep
from imagenet_prep.core import errors, program, terminal, usage

VERBS = {
    "demo": "make a miniature ILSVRC2012 from real photographs and take it all the way",
    "download": "get the archives of ILSVRC2012, CIFAR-10 or MNIST, resumable and proven",
    "prepare": "archives -> resized, sharded, proven TFRecords",
    "preprocess-imagenet": "step 1 of the 2018 tutorial, as it was typed: download and prepare",
    "verify": "prove that a data set is what its manifest says",
    "resize": "TFRecord shards, whoever wrote them -> smaller images, whole schema, manifest",
    "adopt": "TFRecord shards, whoever wrote them -> a data set with what they lack, as they are",
    "amend": "a data set -> another one, with images left out, relabelled or added",
    "replicate": "a data set -> other folders, a bucket, every node of a cluster, proven there",
    "diff": "which images differ between two data sets: missing ones, labels, bytes",
    "show": "look into a data set, find its images, or look into one of its shards",
    "duplicates": "which images of a set, or of two, are the same picture; lists to leave out",
    "export": "a set as folders, TFDS, WebDataset, Parquet or RecordIO; weights for PyTorch",
    "report": "one page with pictures: is it whole, what is in it, what was done to it",
    "train": "a ResNet or a small net on a prepared data set, one process or many",
    "score": "how good predictions are on a set, by its labels and by other lists of labels",
    "launch": "check every host of a hosts file, then train on all of them",
    "sagemaker": "the same training as a job of Amazon SageMaker",
    "sagemaker-container": "what SageMaker starts in each container of such a job",
    "run-on-hosts": "one command on every host at once",
    "install-horovod": "build Horovod for TensorFlow, MXNet or PyTorch, and prove it",
    "doctor": "check this machine: what is missing or wrong, each with its remedy",
    "completion": "the completion of verbs and flags in bash, zsh or fish",
    "bench-read": "how fast this host feeds a trainer",
    "bench-train": "how fast N ranks train, what they wait for, what 90 epochs cost",
}
# Programs of the AWS tutorial and their replacements.
_REPLACED = {
    "runclust": "imagenet-prep run-on-hosts HOSTS -- COMMAND",
    "copyclust": "imagenet-prep replicate SET hosts:HOSTS:PATH",
}
# These verbs do no linear algebra.
_WITHOUT_BLAS = ("prepare", "verify", "resize", "adopt", "amend", "duplicates")
MODULES = {
    "prepare": "imagenet_prep.pipelines.prepare",
    "launch": "imagenet_prep.pipelines.launch",
    "sagemaker": "imagenet_prep.pipelines.sagemaker",
    "sagemaker-container": "imagenet_prep.pipelines.sagemaker_container",
}


def module_of(verb: str) -> str:
    """Returns the module of a verb."""
    return MODULES.get(verb, f"imagenet_prep.{verb.replace('-', '_')}")


def main() -> NoReturn:
    """Runs the verb named first on the command line; never returns."""
    arguments = sys.argv[1:]
    if arguments and arguments[0] in VERBS:
        verb = arguments[0]
        if verb in _WITHOUT_BLAS:
            # Otherwise, NumPy starts one thread per core in each worker; each spins for 20 ms.
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        program.main(module_of(verb), arguments[1:])
    else:
        program.finish(lambda: _without_verb(arguments))


def _without_verb(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_usage())
        return errors.EXIT_DONE if arguments else errors.UsageError.exit_code
    if arguments[0] in ("--version", "-V", "version"):
        print(f"imagenet-prep {imagenet_prep.__version__}")
        return errors.EXIT_DONE
    verb = arguments[0]
    if verb in _REPLACED:
        terminal.say(f"{verb} is replaced: {_REPLACED[verb]}")
    else:
        meant = usage.meant_by(verb, VERBS)
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
        "Every verb takes --log-format json and --metrics-file FILE: docs/monitoring.md"
    )


if __name__ == "__main__":
    main()
