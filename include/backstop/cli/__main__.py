"""`python -m backstop.cli`, where the script is not on the path."""

from backstop.cli import main

main()
