"""Public clients from PyPI, each in a virtual environment under build/ that is made once; skipped where PyPI is out of reach."""
import os
import subprocess
import sys

from .lib import Skip


def python(name, *packages):
    """The interpreter of an environment that has the packages."""
    folder = os.path.join("build", "venv-" + name)
    exe = os.path.join(folder, "bin", "python")
    mark = os.path.join(folder, "complete-" + "-".join(packages).replace("/", "_"))
    if os.path.exists(mark):
        return exe
    made = subprocess.run([sys.executable, "-m", "venv", folder], capture_output=True)
    if made.returncode:
        raise Skip("python3 cannot make a virtual environment")
    if not packages: # pip itself is what is wanted
        open(mark, "w").close()
        return exe
    try:
        got = subprocess.run([exe, "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages], capture_output=True, timeout=600)
    except subprocess.TimeoutExpired:
        raise Skip("PyPI does not answer: %s" % " ".join(packages))
    if got.returncode:
        raise Skip("%s cannot be had from PyPI: %s" % (" ".join(packages), got.stderr.decode(errors="replace").strip().splitlines()[-1:]))
    open(mark, "w").close()
    return exe
