"""ImportErrors that name the missing package of a connector."""

from __future__ import annotations


def explained(err: ModuleNotFoundError, module: str, engine: str, name: str) -> ImportError:
    """The error to raise instead of err, which ended the import of `module`.

    engine: the package that the module needs. name: the engine's name, for people. Any other error,
    such as a broken installation of the engine, is returned unchanged.
    """
    if err.name == engine:
        return ImportError(f"{module} needs {name}, which is not installed (no package {engine})")
    if err.name == "blockyard":
        return ImportError(f"{module} needs the distribution blockyard-connector")
    return err
