"""Background work: RQ jobs, their schedule, and the processes that run them."""
