#!/usr/bin/env python3
"""Runs shell commands on a pseudo-terminal and draws what they show as an SVG: the picture in README.md.
usage: terminal_svg.py [--columns N] [--rows N] [--title T] -o OUT.svg COMMAND...        (each is typed at a "$ " prompt)

A small terminal: it knows carriage return, line feed, backspace, "erase to end of line", and drops other sequences."""
import argparse
import html
import os
import pty
import re
import struct
import sys
import fcntl
import termios

CELL_W, CELL_H, PAD = 8.4, 19, 14


class Screen:
    def __init__(self, columns):
        self.columns, self.lines, self.x = columns, [[]], 0

    def put(self, c):
        if self.x == self.columns:
            self.lines.append([])
            self.x = 0
        line = self.lines[-1]
        line.extend(" " * (self.x - len(line)))
        line[self.x : self.x + 1] = c
        self.x += 1

    def feed(self, text):
        for part in re.split(r"(\x1b\[[0-9;?]*[A-Za-z])", text):
            if part == "\x1b[K":
                del self.lines[-1][self.x :]
            elif not part.startswith("\x1b"):
                for c in part:
                    if c == "\n":
                        self.lines.append([])
                        self.x = 0
                    elif c == "\r":
                        self.x = 0
                    elif c == "\b":
                        self.x = max(0, self.x - 1)
                    elif c >= " ":
                        self.put(c)

    def text(self):
        lines = ["".join(line).rstrip() for line in self.lines]
        while lines and not lines[-1]:
            lines.pop()
        return lines


def run(command, columns, rows):
    pid, fd = pty.fork()
    if pid == 0:
        os.execvp("sh", ["sh", "-c", command])
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    out = b""
    while True:
        try:
            chunk = os.read(fd, 65536)
        except OSError:
            break
        if not chunk:
            break
        out += chunk
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        sys.exit("terminal_svg: '%s' ended with %d: %s" % (command, status, out.decode(errors="replace")[-300:]))
    return out.decode("utf-8", "replace")


def words(line, columns):
    """Breaks a line at blanks, as people read answers, where a terminal would cut a word."""
    while len(line) > columns:
        at = line.rfind(" ", 0, columns + 1)
        at = at if at > 0 else columns
        yield line[:at]
        line = line[at:].lstrip(" ")
    yield line


def draw(lines, columns, title):
    width, height = columns * CELL_W + 2 * PAD, (len(lines) + 1) * CELL_H + 2 * PAD + 14
    out = ['<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" viewBox="0 0 %.0f %.0f" role="img">' % (width, height, width, height),
           "<title>%s</title>" % html.escape(title),
           '<rect width="100%%" height="100%%" rx="8" fill="#14181f"/>'.replace("%%", "%")]
    out += ['<circle cx="%d" cy="18" r="5" fill="%s"/>' % (18 + 18 * i, c) for i, c in enumerate(("#e0605a", "#e0b050", "#60b060"))]
    out.append('<g font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14" fill="#d6dae2" xml:space="preserve">')
    for i, (kind, line) in enumerate(lines):
        fill = ' fill="#7fd4a8" font-weight="bold"' if kind == "prompt" else ""
        out.append('<text x="%d" y="%.0f"%s>%s</text>' % (PAD, PAD + 26 + (i + 1) * CELL_H, fill, html.escape(line)))
    return "\n".join(out + ["</g>", "</svg>", ""])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--columns", type=int, default=104)
    p.add_argument("--rows", type=int, default=30)
    p.add_argument("--title", default="terminal")
    p.add_argument("-o", "--out", required=True)
    p.add_argument("command", nargs="+")
    a = p.parse_args()
    lines = []
    for command in a.command:
        lines += [("prompt", x) for x in words("$ " + command, a.columns)]
        screen = Screen(10 * a.columns)
        screen.feed(run(command, a.columns, a.rows))
        lines += [("out", w) for line in screen.text() for w in words(line, a.columns)]
    with open(a.out, "w", encoding="utf-8") as f:
        f.write(draw(lines, a.columns, a.title))


main()
