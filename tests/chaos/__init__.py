"""`make chaos`: seeded traffic and faults against two nodes, and a checker that compares what is left with a model.

schedule    which faults a seed gives, and when
site        two nodes on one PostgreSQL and one Redis, with a proxy between every pair of processes
faults      carries out a fault, and undoes it
driver      sends the traffic; `history` records it
final       what the site has at the end
checker     compares the history with that, by `model`
probes      measure recovery; `report` prints it
"""
