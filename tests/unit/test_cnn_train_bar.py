"""The bar of `train.py`: on a terminal only, with rate, loss and time left."""

import io
import re
import sys

from layermark.seeds.cnns.train_bar import Bar, NoBar, bar_for_terminal


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_pipe_gets_no_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert type(bar_for_terminal()) is NoBar


def test_a_terminal_sees_what_is_done_and_what_is_left(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    bar = bar_for_terminal()
    assert isinstance(bar, Bar)
    bar.phase("preparing")
    bar.begins(3)
    bar.called(9.0, 16, 2.5)
    bar.called(2.0, 16, 1.25)
    print("a line of the run")
    bar.close()
    shown = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", sys.stderr.getvalue())
    assert "preparing" in shown and "2/3" in shown
    assert "8 img/sec, loss 1.250, 2s left" in shown
    assert sys.stdout.getvalue() == "a line of the run\n" and "a line of the run" not in shown


def test_closing_a_bar_that_never_began_is_nothing():
    Bar().close()
