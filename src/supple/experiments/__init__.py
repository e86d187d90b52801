"""The papers' claims, decided: declared experiments, their runs and results, the rule, and the page that tells.

`declared` reads an experiment, `jobs` says what is missing, `running` makes one run and `processes` many, `evaluation`
keeps right or wrong per test image, `results` stores it, `verdict` is the rule, `page` writes the rows. `reproduction`
is the verb.
"""
