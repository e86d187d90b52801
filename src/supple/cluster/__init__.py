"""More than one process or machine, over Ray: layers of one model on nodes of which any may die (docs/scale.md),
batches over Ray Data (docs/batches.md), and searches.

`route` decides the next hop (pure), `walk` carries requests along, `placement` says who holds what, `members` keeps the
caller's view of the nodes; `node`, `remote` and `local` are the parts that know Ray. `simulate` runs the same `route`
without any of them. `ray_local` is Ray for as long as one command runs; `batches` and `sweep` work in it.
"""
