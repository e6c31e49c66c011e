"""The command ``freshet``, and ``python -m freshet``."""

from infra.cli.entry import main

if __name__ == "__main__":
    main()
