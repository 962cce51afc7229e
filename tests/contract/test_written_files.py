"""Only a few functions write files themselves; all others use `own_file` or a store.

`core/own_file.py` writes small files at paths that a user names. `storage/folder.py` writes the
files of a dataset. Each other function is in the table below, with the reason why no link of a
different user can lead it to a file outside.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.command import REPOSITORY
from tests.kit.documents import product_modules

EXCLUSIVE = "a new file: O_EXCL refuses any existing name, also a link"
NO_LINK = "LocalStore.open, which follows no link and only opens regular files"
PRIVATE = "a private folder with a random name, made by this process"
WORK = "a folder below .work that this run has emptied; a .work of a different user is refused"
MEMORY = "memory or an inherited descriptor, no file"
ALLOWED = {
    "imagenet_prep/codec/caged.py": {"main": MEMORY},
    "imagenet_prep/core/small_files.py": {
        "_create": EXCLUSIVE,
        "replaced": "renames the file that `_create` made, in the opened folder",
    },
    "imagenet_prep/core/terminal.py": {"open_closed_streams": MEMORY, "say_on": MEMORY},
    "imagenet_prep/demo.py": {
        "run": "renames the folder that it has just made",
        "train_model": NO_LINK,
    },
    "imagenet_prep/engine/stage.py": {"fail": NO_LINK, "log": NO_LINK},
    "imagenet_prep/engine/workers.py": {"__init__": f"{MEMORY}; and the log that Stage.log made"},
    "imagenet_prep/exporting/examples.py": {
        "_write": "thousands of images in the folder of an export; O_NOFOLLOW",
        "show": "LocalStore.rename",
    },
    "imagenet_prep/hosts/host_keys.py": {"add": "the user's known_hosts, as ssh appends to it"},
    "imagenet_prep/install_horovod.py": {
        "_cached": PRIVATE,
        "_run": PRIVATE,
        "install": PRIVATE,
        "nccl_variables": PRIVATE,
    },
    "imagenet_prep/launching/crew.py": {"start_detached": NO_LINK},
    "imagenet_prep/launching/horovod_source.py": {
        "_append": PRIVATE,
        "_mend_keras": PRIVATE,
        "_replace": PRIVATE,
        "mend": PRIVATE,
    },
    "imagenet_prep/launching/ranks.py": {"__init__": NO_LINK},
    "imagenet_prep/preparation/adoption.py": {"_rename": "LocalStore.rename"},
    "imagenet_prep/sources/archive_download.py": {"_fetch": NO_LINK},
    "imagenet_prep/matching/pictures.py": {"__init__": PRIVATE, "rows_of": PRIVATE},
    "imagenet_prep/preparation/planning.py": {"write": WORK},
    "imagenet_prep/preparation/tasks.py": {"_unpack": "/dev/null"},
    "imagenet_prep/read/cache.py": {
        "__init__": "opens an existing shard in the reader's cache only to lock it",
        "_make_room": NO_LINK,
        "only_one": NO_LINK,
    },
    "imagenet_prep/shards/sorted_tables.py": {"__init__": WORK, "_add": WORK},
    "imagenet_prep/storage/columns.py": {"_identity": EXCLUSIVE},
    "imagenet_prep/storage/fetch.py": {
        "fetch": "a partial file that `archives` has opened",
        "incoming": NO_LINK,
    },
    "imagenet_prep/storage/folder.py": {
        "_open_lock": NO_LINK,
        "marked": "open_inside, which follows no link",
        "publish": "the file system's rename, in a folder that was opened without links",
        "rename": "the file system's rename, in a folder that was opened without links",
        "try_create": EXCLUSIVE,
        "adopt_files": "the file system's rename, in a folder that was opened without links",
    },
    "imagenet_prep/storage/ledger.py": {"add": NO_LINK},
    "imagenet_prep/storage/local_file.py": {
        "__init__": f"shards; {EXCLUSIVE}",
        "new_file": EXCLUSIVE,
    },
    "imagenet_prep/testing/miniature.py": {
        "make_devkit": "the generator of the demo and the tests, in a folder of its caller",
        "write_train": "the generator of the demo and the tests, in a folder of its caller",
        "write_validation": "the generator of the demo and the tests, in a folder of its caller",
    },
    "imagenet_prep/trainer/checkpoint.py": {"_set_aside": "LocalStore.rename"},
    "imagenet_prep/trainer/log.py": {"start": NO_LINK, "__init__": NO_LINK},
    "imagenet_prep/trainer/tensorflow_learner.py": {"export": PRIVATE},
    "pipelines/sagemaker_container.py": {
        "data_set": "makes links in SageMaker's container, which has no other user",
    },
}
ALWAYS = {
    "write_text",
    "write_bytes",
    "touch",
    "mkstemp",
    "NamedTemporaryFile",
    "mktemp",
    "copyfile",
    "copy2",
    "copytree",
    "rename",
    "symlink_to",
    "hardlink_to",
    "mknod",
    "mkfifo",
}
TO_WRITE = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND"}
NOT_A_FILE = {"imagenet_prep/pipelines"}  # a link to pipelines/


def names_in(node: ast.AST) -> set[str]:
    attributes = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    return attributes | {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def is_mode(node: ast.AST) -> bool:
    """Returns whether a constant is a mode of `open` for writing."""
    value = node.value if isinstance(node, ast.Constant) else None
    is_text = isinstance(value, str) and 0 < len(value) <= 4
    return is_text and set(str(value)) <= set("rwxabt+") and bool(set(str(value)) & set("wxa+"))


def writes(call: ast.Call, flags: set[str]) -> bool:
    """Returns whether a call opens, makes or renames a file; `flags` are names with open flags."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    if name in ("open", "fdopen", "open_inside", "GzipFile", "ZipFile"):
        named: set[str] = set().union(*map(names_in, values))
        if "devnull" in named:
            return False
        is_in_memory = "fileobj" in {keyword.arg for keyword in call.keywords}
        has_mode = any(map(is_mode, values)) and not is_in_memory
        return has_mode or bool(named & (TO_WRITE | flags))
    of_module = function.value.id if isinstance(getattr(function, "value", None), ast.Name) else ""
    if name == "replace":  # also a method of str, with two arguments, and of dataclasses
        return of_module == "os" or (isinstance(function, ast.Attribute) and len(values) == 1)
    return name in ALWAYS or (name in ("copy", "move") and of_module == "shutil")


def open_flags(function: ast.FunctionDef) -> set[str]:
    """Returns the variables of a function that have flags to open a file for writing."""
    names = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and names_in(node.value) & TO_WRITE:
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def writing_functions(source: str) -> set[str]:
    """Returns the names of the functions that write files."""
    found: set[str] = set()

    def visit(node: ast.AST, function: str, flags: set[str]) -> None:
        for child in ast.iter_child_nodes(node):
            inside = function
            if isinstance(child, ast.FunctionDef):
                inside = child.name
                flags = open_flags(child)
            if isinstance(child, ast.Call) and writes(child, flags):
                found.add(inside)
            visit(child, inside, flags)

    visit(ast.parse(source), "", set())
    return found


def modules() -> Iterator[Path]:
    for path in product_modules():
        if str(path.relative_to(REPOSITORY).parent) not in NOT_A_FILE:
            yield path


def test_no_other_function_writes_a_file() -> None:
    found = {
        str(path.relative_to(REPOSITORY)): functions
        for path in modules()
        if (functions := writing_functions(path.read_text("utf-8")))
    }

    assert found == {module: set(functions) for module, functions in ALLOWED.items()}


@pytest.mark.parametrize(
    "line",
    [
        "open(path, 'w')",
        "open(path, mode='ab')",
        "path.open('x')",
        "Path(path).write_text('a')",
        "path.write_bytes(data)",
        "os.open(path, os.O_WRONLY)",
        "flags = os.O_CREAT\n    os.open(path, flags)",
        "os.fdopen(descriptor, 'r+b')",
        "tempfile.mkstemp()",
        "tarfile.open(path, 'w')",
        "os.replace(a, b)",
        "partial.replace(path)",
        "shutil.copy(a, b)",
        "path.rename(other)",
    ],
)
def test_each_way_to_write_a_file_is_seen(line: str) -> None:
    assert writing_functions(f"def function():\n    {line}\n") == {"function"}


@pytest.mark.parametrize(
    "line",
    [
        "open(path)",
        "open(path, 'rb')",
        "os.open(path, os.O_RDONLY)",
        "os.open(os.devnull, os.O_WRONLY)",
        "text.replace('a', 'b')",
        "dataclasses.replace(x, a=1)",
        "tarfile.open(fileobj=stream, mode='w')",
        "array.copy()",
    ],
)
def test_reading_is_not_writing(line: str) -> None:
    assert writing_functions(f"def function():\n    {line}\n") == set()
