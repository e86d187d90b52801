"""The best points of a model for budgets: scored, timed, guessed at where there are too many, and chosen."""
