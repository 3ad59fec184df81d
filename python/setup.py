# SPDX-License-Identifier: Apache-2.0
"""The wheel has a library in it, but nothing of Python's interface: py3-none and the platform."""

import os

from setuptools import setup
from wheel.bdist_wheel import bdist_wheel


class Platform(bdist_wheel):
    """COVEY_WHEEL_PLATFORM is the platform that tools/wheel built for."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", os.environ["COVEY_WHEEL_PLATFORM"]


setup(version=os.environ["COVEY_WHEEL_VERSION"], cmdclass={"bdist_wheel": Platform})
