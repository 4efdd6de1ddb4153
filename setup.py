"""Machine code of compiled functions is built with the package, where numba and a C compiler are at hand."""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

OBJECTS = Path("stowplan") / "compiled" / "objects"


class BuildWithObjects(build_py):
    """Builds shared objects beside the modules: in the build tree, or in the source tree of an editable installation."""

    def run(self):
        """Copy the modules, then build."""
        super().run()
        root = Path(".") if self.editable_mode else Path(self.build_lib)
        folder = root.resolve() / OBJECTS
        command = [sys.executable, "-m", "stowplan.compiled.build", "--to", str(folder)]
        paths = [str(root.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        if subprocess.run(command, env=environment).returncode:
            print(
                "stowplan: heuristics run interpreted, or are compiled on first use where numba is installed", file=sys.stderr
            )


class Wheel(bdist_wheel):
    """One wheel a platform, for every Python: shared objects know nothing of Python."""

    def get_tag(self):
        """Tag of the wheel."""
        return "py3", "none", super().get_tag()[2]


class WithObjects(Distribution):
    """A package that is not the same on every platform."""

    def has_ext_modules(self):
        """Whether it has anything but Python."""
        return True


setup(cmdclass={"build_py": BuildWithObjects, "bdist_wheel": Wheel}, distclass=WithObjects)
