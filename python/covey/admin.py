# SPDX-License-Identifier: Apache-2.0
"""`python -m covey.admin` is ep-admin."""

from ._tool import run


def main() -> None:
    run("ep-admin")


if __name__ == "__main__":
    main()
