# SPDX-License-Identifier: Apache-2.0
"""`python -m covey.perf` is ep-perf."""

from ._tool import run


def main() -> None:
    run("ep-perf")


if __name__ == "__main__":
    main()
