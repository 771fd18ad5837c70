"""``python -m foretrace``: the command line."""

from foretrace.cli.main import main

if __name__ == "__main__":
    main()
