"""`python -m branchwise`: the command `branchwise`."""

from branchwise.cli.entry import main

if __name__ == "__main__":
    main()
