# SPDX-License-Identifier: Apache-2.0
"""`python -m covey.run` is ep-run."""

from ._tool import run


def main() -> None:
    run("ep-run")


if __name__ == "__main__":
    main()
