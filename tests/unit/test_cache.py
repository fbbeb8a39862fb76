import os
import subprocess
import sys
from pathlib import Path

import pytest

from layermark import cache


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "answer.npz"
    with pytest.raises(IsADirectoryError), cache.whole(path) as part:
        part.parent.write_text("half")
    assert [] == list(path.parent.iterdir())
    with cache.whole(path) as part:
        part.write_text("all")
        assert not path.exists()
    assert [path] == list(path.parent.iterdir())


def test_room_is_made_by_what_was_not_used_for_longest(tmp_path: Path) -> None:
    for age, name in enumerate(["new.npz", "middle.npz", "old.npz"]):
        (tmp_path / name).write_bytes(b"x" * 100)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    cache.make_room(tmp_path, 250)
    assert {"new.npz", "middle.npz"} == {file.name for file in tmp_path.iterdir()}
    cache.make_room(tmp_path / "missing", 1)


def test_files_that_vanish_meanwhile_are_nobodys_trouble(tmp_path: Path) -> None:
    (tmp_path / "other.123.part").symlink_to(tmp_path / "gone")  # listed, and not there when it is looked at
    (tmp_path / "old.npz").write_bytes(b"x" * 100)
    cache.make_room(tmp_path, 50)
    assert ["other.123.part"] == [file.name for file in tmp_path.iterdir()]


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tmp_path / "layermark" / "oracle" == cache.folder("oracle")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert ".cache" in cache.folder("oracle").parts


def test_one_process_at_a_time_makes_a_file(tmp_path):
    made = tmp_path / "sub" / "file.npz"
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom layermark import cache\npath = Path(sys.argv[1])\n"
        "with cache.alone(path):\n"
        "    if not path.exists():\n        time.sleep(0.2)\n        path.write_text('made')\n        print('made')\n"
    )
    started = [subprocess.Popen([sys.executable, "-c", code, str(made)], stdout=subprocess.PIPE) for _ in range(3)]
    assert [b"", b"", b"made\n"] == sorted(each.communicate(timeout=60)[0] for each in started)
