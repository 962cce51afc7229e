"""Describes a dataset as Croissant 1.1 metadata with RAI fields and the SHA-256 of each file."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Sequence

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.small_files import FileKind
from imagenet_prep.core.strict_json import Json
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.column import Column, folder_name
from imagenet_prep.dataset.manifest import DatasetFile
from imagenet_prep.storage import dataset_store
from imagenet_prep.storage.dataset_store import Dataset

# The terms of the standard context. mlcroissant warns if the context is different.
_TERMS = (
    "arrayShape citeAs column containedIn equivalentProperty extract field fileObject fileProperty "
    "fileSet format includes isArray isLiveDataset jsonPath key md5 parentField path recordSet "
    "references regex repeated replace samplingRate separator source subField transform"
)
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "prov": "http://www.w3.org/ns/prov#",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "description": {"@container": "@language"},
    "name": {"@container": "@language"},
    **{term: f"cr:{term}" for term in _TERMS.split()},
}
_CONFORMS = ["http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0"]
OWN = FileKind("a Croissant file", b'{\n "@context"')
# Fields that are generated from the manifest, so the user's file must not contain them.
_OURS = {"@context", "@type", "conformsTo", "distribution", "recordSet", "version"}
# Fields that Croissant or conferences require and only the authors of a dataset know.
OF_AUTHORS = (
    "creator",
    "license",
    "url",
    "datePublished",
    "citeAs",
    "rai:dataLimitations",
    "rai:dataBiases",
    "rai:personalSensitiveInformation",
    "rai:dataUseCases",
    "rai:dataSocialImpact",
    "rai:hasSyntheticData",
)

# Further fields of Croissant 1.1, section "Dataset", and of schema.org's Dataset.
_OPTIONAL = (
    "alternateName",
    "contributor",
    "dateCreated",
    "dateModified",
    "description",
    "funder",
    "inLanguage",
    "isLiveDataset",
    "keywords",
    "maintainer",
    "name",
    "publisher",
    "sameAs",
    "sdLicense",
    "sdVersion",
    "usageInfo",
)
_LIKENESS = 0.85  # of licence and license; that of licenseUrl and license is lower


def document(dataset: Dataset, name: str, about: Json, texts: Sequence[Column] = ()) -> Json:
    """Returns Croissant metadata with the fields in `about`, for example a different name.

    Columns of `texts` become record sets: the rows of a split, in the order of its records.

    Raises UsageError if `about` contains a field that is generated from the manifest, or one that
    is spelled almost like a field of the format.
    """
    generated = sorted(_OURS & about.keys())
    if generated:
        raise UsageError(
            f"--about: {', '.join(generated)}: these fields come from the manifest. Remove them."
        )
    _refuse_misspelt(about)
    manifest, classes = dataset.manifest, dataset.classes
    of_manifest = hashlib.sha256(dataset.data).hexdigest()
    files = [
        DatasetFile(schema.MANIFEST, len(dataset.data), of_manifest),
        *manifest.files_of(manifest.splits),
    ]
    for column in texts:
        files += [*column.files(), column.record()]
    images = sum(split.examples for split in manifest.splits.values())
    sources = [
        {"@type": "prov:Entity", "prov:label": source.name}
        | ({"sc:identifier": f"md5:{source.md5}"} if source.md5 else {})
        for source in manifest.sources
    ]
    producer = f"{manifest.producer.name} {manifest.producer.version}"
    settings = json.dumps(manifest.config, sort_keys=True)
    quarantined = sum(manifest.quarantined.values())
    licence = manifest.settings.licence
    excluded = dataset_store.num_excluded(dataset.store, manifest)
    rows = [
        {"classes/index": index, "classes/id": wnid, "classes/words": words}
        for index, (wnid, words) in enumerate(zip(classes.wnids, classes.words, strict=True))
    ]
    splits = [
        {"splits/name": name, "splits/images": split.examples, "splits/root": split.samples_root}
        for name, split in manifest.splits.items()
    ]
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": _CONFORMS,
        "version": f"1.0.0+{manifest.digest[:16]}",
        "name": name,
        "description": f"{images:,} images of {len(classes.wnids):,} classes in TFRecord shards. "
        f"The digest {manifest.digest} of {schema.MANIFEST} identifies the images and labels.",
        "isLiveDataset": False,
        "rai:dataPreprocessingProtocol": [f"{producer} with the settings {settings}"],
        "rai:dataCollectionMissingData": f"{quarantined:,} images of the source are quarantined, "
        f"and {excluded:,} are excluded on request.",
        **({"prov:wasDerivedFrom": sources} if sources else {}),
        "prov:wasGeneratedBy": {"@type": "prov:Activity", "prov:label": producer},
        **({"license": licence} if licence else {}),
        **about,
        "distribution": [*map(_object, files), *map(_file_set, texts)],
        "recordSet": [
            _records("classes", {"index": "Integer", "id": "Text", "words": "Text"}, rows),
            _records("splits", {"name": "Text", "images": "Integer", "root": "Text"}, splits),
            *map(_text_records, texts),
        ],
    }


def _refuse_misspelt(about: Json) -> None:
    """Raises UsageError if a field is almost, but not exactly, one of the format."""
    known = {name.lower(): name for name in (*OF_AUTHORS, *_OPTIONAL)}
    for name in about.keys() - known.values():
        near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=_LIKENESS)
        if near:
            raise UsageError(
                f"--about: {name}: not a field of Croissant. Did you mean {known[near[0]]}?"
            )


def _object(file: DatasetFile) -> Json:
    formats = {"json": "application/json", "txt": "text/plain", "jsonl": "application/jsonlines"}
    return {
        "@type": "cr:FileObject",
        "@id": file.name,
        "name": file.name,
        "contentUrl": file.name,
        "contentSize": f"{file.num_bytes} B",
        "encodingFormat": formats.get(file.name.rpartition(".")[2], "application/octet-stream"),
        "sha256": file.sha256,
    }


def _file_set(column: Column) -> Json:
    """Returns the set of the files of a column of texts."""
    return {
        "@type": "cr:FileSet",
        "@id": folder_name(column.name),
        "name": folder_name(column.name),
        "encodingFormat": "application/jsonlines",
        "includes": f"{folder_name(column.name)}/*.jsonl",
    }


def _text_records(column: Column) -> Json:
    """Returns the record set of a column of texts: for each image, its shard and its texts."""
    files = {"fileSet": {"@id": folder_name(column.name)}}
    in_name = {"fileProperty": "filename"}
    shard = {**files, "extract": in_name, "transform": {"regex": r"^(.*)\.jsonl$"}}
    texts = {**files, "extract": {"column": column.name}}
    name = f"column_{column.name}"
    return {
        "@type": "cr:RecordSet",
        "@id": name,
        "name": name,
        "description": f"Texts of the column {column.name}, in the order of the shard's records.",
        "field": [
            {**_field(name, "shard", "Text"), "source": shard},
            {**_field(name, "texts", "Text"), "repeated": True, "source": texts},
        ],
    }


def _field(records: str, name: str, kind: str) -> Json:
    """Returns a field of a record set."""
    return {
        "@type": "cr:Field",
        "@id": f"{records}/{name}",
        "name": name,
        "dataType": f"sc:{kind}",
    }


def _records(name: str, fields: dict[str, str], rows: list[Json]) -> Json:
    """Returns a record set that contains its records as inline data."""
    return {
        "@type": "cr:RecordSet",
        "@id": name,
        "name": name,
        "key": {"@id": f"{name}/{next(iter(fields))}"},
        "field": [_field(name, field, kind) for field, kind in fields.items()],
        "data": rows,
    }
