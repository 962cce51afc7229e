"""Every block of the documents that makes or reads data has a test that checks a value.

`AS_TYPED` has the blocks that a test executes from the page, with different paths and numbers.
`ELSEWHERE` has the blocks that no test can execute; their test makes the same data with the same
verbs. A new block needs an entry in one of them.
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
    test_readme_loop_reads_each_example_once_per_epoch
    the examples of two epochs, colours of their classes, states
api.md: Commands as functions
    e2e/test_documented_code.py
    test_documented_functions_prepare_and_verify
    digest of the dataset, notes of its damage
api.md: Types
    e2e/test_documented_code.py
    test_the_page_of_types_reads_bytes
    type and shape of images, the labels
columns.md: Write
    e2e/test_documented_code.py
    test_documented_latents_match_images_and_their_mirrors
    range, scale, view; latents of each image and of its mirror image
columns.md: Write 2
    e2e/test_documented_code.py
    test_documented_tokens_match_their_keys
    the tokens of each key
columns.md: Texts
    e2e/test_documented_code.py
    test_documented_captions_come_from_metadata_csv
    the captions of each key, one or several; names that are no keys are refused
columns.md: Read
    e2e/test_documented_code.py
    test_documented_latents_match_images_and_their_mirrors
    the latents that `mirrored` chooses, for the images next to them
evaluation.md: Networks of your own
    e2e/test_documented_code.py
    test_documented_scores_match_predictions_of_network
    top-1 by the labels of the dataset and of a list
pytorch.md: PyTorch: one loop
    frameworks/test_frameworks.py
    test_the_pages_code_runs
    the number of images
pytorch.md: PyTorch: validation
    frameworks/test_evaluation.py
    test_documented_loops_measure_exact_top1_on_any_ranks
    top-1 of three networks
pytorch.md: PyTorch: validation 2
    frameworks/test_evaluation.py
    test_documented_loop_over_tuples_counts_no_padding
    top-1 of three networks, the number of images
lightning.md: Lightning
    frameworks/test_ranks.py
    test_documented_programs_read_each_image_once
    the images of an epoch and of a validation, over two ranks
lightning.md: Accelerate
    frameworks/test_ranks.py
    test_documented_programs_read_each_image_once
    the images of an epoch and of a validation, over two ranks
reading.md: Evaluation
    read/test_documented_loops.py
    test_top1_of_a_page_is_exact
    top-1 of three networks
photographs.md: Classify a photograph
    e2e/test_photographs.py
    test_documented_network_trains_and_scores_the_holdout
    the class of a photograph, as in the predictions of the evaluation
photographs.md: Classify a photograph 2
    frameworks/test_training.py
    test_the_documented_classifier_equals_the_evaluation
    the class of a photograph, as in the predictions of the evaluation
pytorch.md: With a DataLoader's workers
    frameworks/test_frameworks.py
    test_the_pages_code_runs
    the number of images
pytorch.md: Your transforms
    frameworks/test_frameworks.py
    test_the_pages_code_runs
    the number of images
pytorch.md: Your transforms 2
    frameworks/test_frameworks.py
    test_the_pages_code_runs
    the number of images
reading.md: A condition
    e2e/test_documented_code.py
    test_documented_condition_selects_large_images_of_two_classes
    the number of examples
reading.md: Recipes
    e2e/test_documented_code.py
    test_documented_share_makes_the_crops_of_timm
    the pixels, as Pillow makes them in the way of timm
reading.md: Several crops of an image
    e2e/test_documented_code.py
    test_documented_views_show_their_image
    shapes, and the colours of all crops
reading.md: Sizes that change
    e2e/test_documented_code.py
    test_documented_sizes_change_with_the_epoch
    shapes by epoch, each example once
reading.md: Buckets
    e2e/test_documented_code.py
    test_documented_buckets_are_nearest_to_their_images
    the shape that is nearest to each image
reading.md: A mix of datasets
    e2e/test_documented_code.py
    test_documented_mix_has_its_proportions
    the share of each part, colours of the images of one part
reading.md: A mix of datasets 2
    e2e/test_documented_code.py
    test_documented_validation_has_the_classes_of_the_mix
    the WNID of each image, by its number in the mix
reading.md: The crop of image generators
    e2e/test_documented_code.py
    test_documented_generator_crop_has_pillows_bytes
    Pillow's bytes
reading.md: Backends
    frameworks/test_documented_code.py
    test_documented_pinned_images_equal_the_readers
    the pixels, as in memory of NumPy
train.md: Which images a model has seen
    e2e/test_documented_code.py
    test_documented_log_lists_images_of_each_step
    the images of each step
trainers.md: Keras
    e2e/test_documented_code.py
    test_keras_gets_labels_from_0
    labels and colours of all images
trainers.md: Grain
    e2e/test_documented_code.py
    test_documented_loaders_get_all_examples
    labels and colours of all images, with a double of Grain
trainers.md: Ray Data
    e2e/test_documented_code.py
    test_documented_loaders_get_all_examples
    labels and bytes of all images, with a double of Ray Data
trainers.md: NVIDIA DALI
    e2e/test_documented_code.py
    test_dali_reader_gets_labels_from_0
    labels and bytes of all images
trainers.md: TensorFlow Datasets
    oracles/test_tfds.py
    test_documented_tfds_code_gets_labels_from_0
    label and shape of an image, the names of labels
trainers.md: LitData and MosaicML streaming
    e2e/test_documented_code.py
    test_documented_writers_get_labels_from_0
    labels and bytes of all images
$ README.md: imagenet-prep
    e2e/test_documented_commands.py
    test_readme_commands_prepare_verify_and_report
    labels of all images, their number, the page
$ prepare.md: Prepare a dataset
    e2e/test_documented_commands.py
    test_prepare_page_plans_prepares_and_shows
    labels of all images, records and class that are shown
$ amend.md: Make a new dataset from an existing one
    e2e/test_documented_commands.py
    test_amend_page_excludes_and_relabels_listed_images
    labels of all images
$ forget.md: A person asks for removal
    e2e/test_documented_commands.py
    test_forget_page_removes_photograph_and_replaces_replica
    the images of the new version and the places
$ forget.md: Replace the replicas
    e2e/test_documented_commands.py
    test_forget_page_removes_photograph_and_replaces_replica
    the digest of the replica
$ forget.md: The image stays out
    e2e/test_documented_commands.py
    test_forget_page_removes_photograph_and_replaces_replica
    the images of the dataset
$ diff.md: Compare two datasets, or find a photograph in one
    e2e/test_documented_commands.py
    test_diff_page_finds_changed_and_stored_images
    the number of differences, the photograph
$ duplicates.md: Find duplicates and contamination
    e2e/test_documented_commands.py
    test_duplicates_page_finds_images_of_a_copy
    the images that are duplicates
$ export.md: Export to other formats
    e2e/test_documented_commands.py
    test_exports_have_all_images_of_the_dataset
    the number of images in each form
$ mxnet.md: Your .rec files
    e2e/test_documented_commands.py
    test_exports_have_all_images_of_the_dataset
    the labels
$ existing.md: Resize
    e2e/test_documented_commands.py
    test_resize_page_keeps_all_examples
    labels and sides of all images
$ existing.md: Adopt
    e2e/test_documented_commands.py
    test_adopt_page_keeps_shards_unchanged
    labels of all images
$ evaluation.md: One command each
    e2e/test_documented_commands.py
    test_evaluation_page_gives_labels_of_ilsvrc2012
    labels of all images
$ evaluation.md: Networks of your own
    e2e/test_documented_commands.py
    test_score_page_counts_correct_predictions
    top-1 by the labels of the dataset and of a list
$ photographs.md: Your own photographs
    e2e/test_photographs.py
    test_photographs_are_stored_quarantined_or_counted
    each file: stored, quarantined or ignored
$ export.md: Captions in folders
    e2e/test_documented_commands.py
    test_columns_page_exports_and_removes_captions
    the captions of all images
$ columns.md: Remove
    e2e/test_documented_commands.py
    test_columns_page_exports_and_removes_captions
    the remaining columns
$ week-two.md: Week two: a dataset that changes
    e2e/test_week_two.py
    test_new_versions_have_exactly_the_changes
    keys and labels of all images of each split
$ amend.md: Excluded images stay excluded
    e2e/test_changing_photographs.py
    test_requests_also_hold_for_a_set_from_scratch
    the keys of all images
$ amend.md: Excluded images stay excluded 2
    e2e/test_changing_photographs.py
    test_requests_also_hold_for_a_set_from_scratch
    the keys of all images
$ amend.md: A folder that has grown
    e2e/test_changing_photographs.py
    test_edited_photographs_return_to_their_splits
    keys of all images of each split, and that only the edited ones differ
$ photographs.md: New photographs
    e2e/test_changing_photographs.py
    test_page_adds_only_new_photographs
    the keys of all images of each split
$ export.md: Croissant for publication
    e2e/test_documented_commands.py
    test_croissant_page_describes_all_files
    licence, splits, names of files
$ guarantees.md: Who made a dataset
    e2e/test_documented_commands.py
    test_guarantees_page_signs_and_names_the_signer
    the signer
trainers.md: The package tfrecord
    trainers/test_trainers.py
    test_the_documented_tfrecord_loop_ends
    labels of all images, if the package is installed
trainers.md: big_vision
    trainers/test_trainers.py
    test_big_vision_uses_stored_labels_unchanged
    label and class of all images, in a checkout
$ amend.md: The new manifest
    e2e/test_documented_commands.py
    test_amend_page_shows_amendments_and_reuses_parent
    the lines that are shown, except digests
$ amend.md: The new manifest 2
    e2e/test_documented_commands.py
    test_amend_page_shows_amendments_and_reuses_parent
    files of the host, the bytes that were sent
$ bucket.md: Read archives from a bucket, write a dataset into one
    e2e/test_documented_buckets.py
    test_bucket_page_prepares_equal_bytes_everywhere
    labels of all images, bytes of all shards
$ bucket.md: Try S3 on a laptop
    e2e/test_documented_buckets.py
    test_s3_can_be_tried_as_documented
    the number of files in the bucket
$ bucket.md: Datasets in a bucket
    e2e/test_documented_buckets.py
    test_bucket_page_resizes_adopts_and_reports
    bytes of all shards, the page
$ cluster.md: Beam on this machine
    pipelines/test_graph.py
    test_graph_writes_same_bytes_and_exports_its_steps
    the bytes of all files
$ data-format.md: The unlabelled test images
    e2e/test_documented_sources.py
    test_unlabelled_images_are_prepared_by_their_split
    name and bytes of the image
$ download.md: Download the archives
    e2e/test_documented_sources.py
    test_download_page_gets_each_archive_from_mirrors
    bytes of all archives
$ download.md: Download the archives 2
    e2e/test_documented_sources.py
    test_small_datasets_are_downloaded_and_prepared
    the number of images of each split, the files
$ download.md: From the Hugging Face Hub
    e2e/test_documented_sources.py
    test_parquet_of_the_hub_gives_the_archives_images
    labels of all images
$ download.md: WebDataset tars
    e2e/test_documented_sources.py
    test_tars_of_hub_and_mirror_are_equal
    labels of all images, bytes of all files
$ ec2.md: From nothing to training 5
    e2e/test_documented_buckets.py
    test_ec2_page_brings_archives_to_hosts
    labels of all images, files of the bucket
$ ec2.md: From nothing to training 6
    e2e/test_documented_buckets.py
    test_ec2_page_brings_archives_to_hosts
    files of the host
$ evaluation.md: One table
    trainer/test_evaluation.py
    test_documented_evaluation_prints_its_table
    the rows of the table, without numbers
$ evaluation.md: Lists of labels
    e2e/test_documented_sources.py
    test_small_datasets_are_downloaded_and_prepared
    the list
$ existing.md: Resize 2
    e2e/test_documented_commands.py
    test_flags_of_the_tutorial_resize_a_split
    bytes of all shards
$ guarantees.md: Who made a dataset 3
    e2e/test_documented_commands.py
    test_guarantees_page_signs_and_names_the_signer
    the accepted column
$ monitoring.md: Monitoring
    e2e/test_documented_commands.py
    test_monitoring_page_writes_metrics_and_log
    the number of images in the metrics
$ mxnet.md: Train
    trainer/test_mxnet.py
    test_documented_commands_learn_alone_and_on_two_ranks
    accuracy, the number of evaluated images
$ mxnet.md: Your .rec files 2
    e2e/test_documented_commands.py
    test_exports_have_all_images_of_the_dataset
    the labels
$ prepare.md: Your own photographs
    e2e/test_documented_sources.py
    test_prepare_page_holds_out_photographs
    the class of each image, the holdout
$ prepare.md: CIFAR-10 and MNIST
    e2e/test_documented_sources.py
    test_prepare_page_reads_cifar10_and_mnist
    the number of images of each split, the labels
$ prepare.md: ImageNet-21K
    e2e/test_documented_sources.py
    test_prepare_page_reads_every_form_of_imagenet21k
    labels of all images, their number by class
$ prepare.md: Step 1 of the 2018 tutorial
    e2e/test_documented_sources.py
    test_tutorials_command_keeps_original_photographs
    labels of all images
$ prepare.md: On a schedule, with cron
    e2e/test_documented_sources.py
    test_lines_for_cron_prepare_verify_and_print_reasons
    labels of all images, the printed reason
$ replicate.md: Replicate a dataset to folders, S3 or every node
    e2e/test_documented_commands.py
    test_replicate_page_fills_and_checks_hosts
    files of the hosts
$ replicate.md: A part on every node
    e2e/test_documented_commands.py
    test_replicate_page_fills_and_checks_hosts
    the part of each host
$ replicate.md: S3
    e2e/test_documented_buckets.py
    test_replicate_page_copies_by_bucket_to_hosts
    files of the bucket, the folder and the host
$ report.md: Look at a dataset
    e2e/test_documented_buckets.py
    test_report_page_looks_at_buckets_lists_and_pairs
    result, name and images on the pages
$ scaling.md: Measured
    commands/test_bench_train.py
    test_scaling_page_measures_and_reports
    ranks and hosts of the rows, the page
$ slurm.md: Prepare on several nodes
    e2e/test_documented_sources.py
    test_processes_of_slurm_share_one_dataset
    labels of all images, with a double of srun
$ train.md: Train a network
    trainer/test_two_ranks.py
    test_documented_commands_learn_on_one_and_two_ranks
    accuracy, the number of evaluated images
$ train.md: With PyTorch
    frameworks/test_training.py
    test_documented_commands_learn_and_count_every_example_once
    accuracy, the number of evaluated images
$ train.md: Which images a model has seen
    e2e/test_documented_code.py
    test_documented_log_lists_images_of_each_step
    the images of a step, the steps of an image
$ trainers.md: flax examples/imagenet
    e2e/test_documented_commands.py
    test_exports_have_all_images_of_the_dataset
    the files; flax itself needs a checkout
$ trainers.md: pytorch/examples
    e2e/test_documented_commands.py
    test_exports_have_all_images_of_the_dataset
    the number of images
$ trainers.md: WebDataset
    e2e/test_documented_commands.py
    test_exports_have_all_images_of_the_dataset
    the tars
$ trainers.md: Hugging Face datasets
    e2e/test_documented_commands.py
    test_exports_have_all_images_of_the_dataset
    the number of images
pytorch.md: JAX
    frameworks/test_jax_arrays.py
    test_batches_and_tuples_are_arrays_of_jax
    the images on four devices
trainers.md: KerasCV
    trainers/test_trainers.py
    test_the_older_resnet_and_keras_cv_subtract
    the labels of all images
$ cluster.md: On a cluster
    commands/cluster/test_cluster.py
    test_flink_job_server_gives_same_bytes_and_progress
    the bytes of one machine
"""
# The same, but with the reason why no test executes the block instead of the value.
ELSEWHERE = """
export.md: DINOv2 and DINOv3
    commands/export/test_formats.py
    test_labels_txt_has_the_form_of_dinov2
    DINOv2 is no package
$ cluster.md: Dataflow
    commands/prepare/test_s3_out.py
    test_beam_job_prepares_in_bucket_and_threads_resume
    needs Google's cloud
"""


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
    found = sorted(names - {blocks.GENERATED})
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
def test_blocks_that_are_not_executed_have_tests(entry: Entry) -> None:
    code = (REPOSITORY / "tests" / entry.path).read_text("utf-8")

    assert f"def {entry.function}(" in code
    assert entry.words


def test_python_blocks_are_distinguished_from_commands() -> None:
    every = {block.name: block for block in blocks.all_blocks()}

    assert every["api.md: Types"].is_python
    assert not every["$ api.md: Reference"].has_data
    assert every["$ README.md: Try it"].text.startswith("make demo")
    assert not every["$ README.md: Try it"].has_data
    assert every["$ diff.md: Compare two datasets, or find a photograph in one"].has_data
    assert len({block.name for block in every.values()}) == len(list(blocks.all_blocks()))
