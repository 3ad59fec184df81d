# SPDX-License-Identifier: Apache-2.0
"""`python -m covey.chaos` is ep-chaos."""

from ._tool import run


def main() -> None:
    run("ep-chaos")


if __name__ == "__main__":
    main()
