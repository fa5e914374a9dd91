"""`python -m daemon` is `dvsync`."""

from daemon.cli.commands import main

if __name__ == "__main__":
    main()
