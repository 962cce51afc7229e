"""Annotations that grow, point elsewhere or are nested without end."""

from __future__ import annotations


def billion_laughs() -> bytes:
    """Returns a text with entities that would grow to 3 GB."""
    grown = (b'<!ENTITY e%d "%s">' % (n, b"&e%d;" % (n - 1) * 10) for n in range(1, 10))
    return b"<!DOCTYPE a [<!ENTITY e0 'lol'>" + b"".join(grown) + b"]><a>&e9;</a>"


def external_entity(path: str = "/etc/passwd") -> bytes:
    """Returns a text with an entity that names a file of this machine."""
    return b"<!DOCTYPE a [<!ENTITY e SYSTEM 'file://%s'>]><a>&e;</a>" % path.encode()


def nested(depth: int) -> bytes:
    """Returns elements in elements."""
    return b"<a>" * depth + b"</a>" * depth


def many_boxes(count: int) -> bytes:
    """Returns an annotation with this number of empty boxes."""
    size = b"<size><width>1</width><height>1</height></size>"
    return b"<a>" + size + b"<bndbox/>" * count + b"</a>"


def number_of_many_digits() -> bytes:
    """Returns an annotation with a width of 5,000 digits."""
    return b"<a><size><width>" + b"9" * 5000 + b"</width><height>1</height></size></a>"
