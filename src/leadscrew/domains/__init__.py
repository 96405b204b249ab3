"""The built-in domains, one folder or file each. Nothing is imported until a domain is asked for.

Every class takes keyword arguments only: `seed`, `path` where it reads the user's files, and its own options.
"""

from __future__ import annotations

from collections.abc import Mapping

BUILTIN: Mapping[str, str] = {
    "circle-packing": "leadscrew.domains.circle_packing:CirclePacking",
    "classify-jsonl": "leadscrew.domains.classify_jsonl:ClassifyJsonl",
    "debian-sections": "leadscrew.domains.debian_sections:DebianSections",
    "docstrings": "leadscrew.domains.docstrings:Docstrings",
    "folder": "leadscrew.domains.folder:FolderDomain",
}
"""Name of a built-in domain -> "module:Class"."""
