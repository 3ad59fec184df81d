# SPDX-License-Identifier: Apache-2.0
"""`python -m covey.moe` is ep-moe."""

from ._tool import run


def main() -> None:
    run("ep-moe")


if __name__ == "__main__":
    main()
