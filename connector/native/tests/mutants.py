"""Puts each known hazard back into the library, and checks that a test with the fake driver fails.

    python3 mutants.py        (needs a C compiler with AddressSanitizer)

Prints a table. The exit status is 1 when a mutant passes, when the unchanged library fails, or when
a mutant's text is not in the sources any more.
"""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

NATIVE = pathlib.Path(__file__).resolve().parent.parent
SEEDS = ("1", "2", "3")
FLAGS = "-std=c11 -g -O1 -fsanitize=address -fno-sanitize-recover=all -pthread -w".split()

# Hazard, file, text of the library, text of the mutant.
MUTANTS = (
    (
        "arrays of a batch freed before its event",
        "cuda.c",
        "\tcopy->queued = 1;\n",
        "\tcopy->queued = 1;\n\tfree(copy->sizes);\n\tcopy->sizes = NULL;\n",
    ),
    (
        "no wait for the fence",
        "cuda.c",
        "error = cuda->call.cuStreamWaitEvent(stream, copy->fence->event, 0);",
        "error = 0;",
    ),
    (
        "a run across two registrations",
        "cuda.c",
        "uint64_t bytes = end - left.host < left.bytes ? end - left.host : left.bytes;",
        "uint64_t bytes = left.bytes;",
    ),
    (
        "pinning on the copying thread",
        "cuda.c",
        "\tif (parts || !copy->fence) {\n",
        "\tif (!parts)\n\t\tby_cuda_pin(cuda, copy->is_load ? copy->from[0] : copy->to[0], 1);\n"
        "\tif (parts || !copy->fence) {\n",
    ),
    (
        "copies that wait for a pin",
        "cuda.c",
        "error = cuda->call.cuMemHostRegister((void *)(uintptr_t)address, bytes,\n"
        "\t\t\t\t\t\t     CU_MEMHOSTREGISTER_PORTABLE);",
        "pthread_mutex_lock(&cuda->lock),\n"
        "\t\terror = cuda->call.cuMemHostRegister((void *)(uintptr_t)address, bytes,\n"
        "\t\t\t\t\t\t     CU_MEMHOSTREGISTER_PORTABLE),\n"
        "\t\tpthread_mutex_unlock(&cuda->lock);",
    ),
    (
        "capture mode not relaxed",
        "cuda.c",
        "if (!relaxed && cuda->call.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS)",
        "if (!mode)",
    ),
    (
        "a fence on a stream that captures",
        "cuda.c",
        "if (!error && capturing) {",
        "if (0) {",
    ),
    (
        "sources of stores in any order",
        "cuda.c",
        "is_load ? CU_MEMCPY_SRC_ACCESS_ORDER_ANY : CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;",
        "CU_MEMCPY_SRC_ACCESS_ORDER_ANY;",
    ),
    (
        "batches above the driver's limit",
        "cuda.c",
        "(!n || bytes + copy->sizes[at + n] <= BATCH_BYTES)",
        "1",
    ),
    (
        "an end before the device's event",
        "cuda.c",
        "\tif (error == CUDA_ERROR_NOT_READY)\n\t\treturn 1;\n",
        "\tif (error == CUDA_ERROR_NOT_READY)\n\t\treturn 0;\n",
    ),
    (
        "unpinned memory queued before its fence",
        "cuda.c",
        "\tif (parts || !copy->fence) {\n",
        "\tif (1) {\n",
    ),
    (
        "unpinned memory in a batch",
        "cuda.c",
        "error = pinned && cuda->call",
        "error = cuda->call",
    ),
    (
        "loads behind stores in one stream",
        "cuda.c",
        "CUstream stream = copy->is_load ? cuda->loads : cuda->stores;",
        "CUstream stream = cuda->stores;",
    ),
    (
        "calls without the engine's context",
        "cuda.c",
        "return cuda->call.cuCtxSetCurrent(cuda->context);",
        "return 0;",
    ),
    (
        "arrays freed after the driver failed",
        "cuda.c",
        "\t\tlose_copy(cuda, copy);\n\t\treturn say(text, \"the device\", error);",
        "\t\tfree_copy(cuda, copy);\n\t\treturn say(text, \"the device\", error);",
    ),
)


def run(directory: pathlib.Path) -> str:
    """Builds and tests the library in a directory. Returns the failed test, or an empty string."""
    cc = os.environ.get("CC", "cc")
    fake = directory / "libcuda.so.1"
    sources = [str(p) for p in sorted(directory.glob("*.c"))]
    tests = directory / "tests"
    commands = (
        [cc, *FLAGS, "-fPIC", "-shared", "-o", str(fake)]
        + [str(p) for p in sorted(tests.glob("fake*.c"))],
        [cc, *FLAGS, "-o", str(directory / "test"), str(tests / "test_cuda.c"), *sources]
        + [f"-L{directory}", "-l:libcuda.so.1", f"-Wl,-rpath,{directory}", "-ldl"],
    )
    for command in commands:
        subprocess.run(command, check=True)
    for seed in SEEDS:
        try:
            done = subprocess.run(
                [str(directory / "test"), str(fake), seed],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "timeout"
        if done.returncode:
            return _failed(done.stderr)
    return ""


def _failed(output: str) -> str:
    """The failed test in the output of a run."""
    found = re.search(r"test_cuda\.c:\d+: (\w+): not true", output)
    if found:
        return found[1]
    found = re.search(r"AddressSanitizer: ([\w-]+)", output)
    return f"AddressSanitizer: {found[1]}" if found else output.strip()[-60:]


def try_mutant(mutant: tuple[str, str, str, str] | None) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        directory = pathlib.Path(scratch) / "native"
        shutil.copytree(NATIVE, directory)
        if mutant is not None:
            name, file, old, new = mutant
            text = (directory / file).read_text()
            if text.count(old) != 1:
                return f"STALE: {text.count(old)} places"
            (directory / file).write_text(text.replace(old, new))
        return run(directory)


def main() -> int:
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(try_mutant, (None, *MUTANTS)))
    status = 0
    if results[0]:
        print(f"the unchanged library fails: {results[0]}")
        status = 1
    print("| hazard | found by |\n|---|---|")
    for (name, *_), found in zip(MUTANTS, results[1:], strict=True):
        missed = not found or found.startswith("STALE")
        status |= missed
        print(f"| {name} | {'NOT FOUND' if not found else found} |")
    return status


if __name__ == "__main__":
    sys.exit(main())
