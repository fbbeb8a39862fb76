"""The documentation as a site: it builds strictly, every link leads somewhere, and no page asks another host."""

import os
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from browser import Browser

ROOT = Path(__file__).parents[2]


def build(project, target):
    """Build the site of a project into a folder."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    built = build(ROOT, folder)
    assert 0 == built.returncode, built.stderr
    return folder


class Page(HTMLParser):
    """The names that a page has, where it leads, and what it loads."""

    def __init__(self, path):
        super().__init__()
        self.names, self.links, self.loads = {""}, [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.names |= {given[key] for key in ("id", "name") if given.get(key)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if given.get("src") or tag == "link":
            self.loads.append(given.get("src") or given.get("href", ""))


def broken(site, pages):
    """Every link to a page, an anchor or a file that is not there."""
    for path, page in pages.items():
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (target in pages and unquote(parts.fragment) not in pages[target].names):
                yield f"{path.relative_to(site)}: {link}"


def test_every_link_leads_somewhere_and_nothing_is_loaded_from_elsewhere(site):
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} == {path.stem for path in pages}
    assert [] == list(broken(site.resolve(), pages))
    assert [] == [load for page in pages.values() for load in page.loads if urlsplit(load).netloc]


def test_a_broken_link_and_a_page_without_a_place_fail_the_build(tmp_path):
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "docs" / "stray.md").write_text("[gone](nowhere.md) and [gone](report.md#no-such-part)\n")
    built = build(tmp_path, tmp_path / "site")
    assert 0 != built.returncode
    for word in ("nowhere.md", "no-such-part", "stray.md"):
        assert word in built.stdout + built.stderr


def test_pages_work_without_a_network(site):
    with Browser() as browser:
        for name in ("index", "gallery", "cli"):
            browser.size(390, 900)
            browser.open((site / f"{name}.html").as_uri())
            assert browser.evaluate("document.documentElement.scrollWidth") <= 390
            assert {urlsplit(each).scheme for each in browser.requests()} <= {"file", "data"}
            assert [] == browser.complaints()
        assert 1 < browser.evaluate("[...document.images].length + document.querySelectorAll('h2').length")
