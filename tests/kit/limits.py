"""Limits of the product that tests lower, to reach them with little data or in little time.

Only this table names their modules.
"""

from __future__ import annotations

from typing import Any

import pytest

_LIMITS = {
    "light_image_bytes": "codec.cage.LIGHT_BYTES",
    "small_file_bytes": "core.small_files.MOST_BYTES",
    "class_list_lines": "dataset.class_list.MOST_CLASSES",
    "key_list_lines": "dataset.keys.MOST_LINES",
    "key_list_bytes": "dataset.keys._MOST_BYTES",
    "measures_at_once": "dataset.samples._TOGETHER",
    "listed_problems": "dataset.example.MOST",
    "giver_tick_s": "distribute.lead._TICK_S",
    "attempt_pause_s": "engine.attempts._PAUSE_S",
    "cluster_answer_s": "engine.cluster._ANSWER_TIMEOUT_S",
    "heartbeat_s": "engine.shared_run._BEAT_S",
    "lease_s": "engine.stage._SEEN_WITHIN_S",
    "lost_after_s": "engine.shared_run.LOST_AFTER_S",
    "progress_line_s": "engine.attempts._LINE_EVERY_S",
    "host_start_s": "hosts.channel.START_S",
    "failed_host_s": "launching.crew._FAILED_S",
    "silent_host_s": "launching.crew._SILENCE_S",
    "proof_budget": "matching.find._MOST_COST",
    "proof_cost": "matching.find._PROOF_COST",
    "proofs_at_once": "matching.find._PROOFS_AT_ONCE",
    "search_room": "matching.search._ROOM",
    "entries_read": "preparation.joined_lists._READ_ROWS",
    "parsed_list_bytes": "preparation.joined_lists._PARSED_BYTES",
    "index_tasks": "preparation.selection._MOST_TASKS",
    "plan_files_at_once": "preparation.planning._FILES_AT_ONCE",
    "cache_wait_s": "read.cache._TIMEOUT_S",
    "lock_report_s": "read.cache._REPORT_S",
    "damaged_in_a_sample": "reporting.sample._MAX_DAMAGED",
    "searched_table_bytes": "shards.equal_bytes._MOST_BYTES",
    "sorted_run_bytes": "shards.sorted_tables.RUN_BYTES",
    "sorted_run_keys": "shards.sorted_tables._KEYS_OF_A_RUN",
    "hashed_together_bytes": "shards.writer._HASHED_TOGETHER_BYTES",
    "sorting_threads": "shards.sorted_tables._MOST_THREADS",
    "leaves_of_a_block": "shards.sorted_tables._BLOCK_LEAVES",
    "boxes_inner_bytes": "sources.boxes._MAX_INNER_BYTES",
    "boxes_line_bytes": "sources.boxes._MAX_LINES_BYTES",
    "boxes_unpacked_bytes": "sources.boxes._MAX_UNPACKED_BYTES",
    "zip_allowance_bytes": "sources.containers._LEAST_ALLOWANCE",
    "zip_bytes": "sources.containers._Zip.most",
    "evaluation_folder_bytes": "sources.evaluation._FOLDERS_BYTES",
    "parquet_bytes": "sources.parquet._MOST_BYTES",
    "recordio_images": "sources.recordio._MAX_IMAGES",
    "recordio_piece_bytes": "sources.recordio._PIECE_BYTES",
    "copied_at_once_bytes": "storage.bucket._MOST_COPIED",
    "unsynced_bytes": "storage.fetch._SYNC_BYTES",
    "bytes_in_flight": "storage.archive.MOST_BYTES",
    "requests_in_flight": "storage.archive.MOST_IN_FLIGHT",
    "request_bytes": "storage.archive.REQUEST_BYTES",
    "retry_pause_s": "storage.remote._FIRST_DELAY_S",
    "listed_objects": "storage.s3._MOST_LISTED",
    "answer_bytes": "storage.connection._MOST_ANSWER_BYTES",
    "table_ahead_bytes": "storage.dataset_store._AHEAD_BYTES",
    "upload_part_bytes": "storage.bucket.PART_BYTES",
    "left_ranks_s": "trainer.comm._LEFT_S",
    "told_wait_s": "trainer.comm.TOLD_S",
    "last_upload_s": "trainer.saved._LAST_S",
    "upload_retries": "trainer.saved._RETRIES",
    "rendezvous_poll_s": "trainer.rendezvous._POLL_S",
    "strangers": "trainer.rendezvous._STRANGERS",
    "plateau_patience": "trainer.config._PATIENCE",
    "epoch_gain": "trainer.config._LEAST_GAIN",
}


class Limits:
    """Lowers limits until the test ends."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def __call__(self, **lowered: Any) -> None:
        """Lowers limits; their names are those of the table."""
        for name, limit in lowered.items():
            self._patch.setattr(f"imagenet_prep.{_LIMITS[name]}", limit)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Limits:
    """Lowers limits of the product, for a test that reaches them."""
    return Limits(monkeypatch)
