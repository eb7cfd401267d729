"""Rules for every Python file of the connector."""

from __future__ import annotations

import ast
import pathlib
import re
import sys
import unittest
from collections.abc import Iterator

CONNECTOR = pathlib.Path(__file__).resolve().parent.parent
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_LINE = 100
MAX_LIBRARY_LINES = 2500

# Modules that may import the engines and their dependencies. The others need only
# the standard library, so that they run anywhere.
ENGINE_SIDE = (
    "blockyard/vllm/",
    "blockyard/trtllm/",
    "blockyard/numpy_mover.py",
    "blockyard/torch_mover.py",
    "blockyard/native_cuda.py",
    "kvbm/",
    "bench/",
    "e2e/",
    "tests/stubs",
    "tests/crew",
)


def sources() -> Iterator[tuple[str, str, ast.Module]]:
    """Name, text and syntax of every Python file of the connector."""
    for path in sorted(CONNECTOR.rglob("*.py")):
        name = path.relative_to(CONNECTOR).as_posix()
        if "build/" in name or name.startswith("."):
            continue
        text = path.read_text(encoding="utf-8")
        yield name, text, ast.parse(text, name)


def imported(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Top-level package and line of every absolute import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.partition(".")[0], node.lineno
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0], node.lineno


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


class House(unittest.TestCase):
    def test_core_imports_the_standard_library_alone(self) -> None:
        own = {"blockyard", "tests", "kvbm"}
        for name, _, tree in sources():
            if name.startswith(ENGINE_SIDE) or name.startswith("tests/test_"):
                continue
            for package, line in imported(tree):
                with self.subTest(f"{name}:{line}"):
                    self.assertIn(package, sys.stdlib_module_names | own)

    def test_blockyard_imports_neither_tests_nor_bench(self) -> None:
        for name, _, tree in sources():
            if not name.startswith(("blockyard/", "kvbm/kvbm/")):
                continue
            for package, line in imported(tree):
                with self.subTest(f"{name}:{line}"):
                    self.assertNotIn(package, {"tests", "bench", "e2e"})

    def test_files_and_functions_are_short(self) -> None:
        for name, text, tree in sources():
            lines = text.count("\n")
            with self.subTest(name):
                self.assertLessEqual(lines, MAX_FILE_LINES)
            for f in functions(tree):
                length = (f.end_lineno or f.lineno) - f.lineno + 1
                with self.subTest(f"{name}:{f.lineno} {f.name}"):
                    self.assertLessEqual(length, MAX_FUNCTION_LINES)

    def test_the_library_in_c_is_small(self) -> None:
        lines = 0
        for path in sorted((CONNECTOR / "native").rglob("*.[ch]")):
            text = path.read_text(encoding="utf-8")
            if path.parent.name == "native":
                lines += text.count("\n")
            with self.subTest(path.name):
                self.assertLessEqual(text.count("\n"), MAX_FILE_LINES)
                for body in re.findall(r"^{\n.*?^}", text, re.MULTILINE | re.DOTALL):
                    self.assertLessEqual(body.count("\n"), MAX_FUNCTION_LINES, body[:60])
        self.assertLess(lines, MAX_LIBRARY_LINES)

    def test_lines_fit(self) -> None:
        for name, text, _ in sources():
            for number, line in enumerate(text.split("\n"), 1):
                with self.subTest(f"{name}:{number}"):
                    self.assertLessEqual(len(line), MAX_LINE)

    def test_what_is_exported_is_documented(self) -> None:
        for name, _, tree in sources():
            if not name.startswith(("blockyard/", "kvbm/kvbm/")):
                continue
            with self.subTest(name):
                self.assertTrue(ast.get_docstring(tree), "the module has no docstring")
            for node in tree.body:
                if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name[0] != "_":
                    with self.subTest(f"{name}:{node.lineno} {node.name}"):
                        self.assertTrue(ast.get_docstring(node), "has no docstring")


if __name__ == "__main__":
    unittest.main()
