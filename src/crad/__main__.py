"""`python -m crad` is the command `crad`."""

from crad.cli import main

if __name__ == "__main__":
    main()
