#!/usr/bin/env python3
"""doc/studies.md holds what the commands print: each block between <!-- systole ... --> and <!-- end --> is made again. Numbers
may differ in their last digits from machine to machine; words may not. --write puts in what the program says now."""
import re
import shlex
import sys

from support import lib
from support.lib import ok

PAGE = "doc/studies.md"
BLOCK = re.compile(r"<!-- systole (.*?) -->\n(.*?)<!-- end -->", re.S)
NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")


def say(command):
    return "\n" + ok(*shlex.split(command)).decode() + "\n"


def alike(theirs, ours, command):
    assert NUMBER.sub("#", theirs) == NUMBER.sub("#", ours), "%s: says something else:\n%s" % (command, ours)
    for a, b in zip(NUMBER.findall(theirs), NUMBER.findall(ours)):
        digits = len(b.split(".")[1]) if "." in b else 0
        assert abs(float(a) - float(b)) <= max(2 * 10**-digits, 0.02 * abs(float(b))), "%s: %s became %s" % (command, a, b)


def test_tables():
    with open(PAGE, encoding="utf-8") as f:
        blocks = BLOCK.findall(f.read())
    assert len(blocks) >= 7
    for command, text in blocks:
        alike(text, say(command), command)


def test_a_change_is_seen():
    """The comparison can fail: on a word, on a number."""
    for theirs in ("| a | 1.00 |", "| b | 1.05 |", "| a | 1.10 |"):
        same = theirs == "| a | 1.00 |"
        try:
            alike(theirs, "| a | 1.01 |", "")
            assert same, theirs
        except AssertionError:
            assert not same, theirs


if __name__ == "__main__":
    if "--write" in sys.argv:
        with open(PAGE, encoding="utf-8") as f:
            page = BLOCK.sub(lambda m: "<!-- systole %s -->\n%s<!-- end -->" % (m.group(1), say(m.group(1))), f.read())
        with open(PAGE, "w", encoding="utf-8") as f:
            f.write(page)
    else:
        lib.main(globals())
