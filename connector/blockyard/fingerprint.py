"""Fingerprints of weights and of LoRA adapters. Engines share KV only with equal fingerprints.

Names do not identify weights: a fine-tune saved over its base model keeps path and name. Equal
tokens have equal engine hashes in all models. So a fingerprint covers the files themselves: small
files whole, large files by size, time of change, header and samples. That takes milliseconds, where
a full read would read a hundred gigabytes. A fingerprint misses a change between the samples that
keeps the size and restores the time. The setting `weights` covers this case.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

VERSION = "blockyard.weights.v1"
WHOLE_FILE_BYTES = 1 << 20
SAMPLE_BYTES = 4096
SAMPLES = 12
MAX_HEADER_BYTES = 4 << 20
MAX_FILES = 10_000
MAX_DEPTH = 2

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz", ".npy", ".json", ".py")
# Files of a model directory that do not affect the KV of given token ids.
UNRELATED = (
    "tokenizer",
    "vocab",
    "special_tokens",
    "added_tokens",
    "merges",
    "generation_config",
    "chat_template",
    "preprocessor",
    "processor",
)
# Loaders that read their weights from files on this machine.
FILE_LOADERS = frozenset(
    "auto hf safetensors pt npcache mistral fastsafetensors instanttensor sharded_state gguf"
    " bitsandbytes runai_streamer runai_streamer_sharded".split()
)


class Fingerprint(NamedTuple):
    """The fingerprint of weights. text: goes into the namespace.

    shared: False when the weights could not be identified, so text is unique to this engine start.
    reason: why, for people.
    """

    text: str
    shared: bool
    reason: str = ""


@dataclass(frozen=True)
class Source:
    """The source of an engine's weights.

    model: a directory, a file, or a Hugging Face id. revision, cache_dir: of that id. load_format:
    the engine's loader. seed: of random weights. config: all other inputs of a token's KV: the
    effective model configuration, quantization, KV scales.
    """

    model: str
    revision: str = ""
    cache_dir: str = ""
    load_format: str = "auto"
    seed: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)


def weights_fingerprint(
    source: Source, given: str = "", read_after: float = math.inf
) -> Fingerprint:
    """The fingerprint of an engine's weights. given: the user's fingerprint, instead of the files.

    read_after: start of the engine, in seconds of the epoch. The engine may not have read files
    that changed later, so such weights are unknown.
    """
    digest = hashlib.sha256(VERSION.encode())
    _feed(digest, json.dumps(source.config, sort_keys=True, default=str).encode())
    if given:
        _feed(digest, b"given", given.encode())
        return Fingerprint("given-" + digest.hexdigest()[:32], True)
    if source.load_format == "dummy":
        _feed(digest, b"dummy", str(source.seed).encode())
        return Fingerprint("dummy-" + digest.hexdigest()[:32], True)
    if source.load_format not in FILE_LOADERS:
        return _unique(f"load format {source.load_format!r} does not say which files it reads")
    where = locate(source.model, source.revision, source.cache_dir)
    if where is None:
        return _unique(f"model {source.model!r} is not on this machine")
    try:
        if not _feed_tree(digest, where):
            return _unique(f"no weight files in {where}")
        changed = _changed_since(where, read_after)
        if changed:
            return _unique(f"{changed} changed after this engine's start")
    except (OSError, ValueError) as err:
        return _unique(f"weights in {where}: {err}")
    return Fingerprint("files-" + digest.hexdigest()[:32], True)


def _unique(reason: str) -> Fingerprint:
    return Fingerprint("unknown-" + secrets.token_hex(16), False, reason)


def combined(first: Fingerprint, second: Fingerprint) -> Fingerprint:
    """One fingerprint for a model and its draft model. The blocks have the layers of both."""
    digest = hashlib.sha256(f"{first.text} {second.text}".encode()).hexdigest()[:32]
    reason = first.reason or second.reason
    return Fingerprint("pair-" + digest, first.shared and second.shared, reason)


def locate(model: str, revision: str = "", cache_dir: str = "") -> Path | None:
    """The directory or file of `model` on this machine, or None. Hugging Face's cache counts.

    locate() downloads nothing.
    """
    if "://" in model or not model:
        return None
    path = Path(model).expanduser()
    if path.exists():
        return path
    if model.count("/") > 1 or model.startswith((".", "/", "~")):
        return None
    repository = _hub_cache(cache_dir) / ("models--" + model.replace("/", "--"))
    wanted = revision or "main"
    try:
        commit = (repository / "refs" / wanted).read_text(encoding="ascii").strip()
    except (OSError, UnicodeError):
        commit = wanted
    snapshot = repository / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def _hub_cache(cache_dir: str) -> Path:
    if cache_dir:
        return Path(cache_dir).expanduser()
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser()
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface"
    )
    return Path(home).expanduser() / "hub"


class LoraFiles(NamedTuple):
    """An adapter's fingerprint, and the `stat` results of its files before the fingerprint."""

    text: str
    stats: tuple[tuple[str, int, int, int, int], ...]

    def unchanged(self) -> bool:
        """Whether the files are unchanged. Costs one stat for each file."""
        try:
            return all(_stat(path) == (path, *rest) for path, *rest in self.stats)
        except OSError:
            return False


def lora_fingerprint(path: str, cache_dir: str = "") -> LoraFiles:
    """The fingerprint of the adapter at `path` (a directory or a Hugging Face id).

    OSError when the adapter cannot be read, ValueError when the path has no adapter. Then a request
    with this adapter must not share blocks.
    """
    where = locate(path, "", cache_dir)
    if where is None:
        raise FileNotFoundError(f"LoRA adapter {path!r} is not on this machine")
    digest = hashlib.sha256(VERSION.encode() + b".lora")
    # Taken before the content is read: unchanged() then detects a change during the read.
    stats = tuple(_stat(str(file)) for _, file in _files(where))
    if not _feed_tree(digest, where):
        raise ValueError(f"LoRA adapter {where}: no weight files")
    return LoraFiles("lora-" + digest.hexdigest()[:32], stats)


def _stat(path: str) -> tuple[str, int, int, int, int]:
    status = os.stat(path)  # no program can restore st_ctime_ns
    return path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _files(where: Path) -> Iterator[tuple[str, Path]]:
    """Relative name and path of every relevant file, sorted."""
    if where.is_file():
        yield where.name, where
        return
    found: list[tuple[str, Path]] = []
    for base, directories, names in os.walk(where, followlinks=True):
        relative = os.path.relpath(base, where)
        depth = 0 if relative == "." else relative.count(os.sep) + 1
        if depth >= MAX_DEPTH:
            directories.clear()
        directories[:] = [name for name in directories if not name.startswith(".")]
        for name in names:
            lower = name.lower()
            # The prefix excludes only text files. A file of weights counts under any name.
            unrelated = lower.endswith((".json", ".py")) and lower.startswith(UNRELATED)
            if lower.endswith(WEIGHT_SUFFIXES) and not unrelated:
                full = Path(base) / name
                found.append((os.path.relpath(full, where), full))
        if len(found) > MAX_FILES:
            raise ValueError(f"more than {MAX_FILES} files")
    yield from sorted(found)


def _feed_tree(digest: Any, where: Path) -> bool:
    """Feeds every relevant file to the digest. False without a file of weights."""
    weights = False
    for name, path in _files(where):
        # The user chooses the name of a single file (GGUF). Names in a directory have meaning.
        _feed(digest, b"" if path == where else name.encode("utf-8", "surrogateescape"))
        _feed_file(digest, path)
        weights = weights or not name.endswith((".json", ".py"))
    return weights


def _feed_file(digest: Any, path: Path) -> None:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= WHOLE_FILE_BYTES:
            _feed(digest, b"whole", file.read(WHOLE_FILE_BYTES + 1))
            return
        _feed(digest, b"sampled", str(size).encode(), _version_of(path, file.fileno()))
        head = file.read(SAMPLE_BYTES)
        _feed(digest, head)
        header = int.from_bytes(head[:8], "little")
        if path.suffix == ".safetensors" and header <= min(MAX_HEADER_BYTES, size - 8):
            _feed(digest, os.pread(file.fileno(), header, 8))
        for i in range(1, SAMPLES + 1):
            offset = (size - SAMPLE_BYTES) * i // SAMPLES
            _feed(digest, os.pread(file.fileno(), SAMPLE_BYTES, offset))


def _version_of(path: Path, fd: int) -> bytes:
    """The content's name in a content-addressed store (Hugging Face), otherwise the file's time."""
    return _blob_of(path).encode() or str(os.fstat(fd).st_mtime_ns).encode()


def _blob_of(path: Path) -> str:
    """The content's name that `path` links to. Empty without a content-addressed store."""
    if path.is_symlink():
        target = Path(os.readlink(path))
        if target.parent.name == "blobs" and len(target.name) in (40, 64):
            return target.name
    return ""


def _changed_since(where: Path, moment: float) -> str:
    """A file that was changed or created after `moment`, or an empty string.

    A file named by its content never changes.
    """
    if moment == math.inf:
        return ""
    for _, path in _files(where):
        if path.stat().st_ctime > moment and not _blob_of(path):
            return str(path)
    return ""


def process_start() -> float:
    """The start of this process in seconds of the epoch, or infinity when unknown."""
    try:
        stat = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
        ticks = int(stat.rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return math.inf
    return time.time() - age


def _feed(digest: Any, *parts: bytes) -> None:
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
