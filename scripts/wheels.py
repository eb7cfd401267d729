"""Makes the connector's wheels: wheels.py OUTPUT WHEEL

WHEEL is the connector's wheel as pip builds it, with the sources of connector/native. For each
machine with a compiler here, OUTPUT gets a wheel with the built library. Without any compiler
OUTPUT gets WHEEL itself. Prints one line for each wheel.
"""

from __future__ import annotations

import base64
import hashlib
import os
import pathlib
import platform
import re
import shutil
import sys
import tempfile
import zipfile

CONNECTOR = pathlib.Path(__file__).resolve().parent.parent / "connector"
sys.path.insert(0, str(CONNECTOR))

from blockyard import native  # noqa: E402

MACHINES = ("x86_64", "aarch64")


def compiler(machine: str) -> str | None:
    """A compiler for a machine: the usual one for this machine, else Debian's cross compiler."""
    if machine == platform.machine():
        return native.compiler()
    return shutil.which(f"{machine}-linux-gnu-gcc")


def add(wheel: pathlib.Path, out: pathlib.Path, machine: str, library: bytes) -> pathlib.Path:
    """Writes a copy of a pure wheel with the library. Returns the path."""
    made = out / wheel.name.replace("-none-any.whl", f"-none-linux_{machine}.whl")
    name = f"blockyard/_native/{native.file_name(CONNECTOR / 'native', machine)}"
    digest = base64.urlsafe_b64encode(hashlib.sha256(library).digest()).rstrip(b"=").decode()
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        tag = hashlib.sha256()
        changed: dict[str, bytes] = {}
        for item in old.infolist():
            data = old.read(item)
            if item.filename.endswith(".dist-info/WHEEL"):
                text = data.decode().replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
                data = re.sub(r"-none-any\b", f"-none-linux_{machine}", text).encode()
                tag = hashlib.sha256(data)
                changed[item.filename] = data
            elif item.filename.endswith(".dist-info/RECORD"):
                lines = data.decode().splitlines()
                (info,) = changed
                sum_ = base64.urlsafe_b64encode(tag.digest()).rstrip(b"=").decode()
                lines = [line for line in lines if not line.startswith(f"{info},")]
                lines += [f"{info},sha256={sum_},{len(changed[info])}"]
                lines += [f"{name},sha256={digest},{len(library)}"]
                data = ("\n".join(lines) + "\n").encode()
            new.writestr(item, data)
        info_ = zipfile.ZipInfo(name, old.infolist()[0].date_time)
        info_.external_attr = 0o100755 << 16
        info_.compress_type = zipfile.ZIP_DEFLATED
        new.writestr(info_, library)
    return made


def main() -> int:
    out, wheel = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    made = 0
    for machine in MACHINES:
        cc = compiler(machine)
        if cc is None:
            print(f"skip  no C compiler for {machine}")
            continue
        with tempfile.TemporaryDirectory() as scratch:
            library = pathlib.Path(scratch) / "library.so"
            native.build(CONNECTOR / "native", library, cc)
            print(f"ok    {add(wheel, out, machine, library.read_bytes())}")
        made += 1
    if not made:
        shutil.copy(wheel, out)
        print(f"ok    {out / wheel.name}, which builds its library at the first import")
    return 0


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
