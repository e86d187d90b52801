"""More than one process or machine, over Ray."""
