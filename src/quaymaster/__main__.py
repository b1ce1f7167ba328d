"""`python -m quaymaster` is the command `quaymaster`, also where the environment's scripts are not on the PATH."""

from quaymaster.cli.main import main

if __name__ == "__main__":
    main()
