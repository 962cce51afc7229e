"""`run-on-hosts` succeeds only if the command has succeeded on each host."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagenet_prep import run_on_hosts
from imagenet_prep.core.errors import ImagenetPrepError, UsageError
from tests.kit.messages import says

HERE = "localhost"


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", "0"), ("exit 7", "7"), ("kill -9 $$", "-9"), ("sleep 600", "-")],
    ids=["success", "failure", "killed", "too late"],
)
def test_only_exit_code_0_is_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], script: str, code: str
) -> None:
    (tmp_path / "hosts").write_text(f"{HERE} slots=1\n")
    words = [
        str(tmp_path / "hosts"),
        "--timeout",
        "0.5" if code == "-" else "60",
        "--",
        "sh",
        "-c",
        script,
    ]
    if code == "0":
        assert run_on_hosts.run(words) == 0
    else:
        with pytest.raises(ImagenetPrepError, match=says("failed-2", "1", "1 host", HERE)):
            run_on_hosts.run(words)

    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:2] == [HERE, code]


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ([], "no-command-write-after-example"),
        (["--show-keys", "--", "df"], "show-keys-runs-no-command-remove"),
        (["--show-keys"], "lists-only-host-needs-no"),
    ],
)
def test_keys_and_commands_exclude_each_other(tmp_path: Path, words: list[str], key: str) -> None:
    (tmp_path / "hosts").write_text("localhost slots=1\n")
    with pytest.raises(UsageError, match=says(key)):
        run_on_hosts.run([str(tmp_path / "hosts"), *words])
