"""Says what has to be installed when a connector's engine is not."""

from __future__ import annotations


def explained(err: ModuleNotFoundError, module: str, engine: str, name: str) -> ImportError:
    """The error to raise instead of err, which ended the import of `module`.

    engine is the package that the module needs, name what people call it. An error about anything
    else, such as a broken installation of the engine, comes back as it is.
    """
    if err.name == engine:
        return ImportError(f"{module} needs {name}, which is not installed (no package {engine})")
    if err.name == "blockyard":
        return ImportError(f"{module} needs the distribution blockyard-connector")
    return err
