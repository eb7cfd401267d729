"""Fingerprints of weights and of LoRA adapters: what must be equal for KV to be interchangeable.

Names do not tell weights apart: a fine-tune saved over its base model keeps path and name, and
equal tokens give equal engine hashes across models. So a fingerprint covers the files themselves:
small ones whole, large ones by size, time of change, header and samples of their content, which
takes milliseconds instead of reading a hundred gigabytes. A file that was changed in place
between the samples, at equal size and with its time put back, is not noticed; the setting
`weights` is there for whoever does that.
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
# Files of a model directory that have no say in what the KV of given token ids is.
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
# Loaders that take their weights from files on this machine.
FILE_LOADERS = frozenset(
    "auto hf safetensors pt npcache mistral fastsafetensors instanttensor sharded_state gguf"
    " bitsandbytes runai_streamer runai_streamer_sharded".split()
)


class Fingerprint(NamedTuple):
    """text goes into the namespace. shared is False when text is unique to this engine start,
    because the weights could not be told apart; reason says why, for people."""

    text: str
    shared: bool
    reason: str = ""


@dataclass(frozen=True)
class Source:
    """Where an engine takes its weights from.

    model: a directory, a file, or a Hugging Face id. revision, cache_dir: of that id. load_format:
    the engine's loader. seed: of random weights. config: everything else that changes the KV of a
    token: the effective model configuration, quantization, KV scales.
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
    """The fingerprint of an engine's weights; `given` is the user's own word on the files.

    read_after: when the engine began, in seconds of the epoch. Files that changed later may not be
    those that it has read, so that what it computes with is not known.
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
    """One fingerprint for a model and its draft model, whose layers lie in the same blocks."""
    digest = hashlib.sha256(f"{first.text} {second.text}".encode()).hexdigest()[:32]
    reason = first.reason or second.reason
    return Fingerprint("pair-" + digest, first.shared and second.shared, reason)


def locate(model: str, revision: str = "", cache_dir: str = "") -> Path | None:
    """The directory or file that `model` names on this machine, Hugging Face's cache included.

    None when it is not here. Nothing is downloaded.
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
    """An adapter's fingerprint and what `stat` said of its files when it was taken."""

    text: str
    stats: tuple[tuple[str, int, int, int, int], ...]

    def unchanged(self) -> bool:
        """Whether the files are still those; costs one stat each."""
        try:
            return all(_stat(path) == (path, *rest) for path, *rest in self.stats)
        except OSError:
            return False


def lora_fingerprint(path: str, cache_dir: str = "") -> LoraFiles:
    """The fingerprint of the adapter at `path` (a directory or a Hugging Face id).

    OSError when it cannot be read, ValueError when it is no adapter: then nothing of a request
    that uses it may be shared.
    """
    where = locate(path, "", cache_dir)
    if where is None:
        raise FileNotFoundError(f"LoRA adapter {path!r} is not on this machine")
    digest = hashlib.sha256(VERSION.encode() + b".lora")
    # Taken before the content is read: a file that changes meanwhile then differs afterwards.
    stats = tuple(_stat(str(file)) for _, file in _files(where))
    if not _feed_tree(digest, where):
        raise ValueError(f"LoRA adapter {where}: no weight files")
    return LoraFiles("lora-" + digest.hexdigest()[:32], stats)


def _stat(path: str) -> tuple[str, int, int, int, int]:
    status = os.stat(path)  # the time of the last change of the inode cannot be put back
    return path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _files(where: Path) -> Iterator[tuple[str, Path]]:
    """Relative name and path of every file that matters, in order."""
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
            # A prefix says what a text is for; a file of weights counts whatever it is called.
            unrelated = lower.endswith((".json", ".py")) and lower.startswith(UNRELATED)
            if lower.endswith(WEIGHT_SUFFIXES) and not unrelated:
                full = Path(base) / name
                found.append((os.path.relpath(full, where), full))
        if len(found) > MAX_FILES:
            raise ValueError(f"more than {MAX_FILES} files")
    yield from sorted(found)


def _feed_tree(digest: Any, where: Path) -> bool:
    """Feeds every file that matters; False when none of them holds weights."""
    weights = False
    for name, path in _files(where):
        # The name of a single file (GGUF) is its owner's; inside a directory names have meaning.
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
    """The content's name where the store is content-addressed (Hugging Face), else its time."""
    return _blob_of(path).encode() or str(os.fstat(fd).st_mtime_ns).encode()


def _blob_of(path: Path) -> str:
    """The name of the content that `path` links to, empty where files have other names."""
    if path.is_symlink():
        target = Path(os.readlink(path))
        if target.parent.name == "blobs" and len(target.name) in (40, 64):
            return target.name
    return ""


def _changed_since(where: Path, moment: float) -> str:
    """A file that was changed, or put there, after `moment`; empty when there is none.

    One that is named by its content has always been the same.
    """
    if moment == math.inf:
        return ""
    for _, path in _files(where):
        if path.stat().st_ctime > moment and not _blob_of(path):
            return str(path)
    return ""


def process_start() -> float:
    """When this process began, in seconds of the epoch; infinity where that is not known."""
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
