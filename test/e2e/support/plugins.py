"""PJRT plugins from PyPI, fetched once into build/pjrt and never part of the project; skipped where PyPI is out of reach."""
import fcntl
import glob
import os
import subprocess
import zipfile

from . import venv
from .lib import Skip

CPU = ("lammps-jax-pjrt-cpu", "0.11.2", "*/pjrt_c_api_cpu_plugin.so")          # PJRT 0.115
CPU_MIDDLE = ("fastatomstruct-xla-cpu", "2026.6.23", "*/libpjrt_cpu.so")       # 0.106
CPU_OLDEST = ("xla-cpu-pjrt", "0.0.1", "*/*/xla_cpu_pjrt.so")                  # 0.81, with the official header
HEADER = ("xla-cpu-pjrt", "0.0.1", "*/*/include/pjrt_c_api.h")
TPU = ("libtpu", "0.0.52", "libtpu/libtpu.so")                                 # 0.117
CUDA = ("jax-cuda13-pjrt", "0.12.0.1", "jax_plugins/*/xla_cuda_plugin.so")     # 0.116


def file(package):
    """The path of a package's file."""
    name, version, pattern = package
    folder = os.path.join("build", "pjrt", "%s-%s" % (name, version))
    os.makedirs(folder, exist_ok=True)
    with open("build/pjrt/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # scripts run side by side
        if not os.path.exists(folder + "/complete"):
            fetch(folder, "%s==%s" % (name, version))
    return os.path.abspath(glob.glob(os.path.join(folder, pattern))[0])


def fetch(folder, what):
    pip = [venv.python("pip"), "-m", "pip", "--disable-pip-version-check"]
    try:
        got = subprocess.run(pip + ["download", "-q", "--no-deps", "-d", folder, what], capture_output=True, timeout=600)
    except subprocess.TimeoutExpired:
        raise Skip("PyPI does not answer: %s" % what)
    wheels = glob.glob(folder + "/*.whl")
    if got.returncode or not wheels:
        raise Skip("%s cannot be had from PyPI: %s" % (what, got.stderr.decode(errors="replace").strip().splitlines()[-1:]))
    with zipfile.ZipFile(wheels[0]) as z:
        z.extractall(folder)
    os.remove(wheels[0])
    open(folder + "/complete", "w").close()
