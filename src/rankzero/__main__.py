"""`python -m rankzero`: the command line, also under a torchrun that the user started."""

from rankzero.cli.main import main

if __name__ == "__main__":
    main()
