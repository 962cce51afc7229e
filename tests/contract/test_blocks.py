"""Every block of the documents that makes or reads data has a test that checks a value.

`AS_TYPED` has the blocks that a test takes from the page itself, with other paths and numbers.
`ELSEWHERE` has the blocks that no test can take from the page; their test makes the same data by
the same verbs. A new block needs an entry in one of them.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.kit import blocks
from tests.kit.command import REPOSITORY

# The name of a block (tests/kit/blocks.py); the file and name of its test; the checked value.
AS_TYPED = """
README.md: Read a dataset
    e2e/test_documented_code.py
    test_the_readme_reads_each_example_once_per_epoch
    the examples of two epochs, colours of their classes, states
api.md: Types
    e2e/test_documented_code.py
    test_the_page_of_types_reads_bytes
    type and shape of images, the labels
columns.md: Write
    e2e/test_documented_code.py
    test_the_latents_of_the_page_are_those_of_images_and_their_mirrors
    range, scale, view; latents of each image and of its mirror image
columns.md: Write 2
    e2e/test_documented_code.py
    test_the_tokens_of_the_page_are_those_of_their_keys
    the tokens of each key
columns.md: Read
    e2e/test_documented_code.py
    test_the_latents_of_the_page_are_those_of_images_and_their_mirrors
    the latents that `mirrored` chooses, for the images next to them
evaluation.md: Networks of your own
    e2e/test_documented_code.py
    test_a_network_is_scored_by_its_labels_and_the_lists
    top-1 by the labels of the dataset and of a list
pytorch.md: PyTorch: one loop
    frameworks/test_frameworks.py
    test_the_code_of_the_page_runs
    the number of images
pytorch.md: PyTorch: validation
    frameworks/test_evaluation.py
    test_top1_of_the_loops_for_pytorch_is_exact_on_any_number_of_ranks
    top-1 of three networks
lightning.md: Lightning
    frameworks/test_ranks.py
    test_the_programs_of_the_page_read_each_image_once_per_epoch
    the images of an epoch and of a validation, over two ranks
lightning.md: Accelerate
    frameworks/test_ranks.py
    test_the_programs_of_the_page_read_each_image_once_per_epoch
    the images of an epoch and of a validation, over two ranks
reading.md: Evaluation
    read/test_documented_loops.py
    test_top1_of_a_page_is_exact
    top-1 of three networks
photographs.md: Classify a photograph
    e2e/test_photographs.py
    test_a_network_trains_is_judged_by_what_was_held_out_and_shows_its_mistakes
    the class of a photograph, as in the predictions of the evaluation
photographs.md: Classify a photograph 2
    frameworks/test_training.py
    test_the_page_classifies_a_photograph_as_the_evaluation_does
    the class of a photograph, as in the predictions of the evaluation
pytorch.md: With a DataLoader's workers
    frameworks/test_frameworks.py
    test_the_code_of_the_page_runs
    the number of images
pytorch.md: Crops of your own
    frameworks/test_frameworks.py
    test_the_code_of_the_page_runs
    the number of images
reading.md: The crop of image generators
    e2e/test_documented_code.py
    test_the_crop_of_generators_has_the_bytes_of_pillow
    Pillow's bytes
reading.md: Backends
    frameworks/test_documented_code.py
    test_images_in_memory_of_pytorch_are_those_of_the_reader
    the pixels, as in memory of NumPy
train.md: Which images a model has seen
    e2e/test_documented_code.py
    test_a_custom_loop_logs_which_images_each_step_saw
    the images of each step
trainers.md: Keras
    e2e/test_documented_code.py
    test_keras_gets_labels_from_0
    labels and colours of all images
trainers.md: NVIDIA DALI
    e2e/test_documented_code.py
    test_dalis_own_reader_gets_labels_from_0
    labels and bytes of all images
trainers.md: TensorFlow Datasets
    oracles/test_tfds.py
    test_the_code_of_the_page_gets_labels_from_0
    label and shape of an image, the names of labels
trainers.md: LitData and MosaicML streaming
    e2e/test_documented_code.py
    test_examples_are_passed_to_other_writers_with_labels_from_0
    labels and bytes of all images
$ README.md: imagenet-prep
    e2e/test_documented_commands.py
    test_the_readme_makes_verifies_and_reports_a_dataset
    labels of all images, their number, the page
$ prepare.md: Prepare a dataset
    e2e/test_documented_commands.py
    test_prepare_is_planned_made_and_shown
    labels of all images, records and class that are shown
$ amend.md: Make a new dataset from an existing one
    e2e/test_documented_commands.py
    test_amend_excludes_and_relabels_what_the_lists_name
    labels of all images
$ diff.md: Compare two datasets, or find a photograph in one
    e2e/test_documented_commands.py
    test_diff_and_show_find_what_differs_and_what_is_there
    the number of differences, the photograph
$ duplicates.md: Find duplicates and contamination
    e2e/test_documented_commands.py
    test_duplicates_finds_the_images_of_a_copy
    the images that are duplicates
$ export.md: Export to other formats
    e2e/test_documented_commands.py
    test_exports_hold_every_image_of_the_dataset
    the number of images in each form
$ mxnet.md: Your .rec files
    e2e/test_documented_commands.py
    test_exports_hold_every_image_of_the_dataset
    the labels
$ existing.md: Resize
    e2e/test_documented_commands.py
    test_resize_keeps_every_example
    labels and sides of all images
$ existing.md: Adopt
    e2e/test_documented_commands.py
    test_adopt_takes_shards_as_they_are
    labels of all images
$ evaluation.md: One command each
    e2e/test_documented_commands.py
    test_evaluation_sets_get_the_labels_of_ilsvrc2012
    labels of all images
$ evaluation.md: Networks of your own
    e2e/test_documented_commands.py
    test_score_counts_the_right_predictions_in_a_file
    top-1 by the labels of the dataset and of a list
$ photographs.md: Your own photographs
    e2e/test_photographs.py
    test_every_file_is_in_the_set_in_the_quarantine_or_counted
    each file: stored, quarantined or ignored
"""
# The same, but why no test takes the block from the page, instead of the value.
ELSEWHERE = """
export.md: DINOv2 and DINOv3
    commands/export/test_formats.py
    test_labels_txt_names_each_class_as_dinov2_reads_it
    DINOv2 is no package
pytorch.md: JAX
    frameworks/test_frameworks.py
    test_the_example_for_jax_goes_on_in_mid_epoch
    a line of examples/with_jax.py
trainers.md: KerasCV
    trainers/test_trainers.py
    test_the_older_resnet_and_keras_cv_subtract
    needs 1,024 shards in an environment of its own
trainers.md: The package tfrecord
    e2e/test_documented_code.py
    test_keras_gets_labels_from_0
    the package is in no lock; the table of the page says: by hand
trainers.md: big_vision
    trainers/test_trainers.py
    test_big_vision_takes_labels_as_they_are
    needs a checkout
$ amend.md: Excluded images stay excluded
    commands/amend/test_decisions.py
    test_prepare_notes_the_bytes_of_excluded_images
    a folder that a test grows
$ amend.md: Excluded images stay excluded 2
    commands/amend/test_decisions.py
    test_a_standing_list_is_applied_again
    a list that a test writes
$ photographs.md: New photographs
    commands/amend/test_decisions.py
    test_the_grown_folder_gives_its_new_images_and_the_holdout_stays
    photographs that a test adds
$ amend.md: The new manifest
    e2e/test_documented_commands.py
    test_amend_excludes_and_relabels_what_the_lists_name
    shows output
$ amend.md: The new manifest 2
    commands/amend/test_amend.py
    test_hosts_get_what_the_replicas_of_the_parent_there_lack
    needs hosts
$ bucket.md: Read archives from a bucket, write a dataset into one
    commands/prepare/test_s3_out.py
    test_a_bucket_gets_the_bytes_that_a_folder_gets
    needs a bucket
$ bucket.md: Try S3 on a laptop
    commands/replicate/test_s3.py
    test_a_bucket_gets_the_data_set_and_gives_it_back
    installs a server
$ bucket.md: Datasets in a bucket
    commands/resize/test_exclude.py
    test_from_and_into_a_bucket_a_second_call_adds_a_split
    needs a bucket
$ cluster.md: Beam on this machine
    pipelines/test_graph.py
    test_the_direct_runner_has_several_processes_as_documented
    takes long
$ cluster.md: On a cluster
    commands/cluster/test_cluster.py
    test_flink_in_beams_job_server_writes_the_bytes_of_one_machine_and_shows_how_far_it_is
    needs a cluster
$ cluster.md: Dataflow
    commands/prepare/test_s3_out.py
    test_a_beam_job_from_bucket_to_bucket_makes_the_same_and_threads_go_on_from_there
    needs Google's cloud
$ data-format.md: The unlabelled test images
    commands/prepare/test_evaluation_sets.py
    test_the_test_archive_of_ilsvrc2012_is_a_set_without_labels
    needs the archive of the test images
$ download.md: Download the archives
    commands/download/test_download.py
    test_three_archives_arrive_exactly_and_by_ranges
    downloads 155 GB
$ download.md: Download the archives 2
    commands/download/test_download.py
    test_the_four_files_of_mnist_are_proven_by_what_is_published
    downloads
$ download.md: From the Hugging Face Hub
    commands/prepare/test_sources.py
    test_parquet_gives_the_shards_of_the_archives
    downloads 155 GB
$ download.md: WebDataset tars
    commands/export/test_webdataset_comes_back.py
    test_tars_on_a_server_give_the_same_dataset
    downloads 155 GB
$ ec2.md: From nothing to training 5
    commands/replicate/test_s3.py
    test_a_bucket_gets_the_data_set_and_gives_it_back
    needs AWS
$ ec2.md: From nothing to training 6
    commands/replicate/test_s3.py
    test_every_host_pulls_its_own
    needs AWS
$ evaluation.md: One table
    trainer/test_evaluation.py
    test_the_last_evaluation_fills_a_table_of_sets_and_lists
    needs a trained network
$ evaluation.md: Lists of labels
    commands/download/test_download.py
    test_each_set_has_an_address_of_its_own
    downloads
$ existing.md: Resize 2
    commands/resize/test_flags.py
    test_the_tutorials_two_calls_make_one_data_set
    the flags of the tutorial, IN and OUT stand for folders
$ export.md: Croissant for publication
    commands/export/test_croissant.py
    test_every_file_has_its_sha256_and_authors_fields_are_taken
    about.json is the author's
$ guarantees.md: Who made a dataset
    storage/test_signature.py
    test_the_signer_is_named_also_of_a_replica
    needs a key
$ guarantees.md: Who made a dataset 3
    storage/test_signature.py
    test_parts_without_a_signature_can_be_accepted
    needs a key
$ monitoring.md: Monitoring
    commands/test_verify.py
    test_a_verb_writes_its_images_bytes_and_quarantine_for_prometheus
    writes into the folder of node_exporter
$ mxnet.md: Train
    trainer/test_mxnet.py
    test_two_ranks_learn_mnist_as_the_article_has_it
    needs MXNet
$ mxnet.md: Your .rec files 2
    e2e/test_documented_commands.py
    test_exports_hold_every_image_of_the_dataset
    as on export.md
$ prepare.md: Your own photographs
    e2e/test_photographs.py
    test_every_file_is_in_the_set_in_the_quarantine_or_counted
    as on photographs.md
$ prepare.md: CIFAR-10 and MNIST
    commands/prepare/test_sources.py
    test_the_archive_of_cifar10_gives_the_shards_of_its_folder
    needs the published archives
$ prepare.md: ImageNet-21K
    commands/prepare/test_sources.py
    test_imagenet21k_from_one_tar_and_from_a_folder_of_tars
    needs 1.3 TB
$ prepare.md: Step 1 of the 2018 tutorial
    commands/test_preprocess_imagenet.py
    test_a_folder_of_archives_is_read_where_it_lies
    downloads
$ prepare.md: On a schedule, with cron
    commands/test_verify.py
    test_what_was_proven_and_not_touched_is_not_read_again
    needs cron
$ replicate.md: Replicate a dataset to folders, S3 or every node
    commands/replicate/test_hosts.py
    test_every_host_gets_every_byte
    needs hosts
$ replicate.md: A part on every node
    commands/replicate/test_partition.py
    test_every_host_gets_its_own_part_and_damage_of_it_is_mended
    needs hosts
$ replicate.md: S3
    commands/replicate/test_s3.py
    test_a_bucket_gets_the_data_set_and_gives_it_back
    needs a bucket
$ report.md: Look at a dataset
    commands/report/test_report.py
    test_lists_of_labels_are_shown_where_they_disagree
    the first line is that of the README; the others need a bucket or ReaL
$ scaling.md: Measured
    commands/test_bench_train.py
    test_a_sweep_keeps_its_figures_and_prints_them
    takes hours
$ train.md: Train a network
    trainer/test_training.py
    test_the_evaluation_of_a_checkpoint_equals_a_plain_count
    trains ResNet-50
$ train.md: With PyTorch
    frameworks/test_training.py
    test_it_learns_and_every_example_is_counted_once
    trains ResNet-50
$ train.md: Which images a model has seen
    read/test_receipt.py
    test_each_step_has_the_images_that_were_read_over_resumes_and_ranks
    needs a run of 1,000 steps
$ trainers.md: flax examples/imagenet
    e2e/test_documented_commands.py
    test_exports_hold_every_image_of_the_dataset
    the export of export.md
$ trainers.md: pytorch/examples
    e2e/test_documented_commands.py
    test_exports_hold_every_image_of_the_dataset
    the export of export.md
$ trainers.md: WebDataset
    e2e/test_documented_commands.py
    test_exports_hold_every_image_of_the_dataset
    the export of export.md
$ trainers.md: Hugging Face datasets
    e2e/test_documented_commands.py
    test_exports_hold_every_image_of_the_dataset
    the export of export.md
"""


# The list of modules is made from docstrings, which name commands.
GENERATED = "$ architecture.md: Packages and modules"


class Entry(NamedTuple):
    """The test of a block."""

    block: str
    path: str
    function: str
    words: str


def entries(text: str) -> list[Entry]:
    lines = [line.strip() for line in text.strip().splitlines()]
    return [Entry(*lines[first : first + 4]) for first in range(0, len(lines), 4)]


def test_every_block_with_data_has_a_test() -> None:
    names = {block.name for block in blocks.all_blocks() if block.has_data}
    found = sorted(names - {GENERATED})
    listed = sorted(entry.block for entry in entries(AS_TYPED + ELSEWHERE.lstrip()))

    assert listed == found


@pytest.mark.parametrize("entry", entries(AS_TYPED), ids=lambda entry: entry.block)
def test_a_test_takes_the_block_from_its_page(entry: Entry) -> None:
    code = (REPOSITORY / "tests" / entry.path).read_text("utf-8")
    page = entry.block.removeprefix("$ ").partition(":")[0]

    assert f"def {entry.function}(" in code
    assert entry.block in code or f"docs/{page}" in code
    assert entry.words


@pytest.mark.parametrize("entry", entries(ELSEWHERE), ids=lambda entry: entry.block)
def test_another_test_makes_the_same_data(entry: Entry) -> None:
    code = (REPOSITORY / "tests" / entry.path).read_text("utf-8")

    assert f"def {entry.function}(" in code
    assert entry.words


def test_python_is_told_from_commands() -> None:
    every = {block.name: block for block in blocks.all_blocks()}

    assert every["api.md: Types"].is_python
    assert not every["$ api.md: Reference"].has_data
    assert every["$ README.md: Try it"].text.startswith("make demo")
    assert not every["$ README.md: Try it"].has_data
    assert every["$ diff.md: Compare two datasets, or find a photograph in one"].has_data
    assert len({block.name for block in every.values()}) == len(list(blocks.all_blocks()))
