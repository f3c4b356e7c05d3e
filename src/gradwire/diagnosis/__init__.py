"""Why a job is not faster on several machines: watch a few steps of DDP, and say where their time goes.

`watcher` reads what DDP's own clocks say, rank by rank; a `Watch` is what one rank saw. `causes` decides on plain
numbers, `settings` knows what costs, `codecs` asks the planner what compression would bring. `job` is for the command
line: it starts a job so that its ranks are watched.
"""
