"""The papers' claims, decided: declared experiments, their runs and results, the rule, and the page that tells.

`declared` reads an experiment, `running` runs what is missing, `evaluation` keeps right or wrong per test image,
`results` stores it, `verdict` is the rule, `page` writes the rows. `reproduction` is the verb.
"""
