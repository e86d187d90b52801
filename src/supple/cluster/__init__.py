"""Layers of one model on several nodes, any of which may die: see docs/scale.md.

`route` decides the next hop (pure), `walk` carries requests along, `placement` says who holds what, `members` keeps the
caller's view of the nodes; `node`, `remote` and `local` are the parts that know Ray. `simulate` runs the same `route`
without any of them.
"""
