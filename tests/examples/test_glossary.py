"""The glossary names every public class of the core, and nothing that does not exist."""

import inspect
import pkgutil
import re
from importlib import import_module
from pathlib import Path

import pytest

import retinoscope
import retinoscope.core

ROOT = Path(__file__).parents[2]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text("utf-8")
ENTRY = re.compile(r"^- \*\*([A-Za-z -]+)\*\*(?: \(`([\w.]+)`\))?: \S", re.MULTILINE)
ENTRIES = dict(ENTRY.findall(GLOSSARY))
"""The path of each entry's class within the package; empty where it is no class."""


def public_classes_of_core():
    for found in pkgutil.iter_modules(retinoscope.core.__path__):
        module = import_module(f"retinoscope.core.{found.name}")
        for name, one in vars(module).items():
            own = inspect.isclass(one) and one.__module__ == module.__name__
            if own and not name.startswith("_") and not issubclass(one, Exception):
                yield f"core.{found.name}.{name}"


def test_every_public_class_of_the_core_has_an_entry():
    missing = set(public_classes_of_core()) - set(ENTRIES.values())
    assert not missing, "add an entry to docs/glossary.md: - **Name** (`path.Class`): …"


def test_every_class_that_can_be_imported_from_the_package_has_an_entry():
    classes = [getattr(retinoscope, name) for name in retinoscope.__all__]
    paths = {
        f"{one.__module__}.{one.__name__}".removeprefix("retinoscope.")
        for one in classes
        if inspect.isclass(one) and not issubclass(one, Exception)
    }
    assert paths <= set(ENTRIES.values())


def test_errors_are_one_entry():
    assert ENTRIES["Errors"] == "core.errors"


@pytest.mark.parametrize("name", [name for name, path in ENTRIES.items() if path])
def test_what_an_entry_names_exists(name):
    module, _, last = f"retinoscope.{ENTRIES[name]}".rpartition(".")
    found = getattr(import_module(module), last, None) or import_module(f"{module}.{last}")
    if inspect.isclass(found):
        assert found.__module__ == module, "an entry gives the path where the class is defined"
    else:
        assert inspect.ismodule(found)


def test_each_line_is_an_entry_and_each_name_is_explained_once():
    names = [name.lower() for name, _ in ENTRY.findall(GLOSSARY)]
    assert len(names) == len(set(names)) == GLOSSARY.count("\n- ")


@pytest.mark.parametrize(
    "noun",
    ["unit", "kind", "stage", "subject", "probe", "watcher", "view", "piece", "run", "surgery",
     "recipe"],
)  # fmt: skip
def test_the_nouns_of_the_documentation_are_explained(noun):
    assert noun in [name.lower() for name in ENTRIES]


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", [p for p in PAGES if p.stem != "glossary"], ids=lambda p: p.stem)
def test_each_page_links_to_it(page):
    link = "docs/glossary.md" if page.stem == "README" else "glossary.md"
    assert f"]({link}" in page.read_text("utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target
